"""A zuko flow is a family like any other: a normalised density with exact derivatives and pure parameters."""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch
import zuko
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from bayescore.families.zuko import ZukoFlow

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def moved(family: ZukoFlow, seed: int = 0, size: float = 0.3) -> ZukoFlow:
    """The family some way from its start."""
    return family.from_flat(family.flat() + size * normal(family.flat().numel(), seed=seed))


def make(kind: str, dim: int, seed: int = 0) -> ZukoFlow:
    if kind in ("realnvp", "spline"):
        return moved(ZukoFlow.init(dim, kind, transforms=2, hidden=(8, 8), seed=seed), seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = zuko.flows.MAF(dim, transforms=2, hidden_features=(8,), activation=nn.Tanh)
    return moved(ZukoFlow(module).to(F64), seed)


kinds = pytest.mark.parametrize("kind", ["realnvp", "spline", "MAF"])
cases = given(
    kind=st.sampled_from(["realnvp", "spline", "MAF"]), dim=st.integers(2, 5), seed=st.integers(0, 10_000)
)


@cases
@settings(max_examples=12, deadline=None)
def test_score_is_the_gradient_of_log_prob(kind: str, dim: int, seed: int) -> None:
    family = make(kind, dim, seed)
    x = normal(5, dim, seed=seed + 1).requires_grad_()
    (expected,) = torch.autograd.grad(family.log_prob(x).sum(), x)
    torch.testing.assert_close(family.score(x.detach()), expected, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        score = family.score(x)
    torch.testing.assert_close(score, expected, rtol=1e-9, atol=1e-9)
    assert not score.requires_grad


@cases
@settings(max_examples=12, deadline=None)
def test_log_prob_of_a_draw_is_the_base_density_less_the_log_determinant(
    kind: str, dim: int, seed: int
) -> None:
    family = make(kind, dim, seed)
    noise = normal(dim, seed=seed + 1)
    jacobian = torch.autograd.functional.jacobian(family.transform, noise)
    base = -0.5 * noise.square().sum() - 0.5 * dim * math.log(2 * math.pi)
    expected = base - torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(family.log_prob(family.transform(noise)), expected, rtol=1e-8, atol=1e-8)


@kinds
def test_pullback_is_the_derivative_of_the_score_in_the_parameters(kind: str) -> None:
    family = make(kind, 3)
    x, e = normal(2, 4, 3, seed=1)
    with torch.no_grad():
        score, pullback = family.score_and_pullback(x)
    grads = pullback(e)
    assert not score.requires_grad
    assert {k: v.shape for k, v in grads.items()} == {k: v.shape for k, v in family.parameters().items()}
    start = family.flat()
    direction = normal(len(start), seed=2)
    h = 1e-6
    ahead, behind = (family.from_flat(start + step * direction).score(x) for step in (h, -h))
    expected = (e * (ahead - behind)).sum() / (2 * h)
    torch.testing.assert_close(family.replace(grads).flat() @ direction, expected, rtol=1e-6, atol=1e-6)


def test_log_prob_is_twice_and_score_once_differentiable_in_points_and_parameters() -> None:
    family = moved(ZukoFlow.init(2, transforms=2, hidden=(2,)))
    names = list(family.parameters())
    inputs = [v.detach().requires_grad_() for v in (normal(2, 2, seed=1), *family.parameters().values())]

    def log_prob(x: Tensor, *values: Tensor) -> Tensor:
        return family.replace(dict(zip(names, values, strict=True))).log_prob(x)

    def score(x: Tensor, *values: Tensor) -> Tensor:
        return family.replace(dict(zip(names, values, strict=True))).score(x)

    def transform(x: Tensor, *values: Tensor) -> Tensor:
        return family.replace(dict(zip(names, values, strict=True))).transform(x)

    for function in (log_prob, score, transform):
        assert gradcheck(function, inputs)
    assert gradgradcheck(log_prob, inputs)


def test_density_integrates_to_one_on_the_line() -> None:
    family = make("spline", 1)
    x = torch.linspace(-12, 12, 100_001, dtype=F64).unsqueeze(-1)
    total = torch.trapezoid(family.log_prob(x).exp(), x.squeeze(-1))
    torch.testing.assert_close(total, torch.ones((), dtype=F64), rtol=1e-6, atol=0)


# the box holds all but 1e-6 of the mass; splines have kinks, so the trapezoidal rule needs a finer grid there
@pytest.mark.parametrize(("kind", "half", "n"), [("realnvp", 14, 401), ("spline", 9, 901), ("MAF", 40, 801)])
def test_density_integrates_to_one_in_the_plane(kind: str, half: float, n: int) -> None:
    family = make(kind, 2)
    side = torch.linspace(-half, half, n, dtype=F64)
    with torch.no_grad():
        rows = [family.log_prob(torch.cartesian_prod(part, side)).exp() for part in side.split(100)]
    total = torch.trapezoid(torch.trapezoid(torch.cat(rows).reshape(n, n), side), side)
    torch.testing.assert_close(total, torch.ones((), dtype=F64), rtol=1e-4, atol=0)


@kinds
def test_draws_follow_the_density(kind: str) -> None:
    """E_q[p / q] = 1 for a p narrower than q."""
    family = make(kind, 2)
    x = family.sample(20_000, seed=0)
    log_p = torch.distributions.Normal(x.mean(0), 0.4 * torch.ones(2, dtype=F64)).log_prob(x).sum(-1)
    ratio = (log_p - family.log_prob(x)).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(len(x))


def test_init_starts_where_it_is_asked_to() -> None:
    for kind in ("realnvp", "spline"):
        family = ZukoFlow.init(2, kind, scale=10.0, mean=[100.1, -50.0])
        assert float(family.parameters()["transform.transforms.0.shift"][0]) == 100.1  # to the last digit
        x = family.sample(4000, seed=0)
        assert (x.mean(0) - torch.tensor([100.1, -50.0])).abs().max() < 5
        assert ((x.std(0) > 6) & (x.std(0) < 15)).all()


def test_replace_leaves_every_other_family_and_the_module_alone() -> None:
    with torch.random.fork_rng(devices=[]):
        module = zuko.flows.MAF(2, transforms=1, hidden_features=(4,))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    family = ZukoFlow(module)
    x = torch.zeros(3, 2)
    value = family.log_prob(x)
    other = family.replace({k: v + 1.0 for k, v in family.parameters().items()})
    assert not torch.allclose(other.log_prob(x), value)
    assert torch.equal(family.log_prob(x), value)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(v.requires_grad for v in module.parameters())
    for parameter in module.parameters():
        parameter.detach().zero_()
    assert torch.equal(family.log_prob(x), value)


def test_init_depends_on_the_seed_alone_and_leaves_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (ZukoFlow.init(2, hidden=(4,), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.flat(), again.flat())
    assert not torch.equal(first.flat(), other.flat())
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("kind", ["realnvp", "spline"])
def test_configuration_and_parameters_rebuild_the_flow(kind: str) -> None:
    family = make(kind, 3)
    config = json.loads(json.dumps(family.config()))
    again = ZukoFlow.rebuild(config, family.parameters())
    x = normal(4, 3)
    assert again.config() == config == {"flow": kind, "dim": 3, "transforms": 2, "hidden": [8, 8]}
    assert torch.equal(again.log_prob(x), family.log_prob(x))
    with pytest.raises(ValueError, match="do not have the names and shapes of the configuration"):
        ZukoFlow.rebuild(config | {"transforms": 3}, family.parameters())


def test_a_custom_module_is_restored_by_replace_and_not_by_rebuild() -> None:
    family = make("MAF", 3)
    assert family.config() == {"flow": "custom"}
    with pytest.raises(ValueError, match=r"use ZukoFlow\(module\)\.replace\(parameters\)"):
        ZukoFlow.rebuild(family.config(), family.parameters())
    again, x = make("MAF", 3, seed=1).replace(family.parameters()), normal(4, 3)
    assert torch.equal(again.log_prob(x), family.log_prob(x))


def test_dtype_follows_the_parameters() -> None:
    family = ZukoFlow.init(3, hidden=(8,))
    single, x = family.to(torch.float32), normal(4, 3)
    assert single.log_prob(x.float()).dtype == single.sample(2, seed=0).dtype == torch.float32
    torch.testing.assert_close(single.score(x.float()).double(), family.score(x), rtol=1e-4, atol=1e-4)
    assert repr(single) == "ZukoFlow(dim=3, realnvp, transforms=3, float32, cpu)"
    assert repr(make("MAF", 2)) == "ZukoFlow(dim=2, MAF, float64, cpu)"
    assert family.batch_shape == ()
    assert family.entropy() is None


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3)])
@kinds
def test_points_may_have_any_leading_shape(kind: str, shape: tuple[int, ...]) -> None:
    family, x = make(kind, 3), normal(*shape)
    assert family.log_prob(x).shape == shape[:-1]
    assert family.score(x).shape == family.transform(x).shape == shape


@pytest.mark.parametrize("kind", [zuko.flows.SOSPF, zuko.flows.UNAF, zuko.flows.CNF])
def test_a_flow_that_can_be_differentiated_once_refuses_score_matching(kind: type[nn.Module]) -> None:
    """zuko integrates these numerically; torch would return a wrong second derivative without a word."""
    with torch.random.fork_rng(devices=[]):
        family = ZukoFlow(kind(2))
    x = torch.zeros(3, 2)
    assert family.score(x).isfinite().all()
    with pytest.raises(ValueError, match=rf"{kind.__name__} can be differentiated once.* such as RealNVP"):
        family.score_and_pullback(x)


def test_what_cannot_be_wrapped_is_refused_with_a_sentence() -> None:
    with torch.random.fork_rng(devices=[]):
        ring, conditional, mixture = zuko.flows.NCSF(2), zuko.flows.MAF(2, context=3), zuko.flows.GMM(2)
        wide, learned = zuko.flows.MAF(2), zuko.flows.MAF(2)
        normal_base = zuko.lazy.UnconditionalDistribution
        wide.base = normal_base(zuko.distributions.DiagNormal, torch.zeros(2), 2 * torch.ones(2), buffer=True)
        learned.base = normal_base(zuko.distributions.DiagNormal, torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match=r"fixed standard normal on R\^D; got BoxUniform"):
        ZukoFlow(ring)
    for flow in (wide, learned):
        with pytest.raises(ValueError, match=r"fixed standard normal on R\^D; got DiagNormal"):
            ZukoFlow(flow)
    with pytest.raises(ValueError, match="MAF cannot be evaluated alone; build it without a context"):
        ZukoFlow(conditional)
    for module in (mixture, nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=f"wraps a zuko Flow.* got {type(module).__name__}"):
            ZukoFlow(module)


def test_impossible_recipes_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="dim=1 has only one"):
        ZukoFlow.init(1)
    with pytest.raises(
        ValueError, match=r"there is no flow recipe called 'splines'; did you mean 'spline'\?"
    ):
        ZukoFlow.init(2, "splines")
    with pytest.raises(ValueError, match="transforms must be at least 1; got 0"):
        ZukoFlow.init(2, transforms=0)
    with pytest.raises(ValueError, match=r"mean must have the shape \(2,\); got \(3,\)"):
        ZukoFlow.init(2, mean=[0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="scale must be positive and finite; got -1"):
        ZukoFlow.init(2, scale=-1.0)
    family = ZukoFlow.init(2, hidden=(4,))
    with pytest.raises(ValueError, match="a ZukoFlow holds one density, so 2 of them make no batch"):
        ZukoFlow.stack([family, family])
    with pytest.raises(TypeError, match="cannot be indexed"):
        family[0]
    for method in (family.transform, family.log_prob, family.score):
        with pytest.raises(ValueError, match=r"points must have the shape \(\.\.\., 2\); got \(4, 3\)"):
            method(normal(4, 3))


def test_without_zuko_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'bayescore\[flows\]'"):
        ZukoFlow.init(2)
