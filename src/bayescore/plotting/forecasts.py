"""Pictures of forecasts: a fan of intervals after the history, and how intervals hold step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescore.checks import unknown_name
from bayescore.data.time_series import Series, as_series
from bayescore.forecast.backtesting import Backtest
from bayescore.forecast.prediction import Forecast
from bayescore.plotting.style import figure_style, looks, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_forecast", "plot_forecast", "plot_horizon_calibration"]

PANELS = 6
BANDS = {0.95: "#CFE3F2", 0.8: "#9CC6E3", 0.5: "#5FA3CF"}
LINE, HISTORY, TRUTH = "#0B4F7D", "#444444", "#D55E00"


def plot_forecast(
    forecast: Forecast, truth: Any = None, columns: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """One panel per series: its history, the median, bands of 50, 80 and 95 %, and what came if it is known.

    Arguments:
        truth: the series with what came after the history, in any form that `Forecaster.fit` takes.
        columns: the series to draw; by default the first six.
    """
    if columns is not None and not len(columns):
        raise ValueError("columns must name at least one series to draw; got none")
    truth = None if truth is None else as_series(truth)
    chosen = list(columns if columns is not None else forecast.columns[:PANELS])
    for column in chosen:
        if column not in forecast.columns:
            raise unknown_name("column of the forecast", column, forecast.columns)
    across = 1 if len(chosen) <= 2 else 2
    down = -(-len(chosen) // across)
    with figure_style():
        figure = new_figure(7.2 if across == 1 else 10.4, 0.9 + (3.0 if len(chosen) == 1 else 2.2) * down)
        panels = figure.subplots(down, across, squeeze=False, sharex=True).flatten()
        for axes, column in zip(panels, chosen, strict=False):
            draw_forecast(axes, forecast, column, truth)
        for axes in panels[len(chosen) :]:
            axes.set_visible(False)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        drawn = dict(zip(*panels[0].get_legend_handles_labels()[::-1], strict=True))
        order = ["history", "median", *(_band(level) for level in sorted(BANDS)), "what came"]
        labels = [label for label in order if label in drawn]
        handles = [drawn[label] for label in labels]
        figure.legend(handles, labels, loc="outside lower left", ncols=len(labels), columnspacing=1.4)
    return figure


def draw_forecast(axes: Axes, forecast: Forecast, column: str, truth: Series | None = None) -> None:
    """The fan of one series."""
    i = forecast.columns.index(column)
    past, ahead = _positions(forecast)
    history = forecast.history[:, i].numpy()
    # every band begins in the last known value, so that the fan opens from it
    x = [past[-1], *ahead]
    last = float(history[-1])
    for level, colour in BANDS.items():
        low, high = (np.concatenate([[last], end[:, i].numpy()]) for end in forecast.interval(level))
        axes.fill_between(x, low, high, color=colour, linewidth=0, label=_band(level), zorder=2)
    axes.plot(past, history, color=HISTORY, linewidth=1.2, label="history", zorder=3)
    median = np.concatenate([[last], forecast.quantile(0.5)[:, i].numpy()])
    axes.plot(x, median, color=LINE, linewidth=1.8, label="median", zorder=4)
    if truth is not None:
        when, values = _truth(forecast, truth, column)
        axes.plot(
            when, values, color=TRUTH, linewidth=1.2, linestyle=(0, (3, 1.5)), label="what came", zorder=5
        )
    axes.axvline(past[-1], color="#999999", linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.set_title(column)
    axes.margins(x=0.01)
    if forecast.dates is None:
        axes.set_xlabel("steps ahead")
    else:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _band(level: float) -> str:
    return f"{100 * level:g} % interval"


def _positions(forecast: Forecast) -> tuple[Any, Any]:
    """Where the history and the forecast are on the axis: dates, or steps with 0 for the last known one."""
    if forecast.dates is not None and forecast.history_dates is not None:
        return forecast.history_dates, forecast.dates
    return np.arange(1 - len(forecast.history), 1), np.arange(1, len(forecast.mean) + 1)


def _truth(forecast: Forecast, truth: Series, column: str) -> tuple[Any, Any]:
    """Dates and values of what came in the steps of the forecast."""
    values = truth.choose([column]).values[:, 0].numpy()
    if forecast.dates is None or truth.dates is None:
        count = min(len(values), len(forecast.mean))
        return np.arange(1, count + 1), values[:count]
    inside = (truth.dates >= forecast.dates[0]) & (truth.dates <= forecast.dates[-1])
    return truth.dates[inside], values[inside]


def plot_horizon_calibration(result: Backtest) -> Figure:
    """How often intervals held at every step ahead, beside their levels; and the error at every step."""
    with figure_style():
        figure = new_figure(8.4, 3.1)
        left, right = figure.subplots(1, 2)
        steps = np.arange(1, len(result.mse_by_step) + 1)
        for name, look in looks([f"{100 * level:g} %" for level in result.coverage]).items():
            level = next(level for level in result.coverage if f"{100 * level:g} %" == name)
            left.axhline(100 * level, color=look.colour, linewidth=0.8, linestyle=(0, (2, 2)))
            left.plot(
                steps, 100 * result.coverage_by_step[level].numpy(), color=look.colour,
                label=f"{name} intervals: {100 * result.coverage[level]:.1f} %",
            )  # fmt: skip
        left.set(
            xlabel="steps ahead", ylabel="values inside, %", ylim=(0, 101), title="Do the intervals hold?"
        )
        left.legend(loc="lower left")
        right.plot(steps, result.mse_by_step.numpy(), color=LINE)
        right.set(
            xlabel="steps ahead",
            ylabel="mean squared error (in variances)",
            title="How far off is the mean?",
        )
        right.set_ylim(bottom=0)
    return figure
