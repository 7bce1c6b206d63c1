"""The coupling flow: a Gaussian at first, invertible always, and a funnel where it must be one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayescore as bs
from bayescore.families import CouplingFlow, FullGaussian
from cases import F64, batch, family, gaussian, normal


@given(dim=st.integers(2, 6), seed=st.integers(0, 1000), layers=st.integers(1, 5))
@settings(max_examples=20)
def test_it_begins_as_the_gaussian_it_is_made_around(dim: int, seed: int, layers: int) -> None:
    q = gaussian(dim, seed)
    flow = CouplingFlow.around(q, layers, hidden=5, seed=seed)
    x, noise = normal(7, dim, seed=seed), normal(7, dim, seed=seed + 1)
    torch.testing.assert_close(flow.log_prob(x), q.log_prob(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(flow.score(x), q.score(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(flow.transform(noise), q.transform(noise), rtol=1e-12, atol=1e-12)
    again = CouplingFlow.around(q.in_form("precision"), layers, hidden=5, seed=seed)
    torch.testing.assert_close(again.log_prob(x), q.log_prob(x), rtol=1e-9, atol=1e-9)


@given(dim=st.integers(2, 6), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_the_density_of_a_draw_is_that_of_its_noise_over_the_jacobian(dim: int, seed: int) -> None:
    """(5) against autograd's Jacobian of the transform, which also holds the inverse to the transform."""
    q = family("coupling", dim, seed)
    noise = normal(dim, seed=seed + 5)
    jacobian = torch.autograd.functional.jacobian(lambda e: q.transform(e.unsqueeze(0))[0], noise)
    base = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum()
    expected = base - torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(q.log_prob(q.transform(noise.unsqueeze(0)))[0], expected, rtol=1e-9, atol=1e-9)


def test_location_and_factor_have_no_gradient_so_no_method_moves_them() -> None:
    q0 = CouplingFlow.around(gaussian(3, 1), 2, 4)
    target = bs.targets.Banana(3)
    for method in (bs.methods.ADVI(draws=4, stick=True), bs.methods.ProximalDescent(draws=4)):
        fit = bs.fit(target, q0, method, steps=5, progress=False)
        for key, value in q0.parameters().items():
            same = torch.equal(fit.family.parameters()[key], value)
            assert same == (key in ("location", "factor")), key


def test_a_batch_is_its_members() -> None:
    many, x = batch("coupling", 3), normal(3, 4, 3)
    for i in range(3):
        torch.testing.assert_close(many.log_prob(x)[i], many[i].log_prob(x[i]))
        torch.testing.assert_close(many.transform(x)[i], many[i].transform(x[i]))


def test_it_learns_a_funnel_that_no_gaussian_is() -> None:
    target = bs.targets.Funnel()
    gaussian_fit = bs.fit(target, effort="quick", progress=False)
    q = gaussian_fit.family
    assert isinstance(q, FullGaussian)
    flow = CouplingFlow.around(q)
    fit = bs.fit(target, flow, bs.methods.ADVI(draws=64, stick=True), steps=150, progress=False)
    assert fit.elbo.value > gaussian_fit.elbo.value + 0.5
    assert fit.elbo.value > -0.5  # the funnel is normalised, so 0 is the best


def test_what_cannot_be_a_flow_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="dim=1 has only one"):
        CouplingFlow.init(1)
    with pytest.raises(ValueError, match="not around a batch"):
        CouplingFlow.around(
            FullGaussian(torch.zeros(2, 3, dtype=F64), torch.eye(3, dtype=F64).repeat(2, 1, 1))
        )
    q = CouplingFlow.init(3, 2, 4)
    with pytest.raises(ValueError, match="shapes of a coupling flow"):
        CouplingFlow({**q.parameters(), "shift": torch.zeros(2, dtype=F64)})
    with pytest.raises(TypeError, match="named tensors"):
        CouplingFlow({"mean": torch.zeros(3)})
    with pytest.raises(ValueError, match="not to the configuration"):
        CouplingFlow.rebuild({"dim": 4, "layers": 2, "hidden": 4}, q.parameters())
