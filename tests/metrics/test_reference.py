"""Errors against reference draws: zero for equal draws, known for shifts and scales, free of units."""

from __future__ import annotations

import math

import pytest
import torch

from bayescore.metrics import compare_draws, mean_errors, sd_errors, sliced_wasserstein


def draws(n: int = 4000, dim: int = 3, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=rng, dtype=torch.float64)


def test_draws_are_at_no_distance_from_themselves() -> None:
    x = draws()
    found = compare_draws(x, x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))])
    assert found.mean_error < 1e-12
    assert found.sd_error < 1e-12
    assert found.sliced_wasserstein < 1e-12


def test_a_shift_is_measured_in_reference_standard_deviations() -> None:
    x, scale = draws(), torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
    shift = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)
    sd = (x * scale).std(0)
    torch.testing.assert_close(mean_errors(x * scale + shift * sd, x * scale), shift.abs())
    assert sd_errors(x * scale + shift * sd, x * scale).max() < 1e-12


def test_a_factor_is_the_error_of_the_standard_deviation() -> None:
    x = draws()
    x = x - x.mean(0)
    torch.testing.assert_close(sd_errors(1.3 * x, x), torch.full((3,), 0.3, dtype=torch.float64))
    assert mean_errors(1.3 * x, x).max() < 1e-12


def test_units_do_not_matter() -> None:
    x, y = draws(), 1.2 * draws(seed=1) + 0.3
    scale = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    one, other = compare_draws(y, x), compare_draws(y * scale, x * scale)
    torch.testing.assert_close(one.mean_errors, other.mean_errors)
    torch.testing.assert_close(one.sd_errors, other.sd_errors)
    assert one.sliced_wasserstein == pytest.approx(other.sliced_wasserstein)


def test_sliced_wasserstein_of_a_shift_is_its_mean_projection() -> None:
    x = draws(dim=2)
    sd = x.std(0)
    moved = x + sd * torch.tensor([1.0, 0.0], dtype=torch.float64)
    # |w_1| of a direction uniform on the circle has the mean 2/pi
    assert sliced_wasserstein(moved, x, directions=2000) == pytest.approx(2 / math.pi, rel=0.04)


def test_sliced_wasserstein_of_exact_draws_falls_with_their_number() -> None:
    few, many = (sliced_wasserstein(draws(n, seed=1), draws(n, seed=2)) for n in (100, 10_000))
    assert many < 0.3 * few
    assert many < 0.05


def test_it_sees_what_moments_do_not() -> None:
    x = draws(20_000, 1)
    signs = torch.where(x > 0, 1.0, -1.0).double()
    assert compare_draws(signs, x).sd_error < 0.05
    assert compare_draws(signs, x).sliced_wasserstein > 0.4


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="draws have 3 coordinates and the reference 2"):
        mean_errors(draws(), draws(dim=2))
    with pytest.raises(
        ValueError, match=r"reference must be at least two draws \(n, D\); got the shape \(4,\)"
    ):
        sd_errors(draws(), torch.zeros(4))
    with pytest.raises(ValueError, match="1 coordinates of the reference do not vary"):
        mean_errors(draws(), draws() * torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(ValueError, match="3 coordinates need 3 names; got 1"):
        compare_draws(draws(), draws(), ["a"])


def test_the_sentence_names_the_worst() -> None:
    x = draws()
    text = str(compare_draws(x + torch.tensor([0.0, 5.0, 0.0]), x, ["a", "b", "c"]))
    assert "b)" in text
    assert "posterior standard deviations" in text
