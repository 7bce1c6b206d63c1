"""CalibratedScore, the network rule on a low-dimensional target: its steps, and where they lead."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs
from bayescore.families import DiagonalGaussian
from bayescore.methods import CalibratedScore
from bayescore.rng import Streams
from bayescore.rules import Draws
from bayescore.rules.calibrated import CalibratedOptions, calibrated_step, step_options, trust
from bayescore.rules.curvature import follow
from bayescore.targets import Gaussian, NoisyScore
from cases import EVERY, Exact, family, first_draws, normal, one_step, same_run, walk, z_score

TARGET = Gaussian(normal(5), torch.diag((0.7 * normal(5, seed=1)).exp()))
FAST = CalibratedScore(damping=50.0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("draws", [1, 3])
def test_the_first_step_is_one_of_sgd(draws: int, momentum: float) -> None:
    """Nothing is known of the curvature yet: the sd stays and the mean moves by lr times the mean score."""
    q, target = family("diagonal"), Gaussian.random(3)
    method = CalibratedScore(draws=draws, momentum=momentum, lr=0.05, schedule=lambda t, T: 0.5)
    theta = first_draws(method, q, draws)
    after = one_step(method, q, target)
    torch.testing.assert_close(after.sd, q.sd, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(
        after.mean, q.mean + 0.025 * target.score(theta).mean(0), rtol=1e-12, atol=1e-12
    )


def test_steps_are_those_of_the_rule_with_all_coordinates_as_one_tensor() -> None:
    """Four steps written out, with a flat prior and c = 1."""
    q, target, T, S = family("diagonal"), Gaussian.random(3), 10, 2
    mean, sd, random = q.mean, q.sd, Streams([0])
    start, momentum, statistics = sd.square(), torch.zeros_like(mean), torch.zeros_like(mean).new_zeros(1, 4)
    size = statistics.new_tensor([3.0])
    for t in range(4):
        eps = random.normal(S, 3)[0]
        draws = Draws.of_scores(eps, target.score(mean + sd * eps))
        lr = 0.1 * 0.5 * (1 + float(torch.tensor(torch.pi * t / T).double().cos()))
        of_tensor = trust(statistics, size, 500.0, squares=False)[:, 0]
        o = CalibratedOptions(*step_options(t + 1, lr, start, 1.0, torch.inf, 0.9, None), *of_tensor)
        (mean, sd, momentum), terms = calibrated_step(mean, sd, momentum, 0.0, draws, o)
        follow(statistics, torch.stack([term.sum() for term in terms])[None], size)
        after = walk(CalibratedScore(draws=S), q, target, steps=t + 1, horizon=T)[0]
        torch.testing.assert_close(after.mean, mean, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(after.sd, sd, rtol=1e-7, atol=1e-7)


def errors(fit: bs.Fit, target: Gaussian) -> tuple[float, float]:
    """The largest error of the log variances, against 1/Lambda_ii, and of the means, in units of the sd."""
    best = 1 / torch.linalg.inv(target.covariance).diagonal()
    q = fit.family
    return float((2 * q.log_sd - best.log()).abs().max()), float(((q.mean - target.mean) / q.sd).abs().max())


@pytest.mark.parametrize(("method", "most"), [(CalibratedScore(), 0.3), (FAST, 0.1)])
def test_it_arrives_at_a_diagonal_gaussian(method: CalibratedScore, most: float) -> None:
    """With its defaults it forgets the initial precision over about a thousand steps."""
    fits = bs.fit_many(
        TARGET, DiagonalGaussian.init(5), method, steps=2000, seeds=range(4), metrics={}, record_every=2000
    )
    for fit in fits:
        log_variance, mean = errors(fit, TARGET)
        assert log_variance < most
        assert mean < 0.05


def test_it_finds_the_best_diagonal_gaussian_of_a_correlated_target() -> None:
    """Best in ELBO: the target's mean, and variances 1/Lambda_ii."""
    target = Gaussian.ill_conditioned(10, 100.0, seed=1)
    fit = bs.fit(target, DiagonalGaussian.init(10), FAST, steps=3000, metrics={})
    log_variance, mean = errors(fit, target)
    assert log_variance < 0.3
    assert mean < 0.5


def test_noise_on_the_scores_is_averaged_away() -> None:
    noisy = NoisyScore(TARGET, 0.5)
    fits = bs.fit_many(
        noisy, DiagonalGaussian.init(5), FAST, steps=2000, seeds=range(4), metrics={}, record_every=2000
    )
    for fit in fits:
        log_variance, mean = errors(fit, TARGET)
        assert log_variance < 0.3
        assert mean < 0.3


def test_the_exact_posterior_has_zero_expected_change_in_the_first_step() -> None:
    n, q = 4000, family("diagonal")
    many = type(q).stack([q] * n)
    after = walk(CalibratedScore(), many, Exact(many), seeds=list(range(n)))
    torch.testing.assert_close(after.sd, many.sd, rtol=1e-14, atol=0.0)
    assert z_score(after.mean - many.mean).abs().max() < 4.5


@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_steps_from_the_exact_posterior_end_there(seed: int) -> None:
    """The residual of the proximal problem is zero there: what the first step moves is undone."""
    q = family("diagonal", seed=seed)
    after = walk(CalibratedScore(), q, Exact(type(q).stack([q])), steps=200, horizon=200, seed=seed)[0]
    assert ((after.mean - q.mean) / q.sd).abs().max() < 0.01
    assert (after.log_sd - q.log_sd).abs().max() < 0.01


def test_a_fit_does_not_depend_on_its_batch() -> None:
    targets, starts = (
        [Gaussian.random(3, seed=s) for s in range(3)],
        [family("diagonal", seed=s) for s in range(3)],
    )
    options = {"steps": 30, "record_every": 10}
    together = bs.fit_many(targets, starts, CalibratedScore(), seeds=[4, 5, 6], **options)
    pair = bs.fit_many(targets[1:], starts[1:], CalibratedScore(), seeds=[5, 6], **options)
    for one, other in zip(pair, together[1:], strict=True):
        same_run(one, other)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"draws": 0}, ValueError, "draws must be at least 1; got 0"),
        ({"lr": 0.0}, ValueError, "lr must be positive; got 0.0"),
        ({"lr": float("nan")}, ValueError, "lr.*nan"),
        ({"damping": -1.0}, ValueError, "damping must be positive; got -1.0"),
        ({"momentum": 1.0}, ValueError, r"momentum must lie in \[0, 1\); got 1.0"),
        ({"momentum": -0.1}, ValueError, r"momentum must lie in \[0, 1\); got -0.1"),
        ({"schedule": "never"}, ValueError, "schedule must be one of .*cosine.*; got 'never'"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        CalibratedScore(**options)


@pytest.mark.parametrize("kind", [k for k in EVERY if k != "diagonal"])
def test_every_family_but_the_diagonal_gaussian_is_refused(kind: str) -> None:
    q = family(kind)
    sentence = f"CalibratedScore cannot fit a {type(q).__name__}; it serves DiagonalGaussian"
    with pytest.raises(TypeError, match=sentence):
        CalibratedScore().check(q, Gaussian.random(3))
