"""Pictures of forecasts: what they draw, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from bayescore.plotting import plot_forecast, plot_horizon_calibration
from toy_series import hourly, small


def lines(axes) -> dict[str, np.ndarray]:
    return {line.get_label(): np.asarray(line.get_ydata()) for line in axes.lines}


def test_a_fan_has_a_panel_per_series_with_history_median_bands_and_truth(fitted):
    forecast = fitted.predict()
    figure = plot_forecast(forecast, truth=hourly(700), title="example")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["load", "price"]
    drawn = lines(figure.axes[0])
    assert np.allclose(drawn["history"], forecast.history[:, 0])
    assert np.allclose(drawn["median"][1:], forecast.mean[:, 0], atol=1e-3)
    assert drawn["median"][0] == drawn["history"][-1]
    assert np.allclose(drawn["what came"], hourly(700).values[600:606, 0])
    assert len(figure.axes[0].collections) == 3
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["history", "median", "50 % interval", "80 % interval", "95 % interval", "what came"]


def test_columns_are_chosen_by_name(fitted):
    figure = plot_forecast(fitted.predict(), columns=["price"])
    assert len(figure.axes) == 1
    with pytest.raises(ValueError, match="did you mean 'price'"):
        plot_forecast(fitted.predict(), columns=["prize"])
    with pytest.raises(ValueError, match="at least one series"):
        plot_forecast(fitted.predict(), columns=[])


def test_what_came_may_be_an_array():
    forecast = small(epochs=1).fit(hourly(200).values.numpy()).predict()
    figure = plot_forecast(forecast, truth=np.ones((3, 2)))
    assert lines(figure.axes[0])["what came"].tolist() == [1, 1, 1]


def test_a_series_without_dates_counts_its_steps():
    series = hourly(120, dates=False)
    forecast = small(epochs=1).fit(series.take(slice(0, 110))).predict()
    axes = plot_forecast(forecast, truth=series.take(slice(110, None))).axes[0]
    assert axes.lines[0].get_xdata()[-1] == 0
    assert lines(axes)["what came"].tolist() == series.values[110:116, 0].tolist()


def test_calibration_is_drawn_for_every_step_and_level(fitted):
    result = fitted.backtest(hourly(700), stride=5)
    left, right = plot_horizon_calibration(result).axes
    drawn = [line for line in left.lines if len(line.get_xdata()) == 6]
    assert len(drawn) == 3
    assert np.allclose(drawn[1].get_ydata(), 100 * result.coverage_by_step[0.8])
    assert np.allclose(right.lines[0].get_ydata(), result.mse_by_step)
