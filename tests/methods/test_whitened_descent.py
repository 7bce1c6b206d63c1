"""Algorithm 1 in whitened coordinates: normalised steps, their limit on residuals, invariance, noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian, FullGaussian
from bayescore.methods import ProximalDescent, WhitenedDescent
from bayescore.rng import Streams
from bayescore.targets import Gaussian, NoisyScore, Target
from cases import F64, Exact, covariance, family, first_draws, kl, normal, one_step, walk

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


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_a_step_is_the_gradient_of_the_standardised_loss_at_its_rates(kind: str, draws: int) -> None:
    method = WhitenedDescent(inner_steps=1, draws=draws, lr=0.02, schedule="constant")
    q = family(kind).in_form("precision")
    theta = first_draws(method, q, draws, 0)
    L = q.factor if kind == "full" else torch.diag(1 / q.sd)
    x = (theta - q.mean) @ L
    s = torch.linalg.solve(L, FAR.score(theta).mT).mT
    s = -x + (s + x).clamp(-1, 1)
    mean = torch.zeros(3, dtype=F64, requires_grad=True)
    raw = torch.zeros(*L.shape if kind == "full" else L.shape[:1], dtype=F64, requires_grad=True)
    inner = raw.tril(-1) + raw.diagonal().exp().diag() if kind == "full" else (-raw).exp().diag()
    loss = ((mean - x) @ inner @ inner.T - s).square().sum(-1).mean()
    d_mean, d_raw = torch.autograd.grad(loss, (mean, raw))
    squares = x.square().mean(-2) / draws
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
    a, b = (one_step(WhitenedDescent(), q, Shifted(q, r)).flat() for r in (residual, wild))
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    smaller = one_step(WhitenedDescent(), q, Shifted(q, 0.5 * residual)).flat()
    assert (a - smaller).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_the_exact_posterior_stays_to_the_last_digit(kind: str) -> None:
    q = family(kind).in_form("precision")
    after = one_step(WhitenedDescent(lr=1.0, inner_steps=5), q, Exact(type(q).stack([q])))
    torch.testing.assert_close(after.flat(), q.flat(), rtol=1e-12, atol=1e-12)


def test_it_keeps_no_moments() -> None:
    q = FullGaussian.stack([FullGaussian.init(4)])
    state = WhitenedDescent().init(q, 10)
    assert state.first.numel() == state.second.numel() == state.scale.numel() == 0
    assert WhitenedDescent(optimizer="adam").init(q, 10).second.numel() == q.flat().numel()


@pytest.mark.parametrize(
    "q", [FullGaussian.init(3), DiagonalGaussian.init(3)], ids=lambda q: type(q).__name__
)
def test_normalised_descent_is_the_default(q: FullGaussian | DiagonalGaussian) -> None:
    said = WhitenedDescent(optimizer="normalised", inner_steps=2, lr=0.1)
    a, b = (one_step(method, q, FAR).flat() for method in (said, WhitenedDescent()))
    assert torch.equal(a, b)


def test_strong_noise_on_the_scores_is_averaged_away() -> None:
    """On every seed, from a start that is too narrow."""
    target = Gaussian(torch.zeros(3, dtype=F64), covariance(3, 4))
    noisy, start = NoisyScore(target, beta=1.0), FullGaussian.init(3, scale=0.1)
    fits = bs.fit_many(noisy, start, WhitenedDescent(), steps=1500, seeds=range(4), metrics={})
    divergences = [kl(target.mean, target.covariance, fit.family.mean, fit.family.covariance) for fit in fits]
    assert max(divergences) < 0.1


# -- whatever the optimizer --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "lr": 1e-3}, {"optimizer": "adam"}])
def test_a_transformed_problem_takes_the_transformed_steps(kind: str, options: dict) -> None:
    """Any triangular change of variables for a full Gaussian, any units for a diagonal one; five steps."""
    method = WhitenedDescent(inner_steps=4, **options)
    q, shift = family(kind), normal(3, seed=7)
    scales = (3 * normal(3, seed=8)).exp()
    A = torch.diag(scales) @ (torch.eye(3, dtype=F64) + normal(3, 3, seed=9).triu(1) * (kind == "full"))
    target = Gaussian(A @ FAR.mean + shift, A @ FAR.covariance @ A.T)
    if kind == "full":
        moved = FullGaussian.from_moments(A @ q.mean + shift, A @ q.covariance @ A.T)
    else:
        moved = DiagonalGaussian(scales * q.mean + shift, q.log_sd + scales.log())
    one, other = (walk(method, start, goal, steps=5)[0] for start, goal in ((q, FAR), (moved, target)))
    inverse = torch.linalg.inv(A)
    torch.testing.assert_close(inverse @ (other.mean - shift), one.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(inverse @ other.covariance @ inverse.T, one.covariance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", ["full", "precision", "diagonal"])
def test_the_first_step_from_a_standard_normal_is_that_of_algorithm_1(kind: str, optimizer: str) -> None:
    """There the norm of the covariance is the Euclidean one, and so is the step."""
    q = DiagonalGaussian.init(3) if kind == "diagonal" else FullGaussian.init(3)
    q = q.in_form("precision") if kind == "precision" else q
    options = {"inner_steps": 4, "draws": 2, "optimizer": optimizer, "floor": 0.0}
    a = one_step(WhitenedDescent(**options), q, FAR)
    b = one_step(ProximalDescent(**options), q, FAR)
    torch.testing.assert_close(a.flat(), b.flat(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "inner_steps": 20}])
def test_a_start_that_is_far_too_narrow_arrives(options: dict) -> None:
    target, starts = Gaussian.random(3, seed=4), [FullGaussian.init(3, scale=sd) for sd in (1e-4, 1e-2, 1.0)]
    method = WhitenedDescent(draws=4, **options)
    for fit in bs.fit_many(target, starts, method, steps=1000, seeds=[0, 1, 2], record_every=1000):
        assert kl(target.mean, target.covariance, fit.family.mean, fit.family.covariance) < 1e-2


@pytest.mark.parametrize("kind", ["low-rank", "mixture", "planar", "realnvp"])
def test_other_families_are_refused(kind: str) -> None:
    q = family(kind)
    sentence = f"WhitenedDescent cannot fit a {type(q).__name__}; it serves FullGaussian, DiagonalGaussian"
    with pytest.raises(TypeError, match=sentence):
        WhitenedDescent().check(q, FAR)


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"inner_steps": 0}, ValueError, "inner_steps must be at least 1; got 0"),
        ({"inner_steps": 2.5}, TypeError, "inner_steps must be a whole number; got 2.5"),
        ({"draws": -1}, ValueError, "draws must be at least 1; got -1"),
        ({"alpha": "sideways"}, ValueError, "alpha must be one of .*linear.*; got 'sideways'"),
        ({"alpha": -0.5}, ValueError, "alpha must be .*not negative; got -0.5"),
        ({"alpha": float("nan")}, ValueError, "alpha.*nan"),
        ({"alpha": None}, (TypeError, ValueError), "alpha.*None"),
        ({"lr": 0.0}, ValueError, "lr must be positive; got 0.0"),
        ({"lr": float("inf")}, ValueError, "lr.*inf"),
        ({"lr": "fast"}, (TypeError, ValueError), "lr.*fast"),
        ({"schedule": "never"}, ValueError, "schedule must be one of .*cosine.*; got 'never'"),
        ({"optimizer": "lbfgs"}, ValueError, "optimizer must be 'normalised', 'adam' or 'sgd'; got 'lbfgs'"),
        ({"floor": -0.1}, ValueError, "floor must not be negative; got -0.1"),
        ({"floor": float("nan")}, ValueError, "floor.*nan"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        WhitenedDescent(**options)
