"""What the methods reach on the paper's synthetic problems, with their default settings.

Targets come from the paper's generator, seeds 0, 1, 2, ...; no start shares a seed with its target.
"""

from __future__ import annotations

import math

import pytest
import torch

import bayescore as bs
from bayescore.methods import GSM, BaM, ProximalDescent, ProximalRidge, WhitenedDescent
from bayescore.metrics import ForwardKL
from bayescore.targets import Gaussian, GaussianMixture

GAUSSIANS = [Gaussian.random(3, seed=s) for s in range(20)]
MIXTURES = [GaussianMixture.random(3, 5, seed=s) for s in range(10)]


def run_gaussians(method: bs.methods.Method | None, steps: int, offset: int = 500) -> list[bs.Fit]:
    return bs.fit_many(
        GAUSSIANS,
        bs.families.FullGaussian.init(3),
        method or WhitenedDescent(),
        steps=steps,
        seeds=[offset + s for s in range(20)],
        record_every=1,
        metrics={"forward_kl": ForwardKL(Gaussian.stack(GAUSSIANS))},
    )


def run_mixtures(
    method: ProximalDescent, *, draws: int, every: int, until: int = 1000, offset: int = 500
) -> list[bs.Fit]:
    """A run planned for 1,000 iterations, perhaps ended earlier."""
    return bs.fit_many(
        MIXTURES,
        [bs.families.GaussianMixture.init(3, 5, seed=offset + s) for s in range(10)],
        method,
        steps=1000,
        seeds=[offset + s for s in range(10)],
        record_every=every,
        metrics={"forward_kl": ForwardKL(GaussianMixture.stack(MIXTURES), draws)},
        callbacks=[lambda fit: fit.state.step >= until],
    )


def first_hit(fit: bs.Fit, threshold: float) -> float:
    """The first recorded iteration below a threshold."""
    below = (fit.history["forward_kl"] < threshold).nonzero()
    return float(fit.history["step"][below[0]]) if len(below) else math.inf


def median_hit(fits: list[bs.Fit], threshold: float) -> float:
    return float(torch.tensor([first_hit(fit, threshold) for fit in fits]).median())


def final(fits: list[bs.Fit]) -> torch.Tensor:
    return torch.stack([fit.history["forward_kl"][-1] for fit in fits])


@pytest.fixture(scope="module")
def whitened() -> list[bs.Fit]:
    return run_gaussians(None, 1000)


def test_whitened_descent_arrives_at_gaussians_sooner_than_the_paper_says(whitened: list[bs.Fit]) -> None:
    """Paper: 260 iterations to 1e-2, 320 to 1e-3."""
    assert isinstance(whitened[0].method, WhitenedDescent)
    assert median_hit(whitened, 1e-2) <= 100
    assert median_hit(whitened, 1e-3) <= 150


def test_whitened_descent_ends_below_one_in_a_hundred_thousand_on_every_gaussian(
    whitened: list[bs.Fit],
) -> None:
    values = final(whitened)
    missed = {s: float(v) for s, v in enumerate(values) if v >= 1e-5}
    assert not missed


def test_whitened_descent_stays_converged_on_gaussians(whitened: list[bs.Fit]) -> None:
    """No late blow-up: once below 1e-6, never again above 1e-3."""
    arrived = 0
    for fit in whitened:
        values = fit.history["forward_kl"]
        below = (values < 1e-6).nonzero()
        if len(below):
            arrived += 1
            assert values[below[0] :].max() < 1e-3
    assert arrived >= 18


@pytest.mark.parametrize(("method", "most"), [(GSM(), 20), (BaM(), 12)])
def test_closed_form_methods_arrive_at_gaussians_in_a_few_iterations(
    method: bs.methods.Method, most: int
) -> None:
    fits = run_gaussians(method, 100)
    assert median_hit(fits, 1e-2) <= most
    assert (final(fits) < 1e-6).all()


def test_proximal_descent_fits_mixtures_of_five_with_one_draw() -> None:
    """Paper: 0.0153."""
    assert float(final(run_mixtures(ProximalDescent(), draws=10_000, every=1000)).median()) <= 0.03


def test_proximal_descent_fits_mixtures_of_five_within_a_hundred_iterations_of_ten_draws() -> None:
    assert median_hit(run_mixtures(ProximalDescent(draws=10), draws=10_000, every=20, until=100), 0.05) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("offset", [500, 600, 700])
def test_no_stream_of_random_numbers_makes_a_converged_gaussian_blow_up(offset: int) -> None:
    fits = run_gaussians(None, 1000, offset)
    assert (final(fits) < 1e-5).all()
    for fit in fits:
        values = fit.history["forward_kl"]
        assert values[int(first_hit(fit, 1e-6)) :].max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("offset", [500, 600])
def test_mixtures_of_five_over_a_hundred_thousand_fixed_draws(offset: int) -> None:
    one = run_mixtures(ProximalDescent(), draws=100_000, every=500, offset=offset)
    assert float(final(one).median()) <= 0.03
    ten = run_mixtures(ProximalDescent(draws=10), draws=100_000, every=10, until=100, offset=offset)
    assert median_hit(ten, 0.05) <= 100


def reverse_kl_per_dim(target: bs.targets.Gaussian, q: bs.families.Family) -> float:
    """KL(q | target) divided by the dimension, in closed form."""
    return float(bs.metrics.gaussian_kl(q, target.density)) / target.dim


@pytest.mark.slow
def test_a_full_gaussian_method_solves_a_thousand_ill_conditioned_dimensions() -> None:
    """Condition number 1e4, a random rotation: within 0.05 nats per dimension after 4,000 score calls."""
    target = bs.targets.Gaussian.ill_conditioned(1000, 1e4, seed=0)
    method = bs.methods.BaM(draws=500)
    fit = bs.fit(target, bs.families.FullGaussian.init(1000), method, steps=8, metrics={}, check=False)
    assert fit.score_calls == 4000
    assert reverse_kl_per_dim(target, fit.family) < 0.05


@pytest.mark.slow
def test_the_closed_form_comes_close_to_the_best_diagonal_in_a_thousand_dimensions() -> None:
    """The best diagonal has variances 1/P_ii; within 0.01 nats per dimension of it at 20,000 calls."""
    target = bs.targets.Gaussian.ill_conditioned(1000, 1e4, seed=0)
    precision = target.density.factor @ target.density.factor.mT
    best = bs.families.DiagonalGaussian(torch.zeros_like(target.mean), -0.5 * precision.diagonal().log())
    method = ProximalRidge()
    fit = bs.fit(
        target, bs.families.DiagonalGaussian.init(1000), method, steps=20_000, metrics={}, check=False
    )
    excess = reverse_kl_per_dim(target, fit.family) - reverse_kl_per_dim(target, best)
    assert 0 <= excess < 0.01


@pytest.mark.slow
def test_a_low_rank_gaussian_beats_the_best_diagonal_in_a_thousand_dimensions() -> None:
    """Rank 20, 20,000 score calls, from N(0, I)."""
    target = bs.targets.Gaussian.ill_conditioned(1000, 1e4, seed=0)
    precision = target.density.factor @ target.density.factor.mT
    best = bs.families.DiagonalGaussian(torch.zeros_like(target.mean), -0.5 * precision.diagonal().log())
    start, method = bs.families.LowRankGaussian.init(1000, 20), bs.methods.ADVI()
    fit = bs.fit(target, start, method, steps=20_000, metrics={}, check=False)
    assert reverse_kl_per_dim(target, fit.family) < reverse_kl_per_dim(target, best)
