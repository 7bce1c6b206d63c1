"""The running numbers on the slope: unbiased from the first step, and what they count as learned."""

from __future__ import annotations

import pytest
import torch

from bayescore.rules.curvature import ARRIVED, MEMORY, follow, forget, measured, standard_error, weight_of
from cases import F64, normal

SIZES = torch.tensor([100.0, 4.0], dtype=F64)


def totals(slope: torch.Tensor) -> torch.Tensor:
    """Sums of slope and squared slope over a tensor of each size, the slope being the same everywhere."""
    return torch.stack([slope * SIZES, slope.square() * SIZES], -1)


def test_the_running_mean_of_a_constant_is_the_constant_from_the_first_step() -> None:
    statistics, slope = torch.zeros(2, 4, dtype=F64), torch.tensor([0.3, -0.7], dtype=F64)
    for step in range(1, 6):
        follow(statistics, totals(slope), SIZES)
        level, V, _ = measured(statistics, SIZES)
        torch.testing.assert_close(level, slope, rtol=1e-12, atol=0.0)
        torch.testing.assert_close(V, slope.square(), rtol=1e-12, atol=0.0)
        assert statistics[:, 3].tolist() == [step, step]
        torch.testing.assert_close(weight_of(statistics), torch.full((2,), 1 - MEMORY**step, dtype=F64))


def test_the_running_mean_weighs_a_step_by_its_age() -> None:
    statistics, slopes = torch.zeros(2, 4, dtype=F64), normal(7, 2)
    for slope in slopes:
        follow(statistics, totals(slope), SIZES)
    weights = MEMORY ** torch.arange(6, -1, -1, dtype=F64).unsqueeze(-1)
    level, V, _ = measured(statistics, SIZES)
    torch.testing.assert_close(level, (weights * slopes).sum(0) / weights.sum())
    torch.testing.assert_close(V, (weights * slopes.square()).sum(0) / weights.sum())


def test_noise_is_the_variance_relative_to_the_part_of_the_level_that_is_sure() -> None:
    statistics = torch.zeros(2, 4, dtype=F64)
    slope, square = torch.tensor([3.0, -0.2], dtype=F64), torch.tensor([10.0, 2.0], dtype=F64)
    follow(statistics, torch.stack([slope * SIZES, square * SIZES], -1), SIZES)
    error = (square / SIZES).sqrt()  # the first step is the only one
    sure = torch.stack([slope[0] - 2 * error[0], torch.zeros((), dtype=F64)])
    _, _, noise = measured(statistics, SIZES)
    torch.testing.assert_close(noise, (square - sure**2) / (1 + sure) ** 2)
    torch.testing.assert_close(standard_error(noise, SIZES), (noise * (1 - MEMORY) / SIZES).sqrt())


@pytest.mark.parametrize("level", [0.0, 5.0])
def test_what_is_forgotten_counts_only_once_the_slope_is_near_zero(level: float) -> None:
    statistics, slow = torch.zeros(2, 4, dtype=F64), torch.tensor([4.0, 8.0], dtype=F64)
    for _ in range(3):
        sums = totals(torch.full((2,), level, dtype=F64))
        forget(statistics, torch.cat([sums, slow[:, None]], -1), SIZES, 2.0)
    expected = 3 * 2.0 / slow if level <= ARRIVED else torch.zeros(2, dtype=F64)
    torch.testing.assert_close(statistics[:, 2], expected)
    follow(other := torch.zeros(2, 4, dtype=F64), sums, SIZES)
    assert torch.equal(other[:, 2], torch.zeros(2, dtype=F64)), "to follow is not to count"
