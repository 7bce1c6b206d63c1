"""Metrics of forecasts: identities with torch's own densities, integrals, and known optima."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from bayescore.metrics import (
    fit_noise,
    forecast_mae,
    forecast_mse,
    interval_scores,
    mixture_crps,
    mixture_nll,
)


def case(draws: int = 4, windows: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randn(draws, windows, 3, 2, dtype=torch.float64, generator=rng)
    return outputs, torch.randn(windows, 3, 2, dtype=torch.float64, generator=rng)


def test_the_nll_is_that_of_the_mixture():
    outputs, y = case()
    weights = Categorical(torch.ones(4))
    mixture = MixtureSameFamily(weights, Normal(outputs.movedim(0, -1), 0.7))
    assert torch.allclose(mixture_nll(outputs, y, 0.7), -mixture.log_prob(y))


def test_the_nll_of_one_draw_is_a_normal_density():
    outputs, y = case(draws=1)
    assert torch.allclose(mixture_nll(outputs, y, 0.3), -Normal(outputs[0], 0.3).log_prob(y))


def test_the_crps_is_the_integral_of_the_squared_distance_of_distribution_functions():
    outputs, y = case(windows=1)
    t = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    for step in range(3):
        cdf = torch.special.ndtr((t[:, None] - outputs[:, 0, step, 0]) / 0.7).mean(1)
        integral = torch.trapezoid((cdf - (t >= y[0, step, 0]).double()).square(), t)
        assert float(mixture_crps(outputs, y, 0.7)[0, step, 0]) == pytest.approx(float(integral), abs=1e-4)


def test_the_crps_without_noise_is_that_of_the_draws():
    outputs, y = case()
    pairs = (outputs[:, None] - outputs[None]).abs().mean((0, 1))
    expected = (outputs - y).abs().mean(0) - 0.5 * pairs
    assert torch.allclose(mixture_crps(outputs, y, 0.0), expected)
    assert torch.allclose(mixture_crps(outputs[:1], y, 0.0), (outputs[0] - y).abs())


def test_the_fitted_noise_is_where_the_likelihood_is_flat():
    outputs, y = case(windows=40)
    sd = fit_noise(outputs, y).requires_grad_()
    mixture_nll(outputs, y, sd).mean().backward()
    assert float(sd.grad.abs()) < 1e-3
    for other in (0.97, 1.03):
        assert mixture_nll(outputs, y, sd * other).mean() > mixture_nll(outputs, y, sd).mean()


def test_the_noise_of_one_draw_is_the_root_mean_square_of_its_errors():
    outputs, y = case(draws=1, windows=50)
    error = (outputs[0] - y).square()
    assert torch.allclose(fit_noise(outputs, y), error.mean().sqrt().view(1, 1))
    assert torch.allclose(fit_noise(outputs, y, by_step=True), error.mean((0, 2)).sqrt().view(3, 1))
    both = fit_noise(outputs, y, by_step=True, by_column=True)
    assert torch.allclose(both, error.mean(0).sqrt())
    scale = torch.rand(50, 1, 2, dtype=torch.float64) + 0.5
    scaled = fit_noise(outputs * scale, y * scale, by_step=True, by_column=True, scale=scale)
    assert torch.allclose(scaled, both)


def test_a_series_without_errors_has_a_little_noise():
    y = torch.zeros(4, 3, 1)
    assert float(fit_noise(torch.zeros(2, 4, 3, 1), y).max()) == pytest.approx(1e-4)
    assert bool(mixture_nll(torch.zeros(2, 4, 3, 1), y, 1e-4).isfinite().all())


def test_errors_are_of_the_mean_of_the_draws():
    outputs = torch.tensor([[1.0, 4.0], [3.0, 4.0]])
    assert forecast_mse(outputs, torch.tensor([0.0, 4.0])) == 2.0
    assert forecast_mae(outputs, torch.tensor([0.0, 4.0])) == 1.0


def test_coverage_counts_and_width_averages():
    low, high = torch.zeros(4), torch.tensor([1.0, 1.0, 2.0, 2.0])
    assert interval_scores(low, high, torch.tensor([0.5, 3.0, 2.0, -1.0])) == (0.5, 1.5)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="draws of the values"):
        forecast_mse(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="windows, steps, columns"):
        fit_noise(torch.zeros(3, 2), torch.zeros(2))
    assert math.isfinite(forecast_mse(torch.zeros(1, 3), torch.zeros(3)))
