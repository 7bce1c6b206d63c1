"""The diagnosis: shifts under importance weights, as many draws as a grade needs, and what it says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.inference.diagnosis import (
    FIRST_DRAWS,
    MOST_DRAWS,
    Shifts,
    diagnose,
    left_over,
    quantile_shifts,
    unseen,
)
from bayescore.inference.result import Trust
from bayescore.targets import LogDensity
from cases import F64


def normal(mean: float = 0.0, sd: float = 1.0, dim: int = 2) -> LogDensity:
    return LogDensity(lambda x: -0.5 * ((x - mean) / sd).square().sum(-1), dim)


def held(target: bs.targets.Target, sd: float = 1.0, seed: int = 0) -> bs.Fit:
    """A fit that stays at N(0, sd^2 I)."""
    q = bs.families.FullGaussian.init(target.dim, scale=sd)
    return bs.fit(target, q, bs.methods.ADVI(lr=1e-12), steps=1, seed=seed, progress=False)


def test_equal_weights_move_nothing() -> None:
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    shifts = Shifts.of(x, torch.full((1000,), 1e-3, dtype=F64))
    torch.testing.assert_close(shifts.mean, torch.zeros(3, dtype=F64), atol=1e-12, rtol=0)
    torch.testing.assert_close(shifts.sd, torch.zeros(3, dtype=F64), atol=1e-3, rtol=0)
    torch.testing.assert_close(shifts.mean_error, torch.full((3,), 1000**-0.5, dtype=F64), rtol=0.01, atol=0)


def test_shifts_are_those_of_the_target_and_their_errors_are_the_size_of_the_actual_ones() -> None:
    found = []
    for seed in range(20):
        shifts = held(normal(0.2, 0.9), seed=seed).diagnosis.shifts
        found += [
            (shifts.mean - 0.2 / 0.9) / shifts.mean_error,
            (shifts.sd - math.log(0.9)) / shifts.sd_error,
        ]
    scores = torch.cat(found)
    assert scores.abs().max() < 4.5
    assert scores.std() < 1.5  # errors are not understated; q's own mean has the same draws


def test_quantiles_under_weights_are_those_of_the_target_and_their_errors_the_size_of_the_actual_ones() -> (
    None
):
    rng = torch.Generator().manual_seed(3)
    mean, sd, levels = 0.3, 0.8, (0.05, 0.5, 0.95)
    exact = [mean + sd * z for z in (-1.6448536, 0.0, 1.6448536)]  # quantiles of N(mean, sd^2)
    scores = []
    for _ in range(40):
        x = torch.randn(4000, 2, generator=rng, dtype=F64)
        ratio = -0.5 * ((x[:, 0] - mean) / sd).square() + 0.5 * x[:, 0].square()
        weights = ratio.softmax(0)
        shifts, errors = quantile_shifts(x[:, :1], weights, levels)
        own = torch.quantile(x[:, 0], torch.tensor(levels, dtype=F64))
        truth = (torch.tensor(exact, dtype=F64) - own) / sd
        scores.append((shifts[0] - truth) / errors[0])
    found = torch.stack(scores)
    assert found.abs().max() < 4.5
    assert 0.6 < found.std() < 1.4


def test_blocks_of_columns_give_the_quantiles_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(4)
    x, weights = torch.randn(50, 7, generator=rng, dtype=F64), torch.rand(50, generator=rng, dtype=F64)
    whole = quantile_shifts(x, weights / weights.sum(), (0.05, 0.95))
    monkeypatch.setattr("bayescore.inference.diagnosis.SORTED_NUMBERS", 150)  # three columns at once
    parts = quantile_shifts(x, weights / weights.sum(), (0.05, 0.95))
    assert all(torch.equal(one, two) for one, two in zip(whole, parts, strict=True))


def test_a_parameter_that_does_not_vary_has_no_shift() -> None:
    x = torch.stack([torch.linspace(-1, 1, 100, dtype=F64), torch.ones(100, dtype=F64)], -1)
    weights = torch.full((100,), 0.01, dtype=F64)
    assert all(bool((part[1] == 0).all()) for part in quantile_shifts(x, weights, (0.05, 0.95)))
    shifts = Shifts.of(x, weights)
    assert float(shifts.sd[1]) == float(shifts.mean[1]) == float(shifts.mean_error[1]) == 0.0


@pytest.mark.parametrize(
    ("target", "trust", "words"),
    [
        (normal(0.03, 0.97), Trust.GOOD, "good"),
        (normal(0.4, 0.9), Trust.USABLE, "usable after resampling: importance weights move"),
        (normal(0.0, 3.0), Trust.POOR, "do not trust this approximation"),
    ],
    ids=["good", "usable", "poor"],
)
def test_the_grade_is_the_same_for_every_seed(target: LogDensity, trust: Trust, words: str) -> None:
    fits = [held(target, seed=seed) for seed in range(10)]
    assert {fit.trust for fit in fits} == {trust}
    assert all(fit.verdict.startswith(words) for fit in fits)


def test_draws_are_added_while_the_grade_is_open_or_weights_have_to_correct_q() -> None:
    asked = []

    def diagnosed(target: LogDensity) -> int:
        q = bs.families.FullGaussian.init(2)
        asked.clear()

        def draw(n: int, block: int) -> Tensor:
            asked.append(n)
            return q.sample(n, 100 + block)

        diagnose(draw, lambda x: target.log_prob(x) - q.log_prob(x), lambda x: x)
        return sum(asked)

    assert diagnosed(normal(0.01, 0.98)) == FIRST_DRAWS
    assert diagnosed(normal(0.1, 0.95)) == MOST_DRAWS  # a shift at the threshold
    assert diagnosed(normal(0.4, 0.9)) == MOST_DRAWS  # weights have to correct it


def test_resampled_draws_of_a_usable_fit_have_the_moments_of_the_target() -> None:
    x = held(normal(0.4, 0.9)).resample(4000, seed=1)
    assert (x.mean(0) - 0.4).abs().max() < 0.1 * 0.9
    assert (x.std(0) / 0.9).log().abs().max() < 0.1


def test_the_summary_has_every_parameter_with_its_accuracy() -> None:
    parameters = {"mu": bs.targets.Real(), "tau": bs.targets.Positive(30)}
    model = bs.targets.TorchModel(
        parameters, lambda mu, tau: -0.5 * mu**2 - 0.5 * (4 * (tau.log() - 0.3)).square().sum()
    )
    fit = bs.fit(model, progress=False)
    table = fit.marginals()
    assert [row.name for row in table] == ["mu", *(f"tau[{i}]" for i in range(1, 31))]
    assert all(
        name in fit.summary() for name in ("mean is off by", "sd is off by", "5%, 95% are off by", "tau[30]")
    )
    assert all(abs(row.mean_shift) < 0.1 for row in table)
    assert all(abs(shift) < 0.2 for row in table for shift in row.quantile_shifts)
    assert all(0 < error < 0.1 for row in table for error in row.quantile_shift_errors)


def test_without_a_density_the_table_has_no_accuracy() -> None:
    fit = bs.fit(bs.targets.ScoreFunction(lambda x: -x, 2), progress=False)
    assert "off by" not in fit.summary()
    assert fit.marginals()[0].mean_shift is None


def test_what_draws_have_not_seen_follows_the_tail_of_squares() -> None:
    """q = N(0, 1) and the target N(0, s^2): r x^2 has the tail index 1 - 1/s^2, so n^(-1/s^2) is not seen."""
    x = torch.randn(64_000, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    shares = []
    for s in (1.2, 1.4, 2.0):
        ratios = 0.5 * x[:, 0].square() * (1 - 1 / s**2)
        f = unseen(ratios, x, ratios.softmax(0))
        shares.append(float(f))
        left = float(left_over(Shifts.of(x, ratios.softmax(0)), f))
        assert left > 0
    assert shares == sorted(shares)
    assert shares[0] < 0.01 < 0.1 < shares[-1]


def test_a_tail_that_draws_do_not_reach_is_not_called_usable() -> None:
    """A ridge bent by x^2: its k-hat is 0.7 to 0.85, and weighted draws have half of its sd."""
    target = LogDensity(lambda x: -0.5 * x[:, 0] ** 2 - 2 * (x[:, 1] - x[:, 0] ** 2 + 1).square(), 2)
    fits = [bs.fit(target, effort="quick", seed=seed, progress=False) for seed in range(3)]
    assert all(fit.trust is Trust.POOR and "may be left" in fit.verdict for fit in fits)
    assert all(fit.khat.value < 0.95 for fit in fits)
    assert all(float(fit.resample(4000, moves=0).std(0)[1]) < 0.75 * 1.5 for fit in fits)  # the sd is 1.5


def test_a_tail_without_moments_to_correct_is_called_usable() -> None:
    """Exponentials in log coordinates: k-hat is near 0.7 for the tail at zero, which no moment needs."""
    model = bs.targets.TorchModel({"g": bs.targets.Positive(4)}, lambda g: -g.sum())
    fits = [bs.fit(model, effort="quick", seed=seed, progress=False) for seed in range(3)]
    assert max(fit.khat.value for fit in fits) > 0.7
    for fit in fits:
        assert fit.trust is Trust.USABLE
        draws = model.constrain(fit.resample(10_000))["g"]
        assert (draws.mean(0) - 1).abs().max() < 0.1
        assert draws.std(0).log().abs().max() < 0.1
