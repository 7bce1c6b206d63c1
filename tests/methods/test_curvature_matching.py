"""CurvatureMatching: Newton steps on the ELBO of a spiked Gaussian, in any rotation and any units."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bayescore as bs
from bayescore.families import LowRankGaussian, SpikedGaussian
from bayescore.methods import BaM, CurvatureMatching
from bayescore.methods.curvature_matching import _rescaled
from bayescore.targets import LogDensity, ScoreFunction
from cases import F64, Exact, family, kl, normal, one_step, scores_only, walk


def rotated(spectrum: Tensor, seed: int = 0) -> tuple[LogDensity, Tensor, Tensor]:
    """A Gaussian whose covariance has the given eigenvalues in a random rotation, normalised; mean and V."""
    dim = len(spectrum)
    R, _ = torch.linalg.qr(normal(dim, dim, seed=seed))
    mean, precision = normal(dim, seed=seed + 1), (R / spectrum) @ R.T
    constant = 0.5 * (dim * math.log(2 * math.pi) + spectrum.log().sum())

    def log_prob(x: Tensor) -> Tensor:
        d = x - mean
        return -0.5 * (d @ precision * d).sum(-1) - constant

    return LogDensity(log_prob, dim), mean, (R * spectrum) @ R.T


def narrow(dim: int = 60, count: int = 6) -> Tensor:
    spectrum = torch.ones(dim, dtype=F64)
    spectrum[:count] = 1e-4
    return spectrum


def test_with_as_many_directions_as_dimensions_any_gaussian_is_found_exactly() -> None:
    target, mean, covariance = rotated(torch.logspace(-2, 2, 6, dtype=F64))
    fit = bs.fit(target, SpikedGaussian.init(6, rank=6), CurvatureMatching(), steps=40, progress=False)
    x = fit.family.sample(10, seed=0)
    exact = torch.distributions.MultivariateNormal(mean, covariance).log_prob(x)
    torch.testing.assert_close(fit.family.log_prob(x), exact, rtol=1e-9, atol=1e-9)


@given(dim=st.integers(3, 8), seed=st.integers(0, 1000), pairs=st.integers(2, 4))
@settings(max_examples=20)
def test_a_step_leaves_the_exact_posterior_fixed_whatever_the_draws(dim: int, seed: int, pairs: int) -> None:
    q = family("spiked", dim, seed)
    after = one_step(CurvatureMatching(pairs), q, Exact(type(q).stack([q])), seed=seed)
    torch.testing.assert_close(after.mean, q.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(after.covariance, q.covariance, rtol=1e-7, atol=1e-7)


@given(seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_rescaling_the_diagonal_keeps_narrow_directions_in_the_precision_and_wide_ones_in_the_covariance(
    seed: int,
) -> None:
    q = family("spiked", 7, seed, rank=3)
    ratio = 0.3 * normal(7, seed=seed)
    s, change = q.sd, (q.sd * ratio.exp()).square()
    for h in (q.log_stretch.abs(), -q.log_stretch.abs()):  # all wide, all narrow
        one_sided = q.replace({**q.parameters(), "log_stretch": h})
        new = _rescaled(type(q).stack([one_sided]), ratio[None])[0]
        U = one_sided.directions
        if float(h[0]) > 0:
            outside = (s.unsqueeze(-1) * U * (2 * h).expm1()) @ (s.unsqueeze(-1) * U).T
            torch.testing.assert_close(new.covariance, torch.diag(change) + outside)
        else:
            outside = (U / s.unsqueeze(-1) * (-2 * h).expm1()) @ (U / s.unsqueeze(-1)).T
            torch.testing.assert_close(torch.linalg.inv(new.covariance), torch.diag(1 / change) + outside)


def test_a_rotated_target_of_condition_1e4_is_found_where_low_rank_bam_is_lost() -> None:
    """Six narrow directions in a random rotation: a low-rank precision, no low-rank covariance."""
    target, mean, covariance = rotated(narrow())
    q = walk(CurvatureMatching(), SpikedGaussian.init(60, 10), target, steps=40, horizon=40)[0]
    assert kl(q.mean, q.covariance, mean, covariance) < 0.1
    start = LowRankGaussian.init(60, 10, mean=mean)
    old = walk(BaM(64, "decay"), start, target, steps=30, horizon=30)[0]
    assert kl(old.mean, old.covariance, mean, covariance) > 1000


def test_wide_directions_are_found_too() -> None:
    spectrum = torch.full((60,), 1e-4, dtype=F64)
    spectrum[:6] = 1.0
    target, mean, covariance = rotated(spectrum, seed=3)
    q0 = SpikedGaussian.init(60, 10, scale=0.01, mean=mean)
    q = walk(CurvatureMatching(), q0, target, steps=40, horizon=40)[0]
    assert kl(q.mean, q.covariance, mean, covariance) < 0.5


def test_beyond_the_family_it_ends_above_the_best_diagonal() -> None:
    """Eigenvalues from 1 to 1e-4 in a random rotation: ten directions cannot hold them."""
    target, mean, covariance = rotated(torch.logspace(0, -4, 60, dtype=F64), seed=5)
    precision = torch.linalg.inv(covariance)
    best = kl(mean, torch.diag(1 / precision.diagonal()), mean, covariance)
    sd = precision.diagonal().rsqrt()
    q0 = SpikedGaussian.init(60, 10, mean=mean)
    q0 = q0.replace({**q0.parameters(), "log_sd": sd.log()})
    q = walk(CurvatureMatching(), q0, target, steps=40, horizon=40)[0]
    assert kl(q.mean, q.covariance, mean, covariance) < 0.9 * best


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale: float) -> None:
    target, _, _ = rotated(narrow(12, 2), seed=2)
    scaled = ScoreFunction(lambda x: target.score(x / scale) / scale, 12)
    q0 = SpikedGaussian.init(12, 3)
    other = q0.replace({**q0.parameters(), "log_sd": q0.log_sd + math.log(scale)})
    method = CurvatureMatching(4)
    one = walk(method, q0, scores_only(target), steps=5)[0]
    two = walk(method, other, scaled, steps=5)[0]
    torch.testing.assert_close(two.mean / scale, one.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(two.covariance / scale**2, one.covariance, rtol=1e-5, atol=1e-8)


def test_a_step_that_makes_the_elbo_worse_is_taken_back() -> None:
    """exp(x) in the density: a Newton step from a wide start goes far too far."""
    weights = 3 * normal(20, 20, seed=1)
    target = LogDensity(lambda x: (x @ weights - (x @ weights).exp()).sum(-1) - 0.5 * x.square().sum(-1), 20)
    q0 = SpikedGaussian.init(20, 5, scale=0.05)
    elbo = bs.metrics.ELBO(2000)
    q = walk(CurvatureMatching(), q0, target, steps=60, horizon=60)[0]
    assert float(elbo(q, target)) > float(elbo(q0, target)) + 3


def test_no_square_matrix_is_formed() -> None:
    """At 50,000 dimensions a square matrix would take 20 GB."""
    q0 = SpikedGaussian.init(50_000, 3)
    after = one_step(CurvatureMatching(2), q0, ScoreFunction(lambda x: -x, 50_000))
    assert after.flat().isfinite().all()


def test_beyond_400_dimensions_the_automatic_fit_takes_it() -> None:
    spectrum = torch.ones(420, dtype=F64)
    spectrum[:8] = 1e-4
    target, mean, _ = rotated(spectrum, seed=7)
    fit = bs.fit(target, progress=False)
    assert isinstance(fit.family, SpikedGaussian)
    assert isinstance(fit.method, CurvatureMatching)
    assert fit.verdict.startswith("good")
    assert fit.elbo.value > -2  # of at most 0: the target is normalised. Seeds end between -1.1 and 0
    assert fit.score_calls < 12_000
    assert (fit.family.mean - mean).abs().max() < 0.05
