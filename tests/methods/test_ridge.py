"""The proximal problem of a diagonal Gaussian in closed form: least squares, natural gradient, positive."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian
from bayescore.methods import ProximalScore
from bayescore.methods.ridge import proximal_ridge
from bayescore.targets import Gaussian, ScoreFunction
from cases import F64, family, normal, one_step, walk

cases = given(
    dim=st.integers(1, 5),
    samples=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    damping=st.sampled_from([0.3, 2.0, 100.0, 1e4]),
)


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
    dim: int, samples: int, seed: int, damping: float
) -> None:
    q = family("diagonal", dim, seed)
    eps, s = normal(2, samples, dim, seed=seed)
    mean, log_sd = proximal_ridge(q.mean, q.log_sd, eps, s, damping)
    for i in range(dim):
        theta = q.mean[i] + q.sd[i] * eps[:, i]
        h, P = least_squares(q.mean[i], q.log_sd[i], theta, s[:, i], damping)
        w = P * q.sd[i] ** 2 - 1  # P = P_t (1 + w)
        w = w.clamp(-1, 1)
        shrink = 1 - w / 2 + w**2 / 8  # what keeps it positive
        torch.testing.assert_close((log_sd[i] - q.log_sd[i]).exp(), shrink, rtol=1e-7, atol=1e-7)
        shift = (h - P * q.mean[i]) * q.sd[i] ** 2  # sigma u: m_new = m + sigma u / (1 + w)
        torch.testing.assert_close(mean[i] - q.mean[i], shift * shrink**2, rtol=1e-6, atol=1e-8)


@given(seed=st.integers(0, 10_000), damping=st.floats(1.0, 1e5))
@settings(max_examples=30)
def test_with_the_moments_of_many_samples_it_is_the_natural_gradient_step(seed: int, damping: float) -> None:
    """P + (Lambda - P)/(1 + a), up to the second order that keeps it positive; m + E[s]/((1 + a) P_new)."""
    q = family("diagonal", 3, seed)
    P, precision, centre = (
        (-2 * q.log_sd).exp(),
        (0.5 * normal(3, seed=seed + 1)).exp(),
        normal(3, seed=seed + 2),
    )
    eps = torch.tensor([[1.0], [-1.0]], dtype=F64).expand(2, 3)  # mean 0, mean square 1
    s = precision * (centre - (q.mean + q.sd * eps))
    mean, log_sd = proximal_ridge(q.mean, q.log_sd, eps, s, damping)
    w = ((precision - P) / P / (1 + damping)).clamp(-1, 1)
    shrink = 1 - w / 2 + w.square() / 8
    torch.testing.assert_close(log_sd.exp(), q.sd * shrink, rtol=1e-10, atol=1e-10)
    expected = q.mean + precision * (centre - q.mean) / (1 + damping) * (q.sd * shrink).square()
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
    mean, new = proximal_ridge(
        torch.zeros(1, dtype=F64), torch.full((1,), log_sd, dtype=F64), column(eps), column(scores), damping
    )
    assert mean.isfinite().all()
    assert new.isfinite().all()
    # 1 - w/2 + w^2/8 with |w| <= 1 lies between 5/8 and 13/8
    assert math.log(5 / 8) - 1e-9 <= float(new) - log_sd <= math.log(13 / 8) + 1e-9


@cases
@settings(max_examples=30)
def test_a_rescaled_coordinate_takes_the_rescaled_step(
    dim: int, samples: int, seed: int, damping: float
) -> None:
    q, unit = family("diagonal", dim, seed), (3 * normal(dim, seed=seed + 9)).exp()
    eps, s = normal(2, samples, dim, seed=seed)
    mean, log_sd = proximal_ridge(q.mean, q.log_sd, eps, s, damping)
    scaled_mean, scaled = proximal_ridge(unit * q.mean, q.log_sd + unit.log(), eps, s / unit, damping)
    torch.testing.assert_close(scaled_mean / unit, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(scaled - unit.log(), log_sd, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-6, 1e-2, 1e3])
def test_the_method_does_not_depend_on_the_unit_of_all_coordinates(unit: float) -> None:
    target = Gaussian(normal(3), torch.diag((0.5 * normal(3, seed=1)).exp()))
    scaled = Gaussian(unit * target.mean, unit**2 * target.covariance)
    method = ProximalScore(solver="exact", samples=2)
    a = walk(method, DiagonalGaussian.init(3), target, steps=20, horizon=50)[0]
    b = walk(method, DiagonalGaussian.init(3, scale=unit), scaled, steps=20, horizon=50)[0]
    torch.testing.assert_close(b.mean / unit, a.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(b.log_sd - math.log(unit), a.log_sd, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("size", [1e3, 1e30, 1e100])
def test_the_method_survives_adversarial_scores(size: float) -> None:
    target = ScoreFunction(lambda x: size * normal(len(x), 3, seed=3), 3)
    q = one_step(ProximalScore(solver="exact"), DiagonalGaussian.init(3), target)
    assert q.flat().isfinite().all()
    assert (q.sd > 0).all()


def test_off_gaussian_targets_the_bias_falls_with_the_damping() -> None:
    """log p = x - e^x: the ELBO's optimum is m = -1/2, v = 1. The finite-S step is off by order 1/a."""
    bias, chains = {}, 4000
    for damping in (1.0, 10.0, 100.0):
        mean = torch.full((chains, 1), -0.5, dtype=F64)
        log_sd = torch.zeros(chains, 1, dtype=F64)
        rng = torch.Generator().manual_seed(0)
        total, kept = torch.zeros(2, dtype=F64), 0
        steps = int(60 + 8 * damping)
        for step in range(steps):
            eps = torch.randn(chains, 1, 1, generator=rng, dtype=F64)
            x = mean.unsqueeze(-2) + log_sd.exp().unsqueeze(-2) * eps
            mean, log_sd = proximal_ridge(mean, log_sd, eps, 1 - x.exp(), damping)
            if step >= steps // 2:
                total += torch.stack([mean.mean(), (2 * log_sd).exp().mean()])
                kept += 1
        bias[damping] = (total / kept - torch.tensor([-0.5, 1.0], dtype=F64)).norm()
    assert bias[100.0] < bias[10.0] < bias[1.0]
    assert bias[100.0] < 0.02


def test_it_finds_the_best_diagonal_gaussian_of_a_correlated_target() -> None:
    """Best in ELBO: the target's mean, and variances 1/Lambda_ii."""
    target = bs.targets.Gaussian.ill_conditioned(10, 100.0, seed=1)
    fit = bs.fit(target, DiagonalGaussian.init(10), ProximalScore(solver="exact"), steps=3000)
    best = 1 / torch.linalg.inv(target.covariance).diagonal()
    assert (2 * fit.family.log_sd - best.log()).abs().max() < 0.3
    assert ((fit.family.mean - target.mean) / fit.family.sd).abs().max() < 0.5
