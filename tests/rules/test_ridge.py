"""The proximal problem of a diagonal Gaussian in closed form: least squares, natural gradient, positive."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.rules import Draws
from bayescore.rules.ridge import ridge_step, shrink, solve
from cases import F64, family, normal

cases = given(
    dim=st.integers(1, 5),
    draws=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    damping=st.sampled_from([0.3, 2.0, 100.0, 1e4]),
)


def step(mean: Tensor, sd: Tensor, eps: Tensor, s: Tensor, a: float, b: float | None = None):
    """A step at draws (..., S, D), with one damping or two."""
    return ridge_step(mean, sd, Draws.of_scores(eps, s), a, a if b is None else b)


def least_squares(mean: Tensor, log_sd: Tensor, theta: Tensor, s: Tensor, a: float) -> tuple[Tensor, Tensor]:
    """The h and P that minimise a E_q|g - g_t|^2 + (1/S) sum |g(theta_i) - s_i|^2 with g = h - P x.

    The expectation of a quadratic over q_t is exact at three Gauss-Hermite nodes.
    """
    sigma = log_sd.exp()
    nodes = mean + sigma * math.sqrt(3) * torch.tensor([-1.0, 0.0, 1.0], dtype=F64)
    weights = torch.tensor([1 / 6, 2 / 3, 1 / 6], dtype=F64)
    x = torch.cat([nodes, theta])
    y = torch.cat([(mean - nodes) / sigma**2, s])
    w = torch.cat([a * weights, torch.full_like(theta, 1 / len(theta))]).sqrt()
    design = torch.stack([torch.ones_like(x), -x], -1)
    h, P = torch.linalg.lstsq(w[:, None] * design, (w * y)[:, None]).solution.squeeze(-1)
    return h, P


@cases
@settings(max_examples=60)
def test_a_step_is_the_least_squares_solution_of_the_proximal_problem(
    dim: int, draws: int, seed: int, damping: float
) -> None:
    q = family("diagonal", dim, seed)
    eps, s = normal(2, draws, dim, seed=seed)
    mean, sd = step(q.mean, q.sd, eps, s, damping)
    for i in range(dim):
        theta = q.mean[i] + q.sd[i] * eps[:, i]
        h, P = least_squares(q.mean[i], q.log_sd[i], theta, s[:, i], damping)
        w = P * q.sd[i] ** 2 - 1  # P = P_t (1 + w)
        w = w.clamp(-1, 1)
        narrower = 1 - w / 2 + w**2 / 8  # what keeps it positive
        torch.testing.assert_close(sd[i] / q.sd[i], narrower, rtol=1e-7, atol=1e-7)
        shift = (h - P * q.mean[i]) * q.sd[i] ** 2  # sigma u: m_new = m + sigma u / (1 + w)
        torch.testing.assert_close(mean[i] - q.mean[i], shift * narrower**2, rtol=1e-6, atol=1e-8)


@given(seed=st.integers(0, 10_000), damping=st.floats(1.0, 1e5))
@settings(max_examples=30)
def test_with_the_moments_of_many_draws_it_is_the_natural_gradient_step(seed: int, damping: float) -> None:
    """P + (Lambda - P)/(1 + a), up to the second order that keeps it positive; m + E[s]/((1 + a) P_new)."""
    q = family("diagonal", 3, seed)
    P, precision, centre = (
        (-2 * q.log_sd).exp(),
        (0.5 * normal(3, seed=seed + 1)).exp(),
        normal(3, seed=seed + 2),
    )
    eps = torch.tensor([[1.0], [-1.0]], dtype=F64).expand(2, 3)  # mean 0, mean square 1
    s = precision * (centre - (q.mean + q.sd * eps))
    mean, sd = step(q.mean, q.sd, eps, s, damping)
    w = ((precision - P) / P / (1 + damping)).clamp(-1, 1)
    narrower = 1 - w / 2 + w.square() / 8
    torch.testing.assert_close(sd, q.sd * narrower, rtol=1e-10, atol=1e-10)
    expected = q.mean + precision * (centre - q.mean) / (1 + damping) * (q.sd * narrower).square()
    torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)


huge = st.floats(-1e100, 1e100)


@given(
    scores=st.lists(huge, min_size=3, max_size=3),
    eps=st.lists(st.floats(-8, 8), min_size=3, max_size=3),
    damping=st.sampled_from([0.1, 100.0, 1e6]),
    log_sd=st.floats(-20, 20),
)
@settings(max_examples=200)
def test_no_score_makes_the_variance_anything_but_positive(
    scores: list[float], eps: list[float], damping: float, log_sd: float
) -> None:
    column = lambda values: torch.tensor(values, dtype=F64).unsqueeze(-1)  # noqa: E731
    sd = torch.full((1,), log_sd, dtype=F64).exp()
    mean, new = step(torch.zeros(1, dtype=F64), sd, column(eps), column(scores), damping)
    assert mean.isfinite().all()
    assert new.isfinite().all()
    assert (new > 0).all()
    # 1 - w/2 + w^2/8 with |w| <= 1 lies between 5/8 and 13/8
    assert math.log(5 / 8) - 1e-9 <= float(new.log()) - log_sd <= math.log(13 / 8) + 1e-9


@cases
@settings(max_examples=30)
def test_a_rescaled_coordinate_takes_the_rescaled_step(
    dim: int, draws: int, seed: int, damping: float
) -> None:
    q, unit = family("diagonal", dim, seed), (3 * normal(dim, seed=seed + 9)).exp()
    eps, s = normal(2, draws, dim, seed=seed)
    mean, sd = step(q.mean, q.sd, eps, s, damping)
    scaled_mean, scaled = step(unit * q.mean, unit * q.sd, eps, s / unit, damping)
    torch.testing.assert_close(scaled_mean / unit, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close((scaled / unit).log(), sd.log(), rtol=1e-9, atol=1e-9)


def test_off_gaussian_targets_the_bias_falls_with_the_damping() -> None:
    """log p = x - e^x: the ELBO's optimum is m = -1/2, v = 1. The finite-S step is off by order 1/a."""
    bias, chains = {}, 4000
    for damping in (1.0, 10.0, 100.0):
        mean = torch.full((chains, 1), -0.5, dtype=F64)
        sd = torch.ones(chains, 1, dtype=F64)
        rng = torch.Generator().manual_seed(0)
        total, kept = torch.zeros(2, dtype=F64), 0
        steps = int(60 + 8 * damping)
        for t in range(steps):
            eps = torch.randn(chains, 1, 1, generator=rng, dtype=F64)
            x = mean.unsqueeze(-2) + sd.unsqueeze(-2) * eps
            mean, sd = step(mean, sd, eps, 1 - x.exp(), damping)
            if t >= steps // 2:
                total += torch.stack([mean.mean(), sd.square().mean()])
                kept += 1
        bias[damping] = (total / kept - torch.tensor([-0.5, 1.0], dtype=F64)).norm()
    assert bias[100.0] < bias[10.0] < bias[1.0]
    assert bias[100.0] < 0.02


@given(
    dim=st.integers(1, 5), draws=st.integers(1, 6), seed=st.integers(0, 10_000), damping=st.floats(0.1, 1e5)
)
@settings(max_examples=40)
def test_the_exact_posterior_is_a_fixed_point_whatever_the_draws(
    dim: int, draws: int, seed: int, damping: float
) -> None:
    """The residual of (1) is zero at every draw, not in the mean alone; with one damping or two."""
    q, eps = family("diagonal", dim, seed), normal(draws, dim, seed=seed + 5)
    for b in (damping, 0.1 * damping):
        mean, sd = step(q.mean, q.sd, eps, -eps / q.sd, damping, b)
        torch.testing.assert_close(mean, q.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(sd, q.sd, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 10_000), free=st.floats(1.5, 100.0))
@settings(max_examples=30)
def test_the_two_unknowns_solve_their_linear_system(seed: int, free: float) -> None:
    one, slope, centre = 0.1 * normal(3, 5, seed=seed)
    weight = 1.5 + normal(5, seed=seed + 1).square()
    u, w = solve(one, slope, centre, weight, free)
    torch.testing.assert_close(free * u - centre * w, one, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(weight * w - centre * u, slope, rtol=1e-10, atol=1e-12)


def test_the_slope_is_kept_within_one_and_the_factor_positive() -> None:
    wild = torch.tensor([-1e9, -1.0, 0.0, 1.0, 1e9], dtype=F64)
    _, w = solve(torch.zeros(5, dtype=F64), wild, torch.zeros(5, dtype=F64), torch.ones(5, dtype=F64), 2.0)
    assert torch.equal(w, torch.tensor([-1.0, -1.0, 0.0, 1.0, 1.0], dtype=F64))
    assert torch.equal(shrink(w), 1 - w / 2 + w.square() / 8)
    assert (shrink(w) > 0).all()


def test_a_rule_of_averages_is_the_rule_of_any_draws_that_have_them() -> None:
    """S copies of the same draws say no more than one copy."""
    q, (eps, s) = family("diagonal"), normal(2, 4, 3)
    for mine, twice in zip(
        step(q.mean, q.sd, eps, s, 3.0),
        step(q.mean, q.sd, eps.repeat(2, 1), s.repeat(2, 1), 3.0),
        strict=True,
    ):
        torch.testing.assert_close(mine, twice, rtol=1e-13, atol=1e-13)
