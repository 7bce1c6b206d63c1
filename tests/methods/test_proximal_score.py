"""ProximalScore, the default rule of networks on a low-dimensional target: its steps, and where they lead."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian
from bayescore.methods import ProximalScore
from bayescore.rng import Streams
from bayescore.targets import Gaussian, NoisyScore
from cases import EVERY, Exact, family, normal, one_step, same_run, walk, z_score

TARGET = Gaussian(normal(5), torch.diag((0.7 * normal(5, seed=1)).exp()))
LR, BETAS = 0.02, (0.9, 0.999)


def remembered(values: list[float], memory: float) -> float:
    """The running mean without the bias of its start."""
    weights = [memory**k for k in reversed(range(len(values)))]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def shrunk(sums: list[tuple[float, float, float]], centre: float) -> float:
    """(9) of rules/proximal.py."""
    if not sums:
        return centre
    n = sum(0.99**k for k in range(len(sums)))
    x, y, z = (remembered([row[i] for row in sums], 0.99) for i in range(3))
    information, prior = n * y * y / z, centre**-2.0
    return (x / y * information + centre * prior) / (information + prior)


class WrittenOut:
    """The rule with all coordinates as one tensor, N = 1, a flat prior and no limit on the cost."""

    def __init__(self, mean: Tensor, T: int) -> None:
        self.mean, self.T, self.path = mean, T, 0.0
        self.a = self.v = torch.zeros_like(mean)
        self.sums: list[tuple[float, float, float]] = []

    def rate(self) -> float:
        return LR * 0.5 * (1 + math.cos(math.pi * len(self.sums) / self.T))

    def sd(self) -> Tensor:
        t = len(self.sums)
        reach = torch.full_like(self.mean, 0.1 * (self.path or self.rate()))
        if not t:
            return reach
        r = max(1.0, shrunk(self.sums, 32.0))
        rho = max(shrunk(self.sums, r), r / 10)
        tau = min(1.0, 1e-4 * 1.05**t)
        v = self.v / (1 - BETAS[1] ** t)
        return torch.minimum((tau / (rho * v)).sqrt(), reach)

    def inflation(self) -> float:
        if not self.sums:
            return 1.0
        x, z = [row[0] for row in self.sums], [row[2] for row in self.sums]
        variance = remembered([value**2 for value in x], 0.99) - remembered(x, 0.99) ** 2
        R = min(max(variance / remembered(z, 0.99), 1.0), 2 - 1 / 3)
        cost = max(0.0, 0.5 * remembered(x, 0.98))
        return 1 + cost / (cost + 0.002) * (1 / (2 - R) - 1)

    def step(self, eps: Tensor, target: Gaussian) -> None:
        d, lr, t = self.sd() * eps, self.rate(), len(self.sums) + 1  # (S, D)
        g = -target.score(self.mean + d)
        before = self.a / (1 - BETAS[0] ** (t - 1)) if t > 1 else self.a
        x = (d * (g - before)).mean(0)
        self.a = BETAS[0] * self.a + (1 - BETAS[0]) * g.mean(0)
        self.v = BETAS[1] * self.v + (1 - BETAS[1]) * g.mean(0) ** 2 / self.inflation()
        v = self.v / (1 - BETAS[1] ** t)
        self.mean = self.mean - lr * self.a / (1 - BETAS[0] ** t) / (v.sqrt() + 1e-8)
        y = v * d.square().mean(0)
        self.sums.append((float(x.sum()), float(y.sum()), float(x.square().sum())))
        self.path += lr


@pytest.mark.parametrize("draws", [1, 3])
def test_steps_are_those_of_the_rule_with_all_coordinates_as_one_tensor(draws: int) -> None:
    q, target, T = family("diagonal"), Gaussian.random(3), 40
    expected, random = WrittenOut(q.mean, T), Streams([0])
    for t in range(25):
        expected.step(random.normal(draws, 3)[0], target)
        after = walk(ProximalScore(LR, draws=draws), q, target, steps=t + 1, horizon=T)[0]
        torch.testing.assert_close(after.mean, expected.mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(after.sd, expected.sd(), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("draws", [1, 3])
def test_the_first_step_is_adams_from_nearly_the_mean(draws: int) -> None:
    """Every coordinate moves by lr uphill, and the sds are a tenth of that."""
    q, target = family("diagonal"), Gaussian.random(3)
    after = one_step(ProximalScore(1e-4, "constant", draws=draws), q, target)
    torch.testing.assert_close(after.mean, q.mean + 1e-4 * target.score(q.mean).sign(), rtol=0, atol=1e-9)
    assert float(after.sd.max()) <= 1e-5 * (1 + 1e-12)


def test_the_widths_of_the_start_do_not_matter() -> None:
    wide, narrow = family("diagonal"), family("diagonal")
    narrow = narrow.replace({"mean": narrow.mean, "log_sd": narrow.log_sd - 3})
    target = Gaussian.random(3)
    one, two = (walk(ProximalScore(), q, target, steps=20, horizon=40)[0] for q in (wide, narrow))
    assert torch.equal(one.flat(), two.flat())


def errors(fit: bs.Fit, target: Gaussian) -> tuple[Tensor, float]:
    """The errors of the log variances, against 1/Lambda_ii, and the largest of the means, in sds."""
    best = 1 / torch.linalg.inv(target.covariance).diagonal()
    q = fit.family
    assert isinstance(q, DiagonalGaussian)
    return 2 * q.log_sd - best.log(), float(((q.mean - target.mean) / q.sd).abs().max())


def fitted(target: bs.targets.Target, dim: int, steps: int, **options: float) -> list[bs.Fit]:
    return bs.fit_many(
        target, DiagonalGaussian.init(dim), ProximalScore(lr=LR, **options), steps=steps, seeds=range(4),
        metrics={}, record_every=steps, check=False,
    )  # fmt: skip


def test_it_arrives_at_a_diagonal_gaussian() -> None:
    for fit in fitted(TARGET, 5, 4000):
        log_variance, mean = errors(fit, TARGET)
        assert log_variance.abs().max() < 0.1
        assert mean < 0.15


def test_it_arrives_whatever_the_scale_of_the_precision() -> None:
    """A factor of 400 between the precisions, and of 20 between the sds."""
    target = Gaussian(normal(12), torch.diag(torch.logspace(-2.6, 0, 12, dtype=torch.float64)))
    for fit in fitted(target, 12, 6000):
        log_variance, mean = errors(fit, target)
        assert log_variance.abs().max() < 0.25
        assert log_variance.mean().abs() < 0.05
        assert mean < 0.4


def test_a_correlated_target_has_nearly_the_best_variances() -> None:
    """The squares contain the draws of the other weights, which Q takes off on average only."""
    target = Gaussian.ill_conditioned(10, 100.0, seed=1)
    for fit in fitted(target, 10, 4000):
        log_variance, mean = errors(fit, target)
        assert log_variance.abs().max() < 0.5
        assert log_variance.mean().abs() < 0.2
        assert mean < 0.3


def test_noise_on_the_scores_is_averaged_away() -> None:
    """The slope is that of all coordinates: noise in the squares takes their shape, not the mean width."""
    for fit in fitted(NoisyScore(TARGET, 0.5), 5, 4000):
        log_variance, mean = errors(fit, TARGET)
        assert log_variance.abs().max() < 0.5
        assert log_variance.mean().abs() < 0.15
        assert mean < 0.3


def test_a_run_that_begins_at_the_exact_mean_stays_there_and_finds_the_widths() -> None:
    q = family("diagonal", dim=5)
    many = type(q).stack([q] * 8)
    after = walk(ProximalScore(lr=LR), many, Exact(many), steps=2500, horizon=2500, seeds=list(range(8)))
    assert ((after.mean - many.mean) / many.sd).abs().max() < 0.3
    assert (after.log_sd - many.log_sd).abs().max() < 0.15
    assert (after.log_sd - many.log_sd).mean().abs() < 0.02


def test_at_the_exact_mean_the_first_step_has_no_expected_direction() -> None:
    n, q = 4000, family("diagonal")
    many = type(q).stack([q] * n)
    after = walk(ProximalScore(), many, Exact(many), seeds=list(range(n)))
    assert z_score(after.mean - many.mean).abs().max() < 4.5


def test_a_fit_does_not_depend_on_its_batch() -> None:
    targets = [Gaussian.random(3, seed=s) for s in range(3)]
    starts = [family("diagonal", seed=s) for s in range(3)]
    together = bs.fit_many(targets, starts, ProximalScore(), seeds=[4, 5, 6], steps=30, record_every=10)
    pair = bs.fit_many(targets[1:], starts[1:], ProximalScore(), seeds=[5, 6], steps=30, record_every=10)
    for one, other in zip(pair, together[1:], strict=True):
        same_run(one, other)


def test_a_saved_fit_has_its_betas_and_goes_on(tmp_path: Path) -> None:
    method = ProximalScore(betas=(0.8, 0.99))
    q = DiagonalGaussian.init(5)
    fit = bs.fit(TARGET, q, method, steps=20, metrics={}, progress=False)
    fit.save(tmp_path / "fit.safetensors")
    again = bs.Fit.load(tmp_path / "fit.safetensors")
    assert again.method == method
    assert again.method.betas == (0.8, 0.99)
    same_run(again, fit)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draws": 0}, "draws must be at least 1; got 0"),
        ({"lr": 0.0}, "lr must be positive; got 0.0"),
        ({"lr": float("nan")}, "lr.*nan"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\); got \(0.9, 1.0\)"),
        ({"betas": (-0.1, 0.9)}, "betas must be two numbers"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"betas": 0.9}, "betas must be two numbers"),
        ({"betas": ("a", 0.9)}, "betas must be two numbers"),
        ({"schedule": "never"}, "schedule must be one of .*cosine.*; got 'never'"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        ProximalScore(**options)


@pytest.mark.parametrize("kind", [k for k in EVERY if k != "diagonal"])
def test_every_family_but_the_diagonal_gaussian_is_refused(kind: str) -> None:
    q = family(kind)
    sentence = f"ProximalScore cannot fit a {type(q).__name__}; it serves DiagonalGaussian"
    with pytest.raises(TypeError, match=sentence):
        ProximalScore().check(q, Gaussian.random(3))
