"""The closed form: the ridge step where the curvature is trusted, and what it does where it is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.rules import Draws
from bayescore.rules.calibrated import TRUST_STEPS, CalibratedOptions, calibrated_step, step_options, trust
from bayescore.rules.curvature import follow
from bayescore.rules.ridge import ridge_step, shrink
from cases import F64, normal

DIM = 5
ONES = torch.ones(DIM, dtype=F64)


def options(
    *,
    lr: float = 0.1,
    start: object = 1.0,
    beta: float = 0.0,
    t: int = 1,
    c: float = 1.0,
    prior_sd=torch.inf,
    **last,
) -> CalibratedOptions:
    fraction = last.pop("fraction", None)
    own = {"ceiling": ONES, "rho": ONES, "a": 50 * ONES, **last}
    return CalibratedOptions(*step_options(t, lr, start, c, prior_sd, beta, fraction), **own)


def state(seed: int, S: int) -> tuple[torch.Tensor, ...]:
    mean, log_sd = normal(2, DIM, seed=seed)
    eps, score = normal(2, S, DIM, seed=seed + 1)
    return mean, (0.3 * log_sd).exp(), eps, score


@given(seed=st.integers(0, 10_000), S=st.integers(1, 4), lr=st.sampled_from([0.01, 0.3, 1.0]))
@settings(max_examples=40)
def test_without_momentum_and_with_full_trust_it_is_the_ridge_step(seed: int, S: int, lr: float) -> None:
    """rho = k = 1, beta = 0 and b + 1 = 1/eta."""
    mean, sd, eps, score = state(seed, S)
    draws = Draws.of_scores(eps, score)
    (new, new_sd, momentum), _ = calibrated_step(mean, sd, None, 0.0, draws, options(lr=lr))
    expected = ridge_step(mean, sd, draws, 50.0, 1 / lr - 1)
    torch.testing.assert_close((new, new_sd), expected, rtol=1e-10, atol=1e-11)
    assert momentum is None


@given(seed=st.integers(0, 10_000), S=st.integers(1, 4))
@settings(max_examples=30)
def test_the_exact_posterior_is_a_fixed_point_of_a_trusting_step(seed: int, S: int) -> None:
    """With a prior about the posterior's mean, too: k takes off the draw and leaves the prior alone."""
    mean, sd, eps, _ = state(seed, S)
    zeros = torch.zeros(DIM, dtype=F64)
    for prior_sd in (torch.inf, 10.0):
        likelihood = sd.pow(-2) - prior_sd**-2.0
        draws = Draws.of_scores(eps, -likelihood * sd * eps)
        o = options(beta=0.9, t=3, prior_sd=prior_sd)
        (new, new_sd, momentum), (slope, square) = calibrated_step(mean, sd, zeros, mean, draws, o)
        torch.testing.assert_close((new, new_sd), (mean, sd), rtol=1e-12, atol=1e-12)
        for nothing in (momentum, slope, square):
            torch.testing.assert_close(nothing, zeros, rtol=0.0, atol=1e-10)


def test_without_trust_the_sd_stays_and_the_mean_takes_a_step_of_sgd() -> None:
    """rho = 0: at the initial variance the mean moves by lr times its gradient, as long as lr <= v0/c."""
    mean, sd, eps, score = state(3, 2)
    draws, c, lr = Draws.of_scores(eps, score), 0.01, 0.5
    o = options(rho=0 * ONES, c=c, lr=lr, start=sd.square())
    (new, new_sd, _), _ = calibrated_step(mean, sd, None, 0.0, draws, o)
    assert torch.equal(new_sd, sd)
    torch.testing.assert_close(new, mean - lr * draws.G, rtol=1e-12, atol=1e-12)


def test_momentum_is_that_of_an_average_of_gradients_freed_of_its_bias() -> None:
    """Over steps without trust: Adam's first moment, corrected, times lr."""
    mean, sd, eps, _ = state(3, 1)
    momentum, average = torch.zeros(DIM, dtype=F64), torch.zeros(DIM, dtype=F64)
    expected, lr, beta = mean.clone(), 0.05, 0.9
    for t in range(1, 6):
        draws = Draws.of_scores(eps, normal(1, DIM, seed=t))
        o = options(rho=0 * ONES, lr=lr, start=sd.square(), beta=beta, t=t)
        (mean, _, momentum), _ = calibrated_step(mean, sd, momentum, 0.0, draws, o)
        average = beta * average + (1 - beta) * draws.G
        expected = expected - lr * average / (1 - beta**t)
        torch.testing.assert_close(momentum, average, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)


def test_a_rate_beyond_a_newton_step_reaches_no_further_than_newton_once_the_sd_has_grown() -> None:
    """(6a): lr at v0; where v has grown beyond over v0, Newton's step with v."""
    mean, eps, score = normal(DIM), normal(1, DIM, seed=1), normal(1, DIM, seed=2)
    draws, lr = Draws.of_scores(eps, score), 0.4
    for v, step in ((0.1, lr), (4.0, 4.0)):
        o = options(rho=0 * ONES, lr=lr, start=0.1)
        (new, _, _), _ = calibrated_step(mean, v**0.5 * ONES, None, 0.0, draws, o)
        torch.testing.assert_close(new, mean - step * draws.G, rtol=1e-10, atol=1e-10)


def test_squared_gradients_stand_in_where_the_curvature_is_not_trusted() -> None:
    """(11) at rho = 0, and nothing of it at rho = 1."""
    mean, sd, eps, score = state(3, 1)
    momentum, B, N, beta, c, s0 = normal(DIM, seed=8), 8, 100, 0.9, 0.01, 2.0
    draws = Draws.of_scores(eps, score)
    common = {"fraction": (B, N), "beta": beta, "t": 2, "c": c, "prior_sd": s0, "start": 0.05}
    fisher = B / (1 - B / N) * (1 + beta) / 2 * (draws.G - momentum / (1 - beta)).square()
    slope = sd.square() / c * fisher + sd.square() / s0**2 - 1
    (_, new_sd, _), _ = calibrated_step(mean, sd, momentum, 0.0, draws, options(rho=0 * ONES, **common))
    expected = (sd * shrink((slope / (50 + draws.e2)).clamp(-1, 1))).clamp_max(s0)
    torch.testing.assert_close(new_sd, expected, rtol=1e-10, atol=1e-12)
    trusting = calibrated_step(mean, sd, momentum, 0.0, draws, options(**common))[0]
    without = calibrated_step(mean, sd, momentum, 0.0, draws, options(**{**common, "fraction": None}))[0]
    torch.testing.assert_close(trusting, without, rtol=1e-10, atol=1e-10)


def test_the_sd_stays_at_or_below_that_of_the_prior() -> None:
    mean, _, eps, _ = state(3, 2)
    draws = Draws.of_scores(eps, 0 * eps)
    o = options(prior_sd=1.0, ceiling=0 * ONES, a=0.1 * ONES)
    (_, sd, _), _ = calibrated_step(mean, 0.999 * ONES, None, mean, draws, o)
    assert (sd <= 1).all()


@pytest.mark.parametrize("prior_sd", [torch.inf, 2.0])
def test_options_of_a_number_are_those_of_a_tensor(prior_sd: float) -> None:
    """The initial variance is one number in a network, and one per coordinate in a fit."""
    for lr in (0.0, 0.1, 30.0):
        number = step_options(4, lr, 0.25, 0.1, prior_sd, 0.9, (8, 100))
        tensor = step_options(4, lr, torch.full((DIM,), 0.25, dtype=F64), 0.1, prior_sd, 0.9, (8, 100))
        for one, many in zip(number, tensor, strict=True):
            torch.testing.assert_close(
                torch.as_tensor(many).double(),
                one * ONES if isinstance(many, torch.Tensor) else torch.tensor(one).double(),
            )


def test_trust_is_none_at_first_and_then_grows_with_the_steps_and_falls_with_the_noise() -> None:
    """(7), (9) and (10) from the statistics of the steps before."""
    statistics, sizes, damping = torch.zeros(2, 4, dtype=F64), torch.tensor([50.0, 50.0], dtype=F64), 20.0
    forgotten = torch.zeros(2, dtype=F64)
    square = torch.tensor([1.0, 400.0], dtype=F64)
    for t in range(1, 5):
        ceiling, rho, a = trust(statistics, sizes, damping, squares=False)
        noise = square if t > 1 else torch.full((2,), torch.inf, dtype=F64)
        expected = t / (t + TRUST_STEPS * noise)
        torch.testing.assert_close(rho, expected, rtol=1e-10, atol=0.0)
        V = square if t > 1 else 0 * square
        torch.testing.assert_close(a, damping + t / 2 + 10 * expected * V.sqrt(), rtol=1e-10, atol=0.0)
        torch.testing.assert_close(ceiling, torch.ones(2, dtype=F64))
        forgotten += rho / (a + 1)
        torch.testing.assert_close(statistics[:, 2], forgotten, rtol=1e-10, atol=1e-15)
        follow(statistics, torch.stack([0 * square, square * sizes], -1), sizes)
