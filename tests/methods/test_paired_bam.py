"""PairedBaM: noise used twice, no bias from noisy scores, and pairs of steps of which one is missing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian
from bayescore.methods import BaM, PairedBaM
from bayescore.rng import Streams
from bayescore.rules.bam import PairedOptions, paired_lam, paired_slope, paired_step
from bayescore.rules.curvature import follow
from bayescore.targets import Gaussian, NoisyScore, ScoreFunction, Target
from bayescore.targets.counting import CountingOracle
from cases import EVERY, Exact, batch, family, normal, same_run, streams, walk

TARGET = Gaussian(normal(5), torch.diag((0.7 * normal(5, seed=1)).exp()))


class Listening(Target):
    """Scores of another target; keeps the points at which they were asked for."""

    name = "listening"
    has_density = False

    def __init__(self, inner: Target) -> None:
        self.inner, self.dim, self.points = inner, inner.dim, []

    def log_prob(self, x: Tensor) -> Tensor:
        raise TypeError("scores only")

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        self.points.append(x.clone())
        return self.inner.score(x)


def test_noise_comes_in_antithetic_pairs_and_is_used_in_two_successive_steps() -> None:
    target, method, random = Listening(Gaussian.random(3)), PairedBaM(draws=4), streams(2)
    oracle, state, noise = CountingOracle(target, random), method.init(batch("diagonal", 2), 10), []
    fresh, expected = streams(2), []
    with torch.no_grad():
        for t in range(6):
            q = state.family
            state, _ = method.step(state, oracle, random)
            points = target.points[-1].reshape(2, 4, 3)
            noise.append((points - q.mean.unsqueeze(1)) / q.sd.unsqueeze(1))
            expected.append(fresh.normal(2, 3) if t % 2 == 0 else expected[-1])
    for t, (eps, drawn) in enumerate(zip(noise, expected, strict=True)):
        torch.testing.assert_close(eps[:, ::2], -eps[:, 1::2], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(eps[:, ::2], drawn, rtol=1e-9, atol=1e-9)
        if t % 2 == 0 and t:
            assert (eps - noise[t - 1]).abs().max() > 0.1, "another pair of steps has other noise"
    assert torch.equal(random.state(), fresh.state()), "the second of two steps draws nothing"


def test_steps_are_those_of_the_rule_and_the_variance_moves_in_every_second_one() -> None:
    """Four steps written out, with a flat prior and c = 1."""
    q, target, pairs = family("diagonal"), Gaussian.random(3), 2
    mean, sd, random, zeros = q.mean, q.sd, Streams([0]), torch.zeros_like(q.mean)
    statistics, half, size = zeros.new_zeros(1, 4), zeros, zeros.new_tensor([3.0])
    for t in range(4):
        noise = random.normal(pairs, 3)[0] if t % 2 == 0 else noise  # noqa: F821
        plus, minus = -target.score(mean + sd * noise), -target.score(mean - sd * noise)
        d, e, G = 0.5 * (plus - minus).sum(0), noise.sum(0), 0.5 * (plus + minus).mean(0)
        o = PairedOptions(1.0, 0.0, torch.inf, 0.2, pairs, zeros)
        if t % 2:
            slope = [term.sum() for term in paired_slope(sd, half, d, e, o)]
            follow(statistics, torch.stack(slope)[None], size)
            o = o._replace(lam=paired_lam(statistics, 500.0))
        before = sd
        (mean, sd, half), _ = paired_step(mean, sd, half, 0.0, G, zeros, d, e, o)
        assert torch.equal(sd, before) == (t % 2 == 0)
        after = walk(PairedBaM(draws=4), q, target, steps=t + 1)[0]
        torch.testing.assert_close(after.mean, mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(after.sd, sd, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("draws", [2, 6])
def test_it_leaves_the_exact_posterior_fixed(draws: int) -> None:
    q = family("diagonal")
    after = walk(PairedBaM(draws=draws, damping=1.0), q, Exact(type(q).stack([q])), steps=8)[0]
    torch.testing.assert_close(after.flat(), q.flat(), rtol=1e-12, atol=1e-12)


def log_variances(fits: list[bs.Fit]) -> Tensor:
    """Their errors, (F, D)."""
    return torch.stack([2 * fit.family.log_sd - TARGET.covariance.diagonal().log() for fit in fits])


def means(fits: list[bs.Fit]) -> Tensor:
    return torch.stack([(fit.family.mean - TARGET.mean) / fit.family.sd for fit in fits])


def run(target: Target, method: PairedBaM | BaM, steps: int = 2000) -> list[bs.Fit]:
    start = DiagonalGaussian.init(5)
    return bs.fit_many(target, start, method, steps=steps, seeds=range(4), metrics={}, record_every=steps)


@pytest.mark.parametrize(("method", "most"), [(PairedBaM(), 0.4), (PairedBaM(damping=50.0, draws=4), 0.1)])
def test_it_arrives_at_a_diagonal_gaussian(method: PairedBaM, most: float) -> None:
    """With its defaults it forgets the initial variance over about a thousand steps."""
    fits = run(TARGET, method)
    assert log_variances(fits).abs().max() < most
    assert means(fits).abs().max() < 1e-3


def test_noisy_scores_make_published_bam_too_narrow_and_the_paired_form_not() -> None:
    noisy = NoisyScore(TARGET, 0.5)
    published = log_variances(run(noisy, BaM()))
    paired = log_variances(run(noisy, PairedBaM(damping=50.0, draws=4)))
    assert published.mean() < -0.2
    assert paired.mean().abs() < 0.05
    assert paired.abs().max() < 0.3


def test_a_fit_does_not_depend_on_its_batch() -> None:
    targets, starts = (
        [Gaussian.random(3, seed=s) for s in range(3)],
        [family("diagonal", seed=s) for s in range(3)],
    )
    options = {"steps": 30, "record_every": 10}
    together = bs.fit_many(targets, starts, PairedBaM(), seeds=[4, 5, 6], **options)
    pair = bs.fit_many(targets[1:], starts[1:], PairedBaM(), seeds=[5, 6], **options)
    for one, other in zip(pair, together[1:], strict=True):
        same_run(one, other)


# -- one of two steps is missing --------------------------------------------------------------------------


def paths(skipped: set[int], member: int | None = 1) -> tuple[list[bs.Fit], Tensor]:
    """Three fits of which one gets no finite score in some steps, and their families, (steps + 1, F, 2 D)."""
    calls = []

    def score(x: Tensor) -> Tensor:
        rows = (-2 * x).reshape(3, -1, 3)
        if member is not None and len(calls) in skipped:
            rows = rows.index_fill(0, torch.tensor([member]), torch.nan)
        calls.append(len(x))
        return rows.reshape(-1, 3)

    seen: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}
    fits = bs.fit_many(
        ScoreFunction(score, 3),
        family("diagonal"),
        PairedBaM(damping=5.0),
        steps=12,
        seeds=[0, 1, 2],
        record_every=1,
        check=False,
        callbacks=[lambda fit: seen[fit.seed].append(fit.family.flat().clone()) and None],
    )
    start = family("diagonal").flat()
    return fits, torch.stack([torch.stack([start, *seen[i]]) for i in range(3)], 1)


@pytest.mark.parametrize("skipped", [{0}, {1}, {0, 1}, {4}, {5}, {4, 5}, {5, 6}], ids=str)
def test_a_pair_with_a_skipped_step_does_not_move_the_variance(
    skipped: set[int],
) -> None:
    clean, _ = paths(set(), None)
    fits, path = paths(skipped)
    assert [fit.counts.skipped_steps for fit in fits] == [0, len(skipped), 0]
    for i in (0, 2):
        same_run(fits[i], clean[i])
    mine, sd = path[:, 1], path[:, 1, 3:].exp()
    assert mine.isfinite().all()
    broken = {t // 2 for t in skipped}
    for t in range(12):
        moved = bool((sd[t + 1] - sd[t]).abs().max() > 1e-12)  # log(exp(.)) rounds
        assert moved == (t % 2 == 1 and t // 2 not in broken), f"step {t}"
        assert torch.equal(mine[t + 1], mine[t]) == (t in skipped), f"step {t}"


def test_a_pair_that_is_broken_counts_for_nothing_in_the_slope_statistics() -> None:
    clean, _ = paths(set(), None)
    fits, _ = paths({4})
    assert [int(fit.state.statistics[0, 3]) for fit in clean] == [6, 6, 6]
    assert [int(fit.state.statistics[0, 3]) for fit in fits] == [6, 5, 6]


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"draws": 3}, ValueError, "draws come in pairs; give an even number, got 3"),
        ({"draws": 1}, ValueError, "draws must be at least 2; got 1"),
        ({"draws": 2.5}, TypeError, "draws must be a whole number; got 2.5"),
        ({"lr": 0.0}, ValueError, "lr must be positive; got 0.0"),
        ({"damping": -1.0}, ValueError, "damping must be positive; got -1.0"),
        ({"damping": float("nan")}, ValueError, "damping.*nan"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        PairedBaM(**options)


@pytest.mark.parametrize("kind", [k for k in EVERY if k != "diagonal"])
def test_every_family_but_the_diagonal_gaussian_is_refused(kind: str) -> None:
    q = family(kind)
    sentence = f"PairedBaM cannot fit a {type(q).__name__}; it serves DiagonalGaussian"
    with pytest.raises(TypeError, match=sentence):
        PairedBaM().check(q, Gaussian.random(3))
