"""The exact posterior is a fixed point of every method, or has zero expected gradient, in every family."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.methods import ADVI, GSM, METHODS, BaM, Fisher, Method, ProximalScore, Score
from cases import EVERY, FLOWS, GAUSSIANS, Exact, batch, family, one_step, walk, z_score

dims, seeds, batches = st.integers(2, 7), st.integers(0, 10_000), st.integers(2, 10)
#: the names a user knows a family by, and the cases that stand for them
KINDS = {
    "FullGaussian": ("full", "precision"),
    "DiagonalGaussian": ("diagonal",),
    "LowRankGaussian": ("low-rank",),
    "GaussianMixture": ("mixture", "mixture-precision", "mixture-diagonal"),
    "PlanarFlow": ("planar", "bare-planar"),
    "ZukoFlow": ("realnvp", "spline"),
}


def served(method: type[Method]) -> list[str]:
    return [kind for name in method.serves for kind in KINDS[name]]


def stays(method: Method, kind: str, dim: int, seed: int, tolerance: float) -> None:
    q = family(kind, dim, seed).in_form(method.form)
    after = one_step(method, q, Exact(type(q).stack([q])), seed=seed)
    torch.testing.assert_close(after.flat(), q.flat(), rtol=tolerance, atol=tolerance)


def test_every_family_a_method_serves_has_a_case() -> None:
    assert set(KINDS) >= {name for method in METHODS.values() for name in method.serves}
    assert {kind for kinds in KINDS.values() for kind in kinds} == set(EVERY)


@given(dim=dims, seed=seeds, size=st.integers(1, 10))
@settings(max_examples=25)
def test_gsm_leaves_the_exact_posterior_fixed(dim: int, seed: int, size: int) -> None:
    stays(GSM(batch=size), "full", dim, seed, 1e-7)


@given(kind=st.sampled_from(served(BaM)), dim=dims, seed=seeds, size=batches)
@settings(max_examples=50)
def test_bam_leaves_the_exact_posterior_fixed_whatever_the_batch(
    kind: str, dim: int, seed: int, size: int
) -> None:
    q = family(kind, dim, seed).in_form("covariance")
    after = one_step(BaM(batch=size), q, Exact(type(q).stack([q])), seed=seed)
    torch.testing.assert_close(after.mean, q.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(after.covariance, q.covariance, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("rule", ["plateau", "constant", "decay", 0.3, 1e6, lambda t, B, D: 2.0 / (t + 1)])
def test_bam_leaves_the_exact_posterior_fixed_under_every_schedule(rule: object) -> None:
    q = family("full", 4)
    after = walk(BaM(batch=3, regularisation=rule), q, Exact(type(q).stack([q])), steps=5)[0]
    torch.testing.assert_close(after.flat(), q.flat(), rtol=1e-7, atol=1e-7)


@given(
    kind=st.sampled_from(served(ProximalScore)), dim=st.integers(2, 5), seed=seeds, samples=st.integers(1, 4)
)
@settings(max_examples=50)
def test_proximal_score_does_not_move_from_the_exact_posterior(
    kind: str, dim: int, seed: int, samples: int
) -> None:
    # a weight of a network that hardly matters has a floor that is hardly above rounding
    stays(ProximalScore(samples=samples, inner_steps=5), kind, dim, seed, 1e-6 if kind in FLOWS else 1e-9)


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"clip": 2.0}, {"reset": True}, {"alpha": 1.0}])
@pytest.mark.parametrize("kind", ["full", "diagonal", "mixture", "planar"])
def test_no_option_of_proximal_score_moves_the_exact_posterior(kind: str, options: dict) -> None:
    stays(ProximalScore(**options), kind, 3, 1, 1e-9)


@given(
    kind=st.sampled_from(["full", "precision", "diagonal"]), dim=dims, seed=seeds, samples=st.integers(1, 4)
)
@settings(max_examples=25)
def test_proximal_score_in_the_norm_of_the_covariance_does_not_move_from_the_exact_posterior(
    kind: str, dim: int, seed: int, samples: int
) -> None:
    # after one draw the floor of a parameter can be close to zero by accident
    stays(ProximalScore(metric="covariance", samples=samples, inner_steps=5), kind, dim, seed, 1e-4)


def test_it_is_the_floor_that_keeps_adam_from_making_steps_out_of_rounding() -> None:
    """Plain Adam divides a gradient by its own size, however small: it walks away from the optimum."""
    q = family("diagonal", 3, 1)
    target = Exact(type(q).stack([q]))
    moved = {
        kappa: (one_step(ProximalScore(optimizer="adam", floor=kappa), q, target).flat() - q.flat())
        .abs()
        .max()
        for kappa in (0.0, 0.1)
    }
    assert moved[0.1] < 1e-12 < 1e-4 < moved[0.0]


@given(dim=dims, seed=seeds, samples=st.integers(1, 10))
@settings(max_examples=25)
def test_the_exact_solver_does_not_move_from_the_exact_posterior(dim: int, seed: int, samples: int) -> None:
    stays(ProximalScore(solver="exact", samples=samples), "diagonal", dim, seed, 1e-11)


@given(kind=st.sampled_from(served(ADVI)), dim=st.integers(2, 5), seed=seeds, samples=st.integers(1, 3))
@settings(max_examples=40)
def test_sticking_the_landing_has_zero_gradient_at_the_exact_posterior(
    kind: str, dim: int, seed: int, samples: int
) -> None:
    method = ADVI(stick=True, samples=samples, optimizer="sgd", learning_rate=1.0, decay="constant")
    stays(method, kind, dim, seed, 1e-9)


@given(method=st.sampled_from([Fisher, Score]), dim=st.integers(2, 5), seed=seeds, data=st.data())
@settings(max_examples=50)
def test_score_divergences_have_zero_gradient_at_the_exact_posterior(
    method: type[Method], dim: int, seed: int, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(served(method)))
    rule = method(optimizer="sgd", learning_rate=1.0, decay="constant", samples=2)
    stays(rule, kind, dim, seed, 1e-8)


@pytest.mark.parametrize("kind", [*GAUSSIANS, "planar", "bare-planar"])
def test_advi_has_zero_expected_gradient_at_the_exact_posterior(kind: str) -> None:
    n, q = 8000, family(kind).in_form("covariance")
    many = type(q).stack([q] * n)
    rule = ADVI(optimizer="sgd", learning_rate=1.0, decay="constant")
    change = walk(rule, many, Exact(many), seeds=list(range(n))).flat() - many.flat()
    moving = change.std(0) > 0
    assert moving.sum() > 5
    assert z_score(change[:, moving]).abs().max() < 4.5


@pytest.mark.parametrize("kind", ["mixture", "mixture-diagonal"])
def test_stratified_advi_has_zero_expected_gradient_at_the_exact_mixture(kind: str) -> None:
    n, q = 8000, family(kind).in_form("covariance")
    many = type(q).stack([q] * n)
    rule = ADVI(optimizer="sgd", learning_rate=1.0, decay="constant", mixture="stratified")
    change = walk(rule, many, Exact(many), seeds=list(range(n))).flat() - many.flat()
    moving = change.std(0) > 1e-12
    assert moving.sum() > 5
    assert z_score(change[:, moving]).abs().max() < 4.5


@pytest.mark.parametrize("name", ["gsm", "bam", "proximal", "advi", "fisher", "score"])
def test_a_step_is_pure(name: str) -> None:
    """It leaves the state it came from intact: the loop relies on it to skip a step."""
    q, target = batch("full", 2, seed=1), Exact(batch("full", 2, seed=5))
    before = q.flat().clone()
    walk(METHODS[name](), q, target, seeds=[0, 1], steps=3)
    assert torch.equal(q.flat(), before)
