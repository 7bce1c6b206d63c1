"""Pictures of predicted values: are the intervals as wide as they say, and how far off is the mean.

Left: the share of values that lie inside central intervals against the probability of these intervals; a
calibrated prediction is on the diagonal. Right: values against the predicted mean, with 90 % intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bayescore.metrics.evaluation import as_tensor
from bayescore.plotting.style import figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_values"]

SHOWN = 200  # rows with intervals


def plot_values(prediction: Any, y: Any) -> Figure:
    """Calibration of intervals, and values against predictions.

    Arguments:
        prediction: a `ValuePrediction`, as `predict` returned it.
        y: the values.
    """
    if not hasattr(prediction, "outputs"):
        raise TypeError(
            f"plot_values is about a prediction of values; got a {type(prediction).__name__} (of classes: "
            "plot_reliability({'network': (prediction, y)}))"
        )
    mean = prediction.mean
    values = as_tensor(y).to(mean)
    if values.numel() != mean.numel():
        raise ValueError(
            f"values must have the shape of the prediction's mean, {tuple(mean.shape)}; "
            f"got {tuple(values.shape)}"
        )
    values = values.reshape(mean.shape)
    inside = (2 * prediction.cdf(values).double().flatten() - 1).abs().cpu()  # of which level's interval
    levels = torch.linspace(0, 1, 101, dtype=torch.float64)
    shares = [float((inside <= level).double().mean()) for level in levels]
    low, high = (end.flatten().cpu() for end in prediction.interval(0.9))
    centre, seen = mean.flatten().cpu(), values.flatten().cpu()
    rows = torch.linspace(0, len(seen) - 1, min(SHOWN, len(seen))).long()
    with figure_style():
        figure = new_figure(5.6, 2.8)
        left, right = figure.subplots(1, 2)
        left.plot([0, 100], [0, 100], color="#888888", linewidth=1, linestyle=(0, (4, 2)))
        left.plot((100 * levels).numpy(), [100 * share for share in shares], color="#0072B2")
        left.set(xlabel="probability of the interval, %", ylabel="values inside, %", aspect="equal")
        left.set(xlim=(0, 100), ylim=(0, 100))
        right.vlines(centre[rows], low[rows], high[rows], color="#CFCFCF", linewidth=1, zorder=1)
        right.plot(centre[rows], seen[rows], "o", color="#0072B2", markersize=2.5, zorder=3)
        ends = [float(centre.min()), float(centre.max())]
        right.plot(ends, ends, color="#888888", linewidth=1, linestyle=(0, (4, 2)), zorder=2)
        right.set(xlabel="predicted mean, 90 % interval", ylabel="value")
    return figure
