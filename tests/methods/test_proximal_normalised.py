"""Normalised descent, the default for Gaussians: its step, its limit on residuals, and noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian, FullGaussian
from bayescore.methods import ProximalScore
from bayescore.rng import Streams
from bayescore.targets import Gaussian, NoisyScore, Target
from cases import F64, Exact, covariance, family, first_draws, kl, normal, one_step

FAR = Gaussian(normal(3, seed=50), covariance(3, 51))


class Shifted(Target):
    """Scores of q itself plus a residual that is the same everywhere, in standardised units of q."""

    name = "shifted"
    has_density = False

    def __init__(self, q: FullGaussian, residual: Tensor) -> None:
        self.q, self.dim = type(q).stack([q]), q.dim
        self.residual = q.factor @ residual  # the score of a precision factor L is L times the standardised

    def log_prob(self, x: Tensor) -> Tensor:
        raise TypeError("scores only")

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        return self.q.score(x) + self.residual


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_a_step_is_the_gradient_of_the_standardised_loss_at_its_rates(kind: str, samples: int) -> None:
    method = ProximalScore(inner_steps=1, samples=samples, learning_rate=0.02, decay="constant")
    q = family(kind).in_form("precision")
    theta = first_draws(method, q, samples, 0)
    L = q.factor if kind == "full" else torch.diag(1 / q.sd)
    x = (theta - q.mean) @ L
    s = torch.linalg.solve(L, FAR.score(theta).mT).mT
    s = -x + (s + x).clamp(-1, 1)
    mean = torch.zeros(3, dtype=F64, requires_grad=True)
    raw = torch.zeros(*L.shape if kind == "full" else L.shape[:1], dtype=F64, requires_grad=True)
    inner = raw.tril(-1) + raw.diagonal().exp().diag() if kind == "full" else (-raw).exp().diag()
    loss = ((mean - x) @ inner @ inner.T - s).square().sum(-1).mean()
    d_mean, d_raw = torch.autograd.grad(loss, (mean, raw))
    squares = x.square().mean(-2) / samples
    rate = 0.01 / (1 + (squares.sum() if kind == "full" else squares))
    change = -rate * d_raw
    inner = change.tril(-1) + change.diagonal().exp().diag() if kind == "full" else (-change).exp().diag()
    expected_mean = q.mean + torch.linalg.solve(L.T, -0.01 * d_mean)
    expected = torch.linalg.inv(L @ inner @ inner.T @ L.T)
    after = one_step(method, q, FAR)
    torch.testing.assert_close(after.mean, expected_mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(after.covariance, expected, rtol=1e-8, atol=1e-10)


def test_a_residual_beyond_one_counts_as_one_in_each_coordinate() -> None:
    q = family("full").in_form("precision")
    residual = torch.tensor([0.3, -1.0, 1.0], dtype=F64)
    wild = torch.tensor([0.3, -1e6, 7.0], dtype=F64)
    a, b = (one_step(ProximalScore(), q, Shifted(q, r)).flat() for r in (residual, wild))
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    smaller = one_step(ProximalScore(), q, Shifted(q, 0.5 * residual)).flat()
    assert (a - smaller).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_the_exact_posterior_stays_to_the_last_digit(kind: str) -> None:
    q = family(kind).in_form("precision")
    after = one_step(ProximalScore(learning_rate=1.0, inner_steps=5), q, Exact(type(q).stack([q])))
    torch.testing.assert_close(after.flat(), q.flat(), rtol=1e-12, atol=1e-12)


def test_it_keeps_no_moments() -> None:
    q = FullGaussian.stack([FullGaussian.init(4)])
    state = ProximalScore().init(q, 10)
    assert state.first.numel() == state.second.numel() == state.scale.numel() == 0
    assert ProximalScore(optimizer="adam").init(q, 10).second.numel() == q.flat().numel()


@pytest.mark.parametrize(
    "q", [FullGaussian.init(3), DiagonalGaussian.init(3)], ids=lambda q: type(q).__name__
)
def test_it_is_what_gaussians_get_without_a_word(q: FullGaussian | DiagonalGaussian) -> None:
    said = ProximalScore(optimizer="normalised", metric="covariance", inner_steps=2, learning_rate=0.1)
    a, b = (one_step(method, q, FAR).flat() for method in (said, ProximalScore()))
    assert torch.equal(a, b)


def test_strong_noise_on_the_scores_is_averaged_away() -> None:
    """On every seed, from a start that is too narrow."""
    target = Gaussian(torch.zeros(3, dtype=F64), covariance(3, 4))
    noisy, start = NoisyScore(target, beta=1.0), FullGaussian.init(3, scale=0.1)
    fits = bs.fit_many(noisy, start, ProximalScore(), steps=1500, seeds=range(4), metrics={})
    divergences = [kl(target.mean, target.covariance, fit.family.mean, fit.family.covariance) for fit in fits]
    assert max(divergences) < 0.1


@pytest.mark.parametrize("kind", ["low-rank", "mixture", "planar"])
def test_other_families_are_refused(kind: str) -> None:
    q = family(kind)
    with pytest.raises(TypeError, match=f"optimizer='normalised' cannot fit a {type(q).__name__}; it serves"):
        ProximalScore(optimizer="normalised").check(q, FAR)


def test_it_is_refused_in_the_euclidean_norm() -> None:
    with pytest.raises(ValueError, match=r"needs the norm of Cov\(q_t\); drop metric='euclidean'"):
        ProximalScore(optimizer="normalised", metric="euclidean")
