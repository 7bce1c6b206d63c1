"""Proximal score matching in closed form: units, wild scores, the best diagonal Gaussian, what is refused."""

from __future__ import annotations

import math

import pytest
import torch

import bayescore as bs
from bayescore.families import DiagonalGaussian
from bayescore.methods import ProximalRidge
from bayescore.rng import Streams
from bayescore.rules import Draws
from bayescore.rules.ridge import ridge_step
from bayescore.targets import Gaussian, ScoreFunction
from cases import EVERY, family, normal, one_step, walk


@pytest.mark.parametrize("draws", [1, 3])
def test_a_step_is_the_rule_with_both_dampings_raised_by_the_residual(draws: int) -> None:
    """a = (100 + t)/S and b = (10/S) T/(T - t), plus max(10, sqrt(D)/2) rms(sigma r); here at t = 0."""
    q, target = family("diagonal"), Gaussian(normal(3), torch.diag((0.5 * normal(3, seed=1)).exp()))
    eps = q.noise(Streams([0]), draws)[0]
    s = target.score(q.mean + q.sd * eps)
    wide = 10 * (q.sd * s + eps).square().mean().sqrt()
    mean, sd = ridge_step(q.mean, q.sd, Draws.of_scores(eps, s), 100 / draws + wide, 10 / draws + wide)
    after = one_step(ProximalRidge(draws=draws), q, target)
    torch.testing.assert_close(after.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after.sd, sd, rtol=1e-12, atol=1e-12)


def test_given_dampings_take_the_place_of_the_usual_ones() -> None:
    q, target = family("diagonal"), Gaussian.random(3)
    usual = walk(ProximalRidge(), q, target, steps=4).flat()
    said = ProximalRidge(damping=lambda t, T: 100 + t, mean_damping=lambda t, T: 10 * T / (T - t))
    assert torch.equal(walk(said, q, target, steps=4).flat(), usual)
    for other in ({"damping": 1000.0}, {"mean_damping": 100.0}):
        assert not torch.equal(walk(ProximalRidge(**other), q, target, steps=4).flat(), usual)


@pytest.mark.parametrize("unit", [1e-6, 1e-2, 1e3])
def test_the_method_does_not_depend_on_the_unit_of_all_coordinates(unit: float) -> None:
    target = Gaussian(normal(3), torch.diag((0.5 * normal(3, seed=1)).exp()))
    scaled = Gaussian(unit * target.mean, unit**2 * target.covariance)
    method = ProximalRidge(draws=2)
    a = walk(method, DiagonalGaussian.init(3), target, steps=20, horizon=50)[0]
    b = walk(method, DiagonalGaussian.init(3, scale=unit), scaled, steps=20, horizon=50)[0]
    torch.testing.assert_close(b.mean / unit, a.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(b.log_sd - math.log(unit), a.log_sd, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("size", [1e3, 1e30, 1e100])
def test_the_method_survives_adversarial_scores(size: float) -> None:
    target = ScoreFunction(lambda x: size * normal(len(x), 3, seed=3), 3)
    q = one_step(ProximalRidge(), DiagonalGaussian.init(3), target)
    assert q.flat().isfinite().all()
    assert (q.sd > 0).all()


def test_it_finds_the_best_diagonal_gaussian_of_a_correlated_target() -> None:
    """Best in ELBO: the target's mean, and variances 1/Lambda_ii."""
    target = bs.targets.Gaussian.ill_conditioned(10, 100.0, seed=1)
    fit = bs.fit(target, DiagonalGaussian.init(10), ProximalRidge(), steps=3000)
    best = 1 / torch.linalg.inv(target.covariance).diagonal()
    assert (2 * fit.family.log_sd - best.log()).abs().max() < 0.3
    assert ((fit.family.mean - target.mean) / fit.family.sd).abs().max() < 0.5


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"draws": 0}, ValueError, "draws must be at least 1; got 0"),
        ({"mean_damping": -1.0}, ValueError, "mean_damping.*-1"),
        ({"mean_damping": "slow"}, ValueError, "mean_damping must be one of .*got 'slow'"),
        ({"damping": 99.0}, ValueError, "damping must be at least 100 at 1 draws; got 99"),
        ({"damping": 24.0, "draws": 4}, ValueError, "damping must be at least 25 at 4 draws; got 24"),
        ({"damping": "slow"}, ValueError, "damping must be one of .*got 'slow'"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        ProximalRidge(**options)


@pytest.mark.parametrize("kind", [k for k in EVERY if k != "diagonal"])
def test_every_family_but_the_diagonal_gaussian_is_refused(kind: str) -> None:
    q = family(kind)
    sentence = f"ProximalRidge cannot fit a {type(q).__name__}; it serves DiagonalGaussian"
    with pytest.raises(TypeError, match=sentence):
        ProximalRidge().check(q, Gaussian.random(3))
