"""Pictures of classifiers: reliability diagrams, and risk against coverage.

A reliability diagram shows, for every bin, how often a prediction made with confidence c was right. The ECE
averages the gap to the diagonal; the grey bars are the share of the data in each bin. In a bin of n data even
a calibrated network is right in a share that varies, that of n outcomes of probability c.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Binomial

from bayescore.metrics.calibration import ece, reliability
from bayescore.metrics.detection import risk_coverage
from bayescore.metrics.evaluation import as_classes
from bayescore.plotting.style import figure_style, looks, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_reliability", "plot_reliability", "plot_risk_coverage"]

#: by name, a class prediction or probabilities, and labels, as in `metrics.evaluate`
Arms = Mapping[str, tuple[Any, Any]]
CORNER = 0.45  # side of the corner that the words in a diagram take
_GREY, _CHANCE = "#CFCFCF", "#56B4E9"


def plot_reliability(arms: Arms, bins: int = 15) -> Figure:
    """One reliability diagram per arm, side by side.

    Arguments:
        arms: by name, what `predict` returned, or probabilities (N, K), and the labels.
    """
    _check_arms(arms)
    with figure_style():
        figure = new_figure(2.5 * len(arms) + 0.4, 2.7)
        axes = figure.subplots(1, len(arms), sharex=True, sharey=True, squeeze=False)[0]
        for axis, (name, arm) in zip(axes, arms.items(), strict=True):
            probs, labels = as_classes(*arm)
            draw_reliability(axis, probs, labels, bins, colour=looks(arms)[name].colour)
            axis.set_title(name)
            axis.set_xlabel("confidence")
        axes[0].set_ylabel("accuracy")
    return figure


def _check_arms(arms: Any) -> None:
    if not isinstance(arms, Mapping) or not arms or not all(len(arm) == 2 for arm in arms.values()):
        raise TypeError(
            "the arms of the picture are predictions with their labels, by name, as in "
            f"plot_reliability({{'network': (prediction, y)}}); got a {type(arms).__name__}"
        )


def draw_reliability(
    axes: Axes, probs: Tensor, labels: Tensor, bins: int = 15, *, colour: str = "#0072B2"
) -> None:
    """A top-label reliability diagram; the ECE in it always has 15 bins, whatever `bins` is.

    The blue bars along the diagonal hold the accuracy of a calibrated network in 95 of 100 test sets of this
    size; grey bars from below are shares of the data.
    """
    curve = reliability(probs, labels, bins)
    confidence, accuracy, share = (v.cpu().numpy() for v in (curve.confidence, curve.accuracy, curve.share))
    axes.bar(confidence, share, width=0.8 / bins, color=_GREY, zorder=1)
    counts = (curve.share * len(labels)).round().long().tolist()
    low, high = zip(*map(_by_chance, curve.confidence.tolist(), counts), strict=True)
    axes.vlines(confidence, low, high, color=_CHANCE, linewidth=5, alpha=0.35, zorder=2)
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=1, linestyle=(0, (4, 2)), zorder=2)
    axes.vlines(confidence, confidence, accuracy, color=colour, linewidth=1, alpha=0.6, zorder=3)
    axes.plot(confidence, accuracy, color=colour, marker="o", zorder=4)
    words = f"ECE {100 * ece(probs, labels):.2f} %\n{len(labels):,} data"
    above = bool(((curve.confidence < CORNER) & (curve.accuracy > 1 - CORNER)).any())
    if above:
        axes.text(0.96, 0.05, words, transform=axes.transAxes, ha="right")
    else:
        axes.text(0.04, 0.95, words, transform=axes.transAxes, va="top")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")


def _by_chance(confidence: float, count: int) -> tuple[float, float]:
    """The central 95 % of the share of `count` outcomes of probability `confidence`."""
    p = min(max(confidence, 1e-9), 1 - 1e-9)
    outcomes = torch.arange(count + 1, dtype=torch.float64)
    below = Binomial(count, torch.tensor(p, dtype=torch.float64)).log_prob(outcomes).exp().cumsum(0)
    low, high = torch.searchsorted(below, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low / count, min(high, count) / count


def plot_risk_coverage(arms: Arms) -> Figure:
    """Error on the most confident share of the data, one line per arm, with its area (AURC)."""
    _check_arms(arms)
    with figure_style():
        figure = new_figure(4.2, 3.0)
        axes = figure.subplots()
        for name, look in looks(arms).items():
            curve = risk_coverage(*as_classes(*arms[name]))
            axes.plot(
                100 * curve.coverage.cpu().numpy(), 100 * curve.risk.cpu().numpy(),
                color=look.colour, linestyle=look.line, label=f"{name} (AURC {100 * curve.area:.2f} %)",
            )  # fmt: skip
        axes.set(xlabel="coverage: most confident share answered, %", ylabel="risk: error among them, %")
        axes.set_xlim(0, 100)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")
    return figure
