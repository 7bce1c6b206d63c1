"""The inner loop of Algorithm 1 for a diagonal Gaussian: autograd's gradient, torch's steps."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.rules import Draws
from bayescore.rules.adam import corrections
from bayescore.rules.inner import InnerOptions, inner_corrections, inner_gradient, inner_steps
from bayescore.rules.terms import Largest
from cases import F64, normal

DIM = 4


@dataclasses.dataclass(frozen=True)
class Problem:
    """q_t and what is held fixed in the loss (1) of rules/inner.py."""

    mean: Tensor
    sd: Tensor
    eps: Tensor  # (S, D)
    score: Tensor  # (S, D)
    alpha: float

    def loss(self, m: Tensor, rho: Tensor) -> Tensor:
        """alpha |g - g_t|^2 + |g - s|^2 at theta, averaged over the draws, written out."""
        theta = self.mean + self.sd * self.eps
        g = (m - theta) / (2 * rho).exp()
        g_t = (self.mean - theta) / self.sd.square()
        return (self.alpha * (g - g_t).square() + (g - self.score).square()).mean(0).sum()


def problem(seed: int, S: int, alpha: float) -> Problem:
    mean, log_sd = normal(2, DIM, seed=seed)
    eps, score = normal(2, S, DIM, seed=seed + 1)
    return Problem(mean, (0.4 * log_sd).exp(), eps, 2 * score, alpha)


def options(alpha: float, c: float = 1.0, **given: object) -> InnerOptions:
    fields = {"prior_precision": 0.0, "lr": 1e-3, "sd_lr": 2e-3, "momentum": 0.0, "floor": 0.0}
    return InnerOptions(c=c, alpha=alpha, **{**fields, "corrections": (), **given})


@given(
    seed=st.integers(0, 10_000),
    S=st.integers(1, 5),
    alpha=st.sampled_from([0.0, 0.7, 3.0]),
    c=st.sampled_from([1.0, 0.01]),
)
@settings(max_examples=60)
def test_the_gradient_is_autograds_of_the_loss_wherever_the_parameters_are(
    seed: int, S: int, alpha: float, c: float
) -> None:
    """In per-datum units the loss is c^2 times what it is in those of the density."""
    p = problem(seed, S, alpha)
    shift, shrink = 0.3 * normal(2, DIM, seed=seed + 2)
    m, rho = (p.mean + shift).requires_grad_(), (p.sd.log() + shrink).requires_grad_()
    expected = torch.autograd.grad(c * c * p.loss(m, rho), (m, rho))
    s1, s2 = c * p.score.mean(0), c * (p.eps * p.score).mean(0)
    draws = Draws.of_scores(p.eps, c * p.score)
    mine = inner_gradient(shift, (-rho.detach()).exp(), p.sd, s1, s2, draws, options(alpha, c))
    for gradient, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-9 * c * c)


def run(p: Problem, o: InnerOptions, adam: bool, prior_mean: Tensor | float = 0.0, likelihood=None):
    zeros = torch.zeros(DIM, dtype=F64)
    second = zeros if adam else None
    score = p.score if likelihood is None else likelihood
    return inner_steps(
        p.mean, p.sd, zeros, zeros, second, second, prior_mean, Draws.of_scores(p.eps, o.c * score), o
    )


def by_torch(p: Problem, o: InnerOptions, steps: int, adam: bool) -> tuple[Tensor, Tensor]:
    m, rho = p.mean.clone().requires_grad_(), p.sd.log().requires_grad_()
    groups = [{"params": [m], "lr": o.lr}, {"params": [rho], "lr": o.sd_lr}]
    optimizer = torch.optim.Adam(groups) if adam else torch.optim.SGD(groups, lr=1.0, momentum=o.momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        p.loss(m, rho).backward()
        optimizer.step()
    return m.detach(), rho.detach().exp()


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("S", [1, 3])
def test_inner_steps_are_adam_of_torch_on_the_loss(S: int, alpha: float) -> None:
    p, o = problem(5, S, alpha), options(alpha, corrections=inner_corrections(0, 10))
    (mean, sd, *_), _ = run(p, o, adam=True)
    expected = by_torch(p, o, 10, adam=True)
    torch.testing.assert_close((mean, sd), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_inner_steps_are_sgd_of_torch_on_the_loss(momentum: float) -> None:
    p = problem(5, 2, 0.7)
    o = options(0.7, momentum=momentum, lr=1e-4, sd_lr=2e-4, corrections=inner_corrections(0, 10))
    (mean, sd, _, _, *second), _ = run(p, o, adam=False)
    assert second == [None, None]
    torch.testing.assert_close((mean, sd), by_torch(p, o, 10, adam=False), rtol=1e-11, atol=1e-11)


def test_adams_steps_do_not_depend_on_the_number_of_data() -> None:
    """In per-datum units every gradient is c^2 times another, and Adam and its floor divide that out."""
    p = problem(5, 3, 0.7)
    after = []
    for c in (1.0, 1e-4):
        o = options(0.7, c, floor=0.1, corrections=inner_corrections(0, 10))
        after.append(run(p, o, adam=True)[0][:2])
    torch.testing.assert_close(after[0], after[1], rtol=1e-9, atol=1e-9)


def test_a_prior_is_part_of_the_score_by_its_expectation() -> None:
    """Draws with mean 0 and mean square 1 have the expectation itself: the whole score moves as far."""
    p, m0, s0 = problem(5, 2, 0.7), normal(DIM, seed=9), 0.8
    eps = torch.tensor([[1.0], [-1.0]], dtype=F64).expand(2, DIM)
    p = dataclasses.replace(p, eps=eps)
    likelihood = p.score + (p.mean + p.sd * eps - m0) / s0**2
    o = options(0.7, corrections=inner_corrections(0, 10))
    whole = run(p, o, adam=True)[0]
    apart = run(p, o._replace(prior_precision=s0**-2.0), adam=True, prior_mean=m0, likelihood=likelihood)[0]
    torch.testing.assert_close(apart, whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("floor", [0.1, 1.0])
def test_the_exact_posterior_is_a_fixed_point(adam: bool, floor: float) -> None:
    p = problem(5, 3, 0.7)
    p = dataclasses.replace(p, score=-p.eps / p.sd)
    (mean, sd, *_), (slope, _, _) = run(
        p, options(0.7, floor=floor, corrections=inner_corrections(0, 10)), adam=adam
    )
    torch.testing.assert_close(mean, p.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sd, p.sd, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, torch.zeros(DIM, dtype=F64), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("c", [1.0, 0.01])
def test_the_floor_is_a_share_of_the_gradient_that_the_score_of_q_t_itself_would_have(c: float) -> None:
    """2 c^2/sigma_t^3 for the mean and 4 c^2/sigma_t^2 for log sigma, in a first step of Adam."""
    p, kappa = problem(5, 3, 0.7), 0.3
    (mean, sd, *_), _ = run(p, options(0.7, c, floor=kappa, corrections=inner_corrections(0, 1)), adam=True)
    m, rho = p.mean.clone().requires_grad_(), p.sd.log().requires_grad_()
    by_mean, by_rho = torch.autograd.grad(p.loss(m, rho), (m, rho))
    step = by_mean / (by_mean.abs() + kappa * 2 / p.sd**3)
    torch.testing.assert_close(mean, p.mean - 1e-3 * step, rtol=1e-8, atol=1e-10)
    step = by_rho / (by_rho.abs() + kappa * 4 / p.sd**2)
    torch.testing.assert_close(sd, p.sd * (-2e-3 * step).exp(), rtol=1e-8, atol=1e-10)


def test_the_slope_is_curvature_times_variance_minus_one() -> None:
    p, curvature = problem(5, 2, 0.0), normal(DIM, seed=3).exp()
    eps = torch.tensor([[1.0], [-1.0]], dtype=F64).expand(2, DIM)
    p = dataclasses.replace(p, eps=eps, score=-curvature * (p.mean + p.sd * eps))
    _, (slope, square, _) = run(p, options(0.0, corrections=inner_corrections(0, 1)), adam=False)
    torch.testing.assert_close(slope, curvature * p.sd.square() - 1, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(square, slope.square())


@pytest.mark.parametrize("adam", [False, True])
def test_the_third_term_is_how_slowly_the_sd_answers_to_its_slope(adam: bool) -> None:
    """Where the mean score is zero, a first step moves log sd by the slope over it."""
    p = problem(5, 2, 0.7)
    eps = torch.tensor([[1.0], [-1.0]], dtype=F64).expand(2, DIM)
    p = dataclasses.replace(p, eps=eps, score=-normal(DIM, seed=3).exp() * eps)
    (_, sd, *_), (slope, _, slow) = run(
        p, options(0.7, floor=0.1, sd_lr=1e-4, corrections=inner_corrections(0, 1)), adam=adam
    )
    assert isinstance(slow, Largest)
    torch.testing.assert_close((sd / p.sd).log(), -slope / slow.values, rtol=1e-9, atol=1e-12)


def test_corrections_continue_where_the_steps_before_ended() -> None:
    assert inner_corrections(0, 2) == (*corrections(1), *corrections(2))
    assert inner_corrections(40, 1) == corrections(41)
