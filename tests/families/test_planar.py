"""The planar flow is a density: normalised, followed by its draws, with exact derivatives at given points."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from bayescore.families.planar import PlanarFlow, _solve

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def flow(dim: int, layers: int, seed: int, *, batch: int | None = None, affine: bool = True) -> PlanarFlow:
    """A flow far from the identity, with |w| between 1 and 2."""
    lead = () if batch is None else (batch,)
    u, w = 1.5 * normal(2, *lead, layers, dim, seed=seed)
    w *= (1 + torch.sigmoid(u[..., :1])) / w.norm(dim=-1, keepdim=True)
    b = normal(*lead, layers, seed=seed + 1)
    if not affine:
        return PlanarFlow(u, w, b)
    shift, log_scale = normal(2, *lead, dim, seed=seed + 2)
    return PlanarFlow(u, w, b, shift, 0.5 * log_scale)


def layer_with(c: float, *, b: float = 0.3, dtype: torch.dtype = F64) -> PlanarFlow:
    """One bare layer on R^2 with |w| = 1 and w.uhat = c."""
    w = torch.tensor([[0.6, 0.8]], dtype=dtype)
    across = torch.tensor([[-0.8, 0.6]], dtype=dtype)
    wu = math.log(math.expm1(1 + c)) if c < 10 else 1 + c
    return PlanarFlow(wu * w + 0.5 * across, w, torch.tensor([b], dtype=dtype))


def scores_by_autograd(family: PlanarFlow, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(family.log_prob(x).sum(), x)[0]


cases = given(
    dim=st.integers(1, 5),
    layers=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    affine=st.booleans(),
    batch=st.sampled_from([None, 1, 3]),
)


@cases
@settings(max_examples=40, deadline=None)
def test_score_is_the_gradient_of_log_prob(
    dim: int, layers: int, seed: int, affine: bool, batch: int | None
) -> None:
    family = flow(dim, layers, seed, affine=affine, batch=batch)
    x = 2.0 * normal(*family.batch_shape, 6, dim, seed=seed + 3)
    expected = scores_by_autograd(family, x)
    torch.testing.assert_close(family.score(x), expected, rtol=1e-9, atol=1e-9)


@cases
@settings(max_examples=40, deadline=None)
def test_log_prob_of_a_draw_is_the_base_density_less_the_log_determinant(
    dim: int, layers: int, seed: int, affine: bool, batch: int | None
) -> None:
    family = flow(dim, layers, seed, affine=affine, batch=batch)
    noise = normal(*family.batch_shape, 2, dim, seed=seed + 3)
    jacobian: Tensor = torch.func.jacrev(family.transform)(noise)
    size = (
        noise.numel()
    )  # draws do not mix: the determinant of all is the product of the determinants of each
    log_det = torch.linalg.slogdet(jacobian.reshape(size, size)).logabsdet
    base = -0.5 * noise.square().sum() - 0.5 * size * math.log(2 * math.pi)
    total = family.log_prob(family.transform(noise)).sum()
    # rounding of x moves the noise by 1 / det: a layer folded almost flat forgets digits
    torch.testing.assert_close(total, base - log_det, rtol=1e-6, atol=1e-6)


@cases
@settings(max_examples=25, deadline=None)
def test_pullback_is_the_derivative_of_the_score_in_the_parameters(
    dim: int, layers: int, seed: int, affine: bool, batch: int | None
) -> None:
    family = flow(dim, layers, seed, affine=affine, batch=batch)
    x, e = normal(2, *family.batch_shape, 4, dim, seed=seed + 3)
    score, pullback = family.score_and_pullback(x)
    torch.testing.assert_close(score, family.score(x))
    grads = pullback(e)
    assert {k: v.shape for k, v in grads.items()} == {k: v.shape for k, v in family.parameters().items()}
    start = family.flat()
    direction = normal(*start.shape, seed=seed + 4)
    direction /= direction.norm()

    def along(step: float) -> Tensor:
        return (e * family.from_flat(start + step * direction).score(x)).sum()

    h = 2e-5  # Richardson: the error is O(h^4)
    expected = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    actual = (family.replace(grads).flat() * direction).sum()
    size = max(1.0, float(family.replace(grads).flat().norm()))
    torch.testing.assert_close(actual / size, expected / size, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("batch", "points"), [(None, (2, 2)), (2, (2, 2, 2))])
def test_log_prob_is_twice_and_score_once_differentiable_in_points_and_parameters(
    batch: int | None, points: tuple[int, ...], affine: bool
) -> None:
    family = flow(2, 2, 3, batch=batch, affine=affine)
    names = list(family.parameters())
    inputs = [v.requires_grad_() for v in (normal(*points, seed=8), *family.parameters().values())]

    def log_prob(x: Tensor, *values: Tensor) -> Tensor:
        return family.replace(dict(zip(names, values, strict=True))).log_prob(x)

    def score(x: Tensor, *values: Tensor) -> Tensor:
        return family.replace(dict(zip(names, values, strict=True))).score(x)

    assert gradcheck(log_prob, inputs)
    assert gradgradcheck(log_prob, inputs)
    assert gradcheck(score, inputs)


def test_derivatives_are_right_where_the_layer_has_its_inflection() -> None:
    """There tanh(a) = 0: an absolute value or a division in the code would show."""
    family = PlanarFlow(normal(2, 3), normal(2, 3, seed=1), torch.zeros(2, dtype=F64))
    x = torch.zeros(3, dtype=F64, requires_grad=True)
    assert gradcheck(family.log_prob, x)
    assert gradgradcheck(family.log_prob, x)
    inputs = [v.requires_grad_() for v in family.parameters().values()]
    assert gradcheck(lambda u, w, b: PlanarFlow(u, w, b).score(x.detach()), inputs)


def test_functional_transforms_agree_with_the_score() -> None:
    family = flow(3, 2, 5)
    x = normal(6, 3)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(family.log_prob))(x), family.score(x))
    hessian = torch.func.jacrev(torch.func.jacrev(family.log_prob))(x[0])
    torch.testing.assert_close(torch.func.jacrev(family.score)(x[0]), hessian)
    torch.testing.assert_close(hessian, hessian.mT)


@pytest.mark.parametrize("seed", range(4))
def test_density_integrates_to_one_on_the_line(seed: int) -> None:
    family = flow(1, 3, seed)
    x = torch.linspace(-60, 60, 60_001, dtype=F64).unsqueeze(-1)
    total = torch.trapezoid(family.log_prob(x).exp(), x.squeeze(-1))
    torch.testing.assert_close(total, torch.ones((), dtype=F64), rtol=1e-7, atol=0)


@pytest.mark.parametrize("affine", [True, False])
def test_density_integrates_to_one_in_the_plane(affine: bool) -> None:
    family = flow(2, 2, 6, affine=affine)
    side = torch.linspace(-14, 14, 401, dtype=F64)
    density = family.log_prob(torch.cartesian_prod(side, side)).exp().reshape(401, 401)
    total = torch.trapezoid(torch.trapezoid(density, side), side)
    torch.testing.assert_close(total, torch.ones((), dtype=F64), rtol=1e-5, atol=0)


def test_draws_follow_the_density() -> None:
    """E_q[p / q] = 1 for a p narrower than q, and the histogram of draws is the integral of q."""
    family = flow(2, 2, 6)
    x = family.sample(40_000, seed=0)
    centre = x.mean(0)
    log_p = torch.distributions.Normal(centre, 0.5 * torch.ones(2, dtype=F64)).log_prob(x).sum(-1)
    ratio = (log_p - family.log_prob(x)).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(len(x))

    line = flow(1, 3, 2)
    draws = line.sample(40_000, seed=1)
    edges = torch.linspace(float(draws.min()), float(draws.max()), 4001, dtype=F64)
    cdf = torch.cumulative_trapezoid(line.log_prob(edges.unsqueeze(-1)).exp(), edges)
    empirical = torch.searchsorted(draws.squeeze(-1).sort().values, edges[1:]) / len(draws)
    assert float((cdf - empirical).abs().max()) < 1.95 / math.sqrt(len(draws))  # Kolmogorov-Smirnov, 0.1%


def test_a_batch_is_its_members() -> None:
    members = [flow(3, 2, seed) for seed in range(4)]
    batch = PlanarFlow.stack(members)
    x, e = normal(2, 4, 5, 3)
    for name in ("transform", "log_prob", "score"):
        expected = torch.stack([getattr(m, name)(row) for m, row in zip(members, x, strict=True)])
        torch.testing.assert_close(getattr(batch, name)(x), expected)
    _, pullback = batch.score_and_pullback(x)
    for i, member in enumerate(members):
        for key, value in member.score_and_pullback(x[i])[1](e[i]).items():
            torch.testing.assert_close(pullback(e)[key][i], value)
        assert all(torch.equal(v, member.parameters()[k]) for k, v in batch[i].parameters().items())
    assert batch.batch_shape == (4,)
    assert batch.sample(7, seed=0).shape == (4, 7, 3)


def test_points_of_one_density_may_have_any_leading_shape() -> None:
    family, x = flow(3, 2, 0), normal(2, 4, 5, 3)
    for shape in [(3,), (40, 3), (2, 4, 5, 3)]:
        points = x[0, 0, 0] if shape == (3,) else x.reshape(shape)
        assert family.log_prob(points).shape == shape[:-1]
        assert family.score(points).shape == family.transform(points).shape == shape
        torch.testing.assert_close(family.score(points).reshape(-1, 3)[0], family.score(x)[0, 0, 0])


@pytest.mark.parametrize("c", [-1 + 1e-9, -1 + 1e-6, -0.5, 0.0, 3.0, 1e3])
def test_extreme_layers_and_points_stay_finite_and_invert(c: float) -> None:
    family = layer_with(c)
    for size in [1e-6, 1.0, 30.0, 1e3, 1e6]:
        x = size * normal(50, 2, seed=1)
        noise, _ = family._invert(x)
        error = (family.transform(noise) - x).norm(dim=-1) / x.norm(dim=-1).clamp(min=1.0)
        assert float(error.max()) < 1e-8
        assert family.log_prob(x).isfinite().all()
        score = family.score(x)
        assert score.isfinite().all()
        torch.testing.assert_close(score, scores_by_autograd(family, x), rtol=1e-8, atol=1e-8 * size)


@pytest.mark.parametrize("c", [-0.9, 0.0, 3.0, 1e3])
def test_noise_is_recovered_from_draws(c: float) -> None:
    family = layer_with(c)
    noise = normal(200, 2, seed=2)
    recovered, _ = family._invert(family.transform(noise))
    torch.testing.assert_close(recovered, noise, rtol=1e-8, atol=1e-8)


@given(
    log_t=st.floats(-8, 7),
    log_p=st.floats(-16, 12),
    near=st.booleans(),
    dtype=st.sampled_from([F64, torch.float32]),
)
@settings(max_examples=200, deadline=None)
def test_root_solves_its_equation_to_rounding(
    log_t: float, log_p: float, near: bool, dtype: torch.dtype
) -> None:
    p = torch.tensor(10.0**log_p, dtype=dtype)
    t = (p - 1).abs() if near else torch.tensor(10.0**log_t, dtype=dtype)  # t near |c| is the slow corner
    a = _solve(t, p)
    left = (a - a.tanh()) + p * a.tanh()
    assert abs(float(left - t)) <= 4 * torch.finfo(dtype).eps * float(a + p * a.tanh() + t)


@pytest.mark.parametrize("c", [-1 + 1e-4, -0.5, 3.0, 1e3])
def test_single_precision_follows_double(c: float) -> None:
    family, half = layer_with(c), layer_with(c, dtype=torch.float32)
    x = 3.0 * normal(40, 2, seed=4)
    assert half.score(x.float()).dtype == half.log_prob(x.float()).dtype == torch.float32
    torch.testing.assert_close(half.log_prob(x.float()).double(), family.log_prob(x), rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(family.to(torch.float32).u, half.u)
    far = 1e6 * x.float()
    assert half.log_prob(far).isfinite().all()
    assert half.score(far).isfinite().all()


def test_init_is_near_the_asked_normal_and_can_move() -> None:
    mean = torch.tensor([1.0, -2.0, 3.0], dtype=F64)
    family = PlanarFlow.init(3, layers=2, scale=0.5, mean=mean)
    x = mean + 0.5 * normal(100, 3)
    log_p = torch.distributions.Normal(mean, 0.5 * torch.ones(3, dtype=F64)).log_prob(x).sum(-1)
    assert float((family.log_prob(x) - log_p).abs().max()) < 1.0
    _, pullback = family.score_and_pullback(x)
    assert all(float(v.norm()) > 1e-3 for v in pullback(normal(100, 3, seed=1)).values())


def test_init_depends_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (PlanarFlow.init(4, 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.flat(), again.flat())
    assert not torch.equal(first.flat(), other.flat())
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_bare_flow_is_the_affine_one_with_the_identity_map() -> None:
    bare = flow(3, 2, 0, affine=False)
    zero = torch.zeros(3, dtype=F64)
    affine, x = PlanarFlow(bare.u, bare.w, bare.b, zero, zero), normal(5, 3)
    torch.testing.assert_close(bare.log_prob(x), affine.log_prob(x))
    torch.testing.assert_close(bare.score(x), affine.score(x))
    torch.testing.assert_close(bare.transform(x), affine.transform(x))
    assert list(bare.parameters()) == ["u", "w", "b"]
    assert repr(bare) == "PlanarFlow(dim=3, layers=2, float64, cpu)"
    assert repr(PlanarFlow.init(3, 2)) == "PlanarFlow(dim=3, layers=2, affine, float64, cpu)"
    assert bare.entropy() is None


@pytest.mark.parametrize("batch", [None, 3])
def test_configuration_and_parameters_rebuild_the_flow(batch: int | None) -> None:
    family = flow(3, 2, 0, batch=batch)
    config = json.loads(json.dumps(family.config()))
    again = PlanarFlow.rebuild(config, family.parameters())
    assert again.config() == config == {"dim": 3, "layers": 2, "affine": True}
    assert torch.equal(again.flat(), family.flat())
    assert torch.equal(family.from_flat(family.flat()).flat(), family.flat())
    with pytest.raises(ValueError, match="not to the configuration"):
        PlanarFlow.rebuild(config | {"layers": 5}, family.parameters())


def test_wrong_shapes_are_refused_with_a_sentence() -> None:
    u, b, s = normal(2, 3), normal(2), normal(3)
    with pytest.raises(ValueError, match=r"u must have the shape \(\.\.\., layers, dim\); got \(3,\)"):
        PlanarFlow(s, s, b)
    with pytest.raises(ValueError, match=r"u must be .* got \(1, 1, 2, 3\)"):
        PlanarFlow(u[None, None], u[None, None], b[None, None])
    with pytest.raises(ValueError, match=r"w must have the shape"):
        PlanarFlow(u, u[:, :2], b)
    with pytest.raises(ValueError, match=r"b must be \(2,\) torch.float64 to go with u; got \(1, 2\)"):
        PlanarFlow(u, u, b[None])
    with pytest.raises(ValueError, match=r"b must be .* got \(2,\) torch.float32"):
        PlanarFlow(u, u, b.float())
    with pytest.raises(ValueError, match="both shift and log_scale"):
        PlanarFlow(u, u, b, s)
    with pytest.raises(ValueError, match=r"shift must have the shape"):
        PlanarFlow(u, u, b, b, s)
    with pytest.raises(ValueError, match="a row of w is zero"):
        PlanarFlow(u, torch.zeros_like(u), b)
    with pytest.raises(ValueError, match="layers must be at least 1; got 0"):
        PlanarFlow.init(3, 0)
    with pytest.raises(ValueError, match="scale must be positive and finite; got 0"):
        PlanarFlow.init(3, scale=0.0)
    with pytest.raises(ValueError, match="keep affine=True"):
        PlanarFlow.init(3, affine=False, scale=2.0)
    with pytest.raises(ValueError, match=r"shift must have the shape"):
        PlanarFlow.init(3, mean=[0.0, 1.0])


@pytest.mark.parametrize(("batch", "points"), [(None, (4, 2)), (None, ()), (2, (4, 3)), (2, (3, 4, 3))])
def test_wrong_points_are_refused_with_a_sentence(batch: int | None, points: tuple[int, ...]) -> None:
    family = flow(3, 2, 0, batch=batch)
    for method in (family.transform, family.log_prob, family.score):
        with pytest.raises(ValueError, match=r"points must have the shape \(.*, 3\); got"):
            method(torch.zeros(points, dtype=F64))


def test_a_unit_of_the_directions_changes_the_parameters_and_not_the_density():
    q = PlanarFlow.init(7, layers=2, scale=0.5, seed=3)
    halved = PlanarFlow(2 * q.u, 2 * q.w, q.b, q.shift, q.log_scale, unit=0.5)
    x = q.sample(5, seed=1)
    torch.testing.assert_close(halved.log_prob(x), q.log_prob(x))
    torch.testing.assert_close(halved.score(x), q.score(x))
    torch.testing.assert_close(halved.sample(5, seed=1), x)
    again = PlanarFlow.rebuild(halved.config(), halved.parameters())
    assert torch.equal(again.log_prob(x), halved.log_prob(x))


def test_in_many_dimensions_directions_are_stored_in_units_of_their_size():
    small, large = PlanarFlow.init(99), PlanarFlow.init(400)
    assert small.unit == 1.0
    assert "unit" not in small.config()
    assert large.config()["unit"] == large.unit == 0.05
    assert float(large.w.square().mean()) == pytest.approx(1.0)
    assert large.replace(large.parameters()).unit == 0.05
    e = torch.randn(3, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(large.transform(e), e, atol=0.1, rtol=0)  # close to the identity
