"""Marginals of a fitted model's named quantities, over reference draws if there are any."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescore.inference.export import columns, groups, model_of
from bayescore.inference.result import Fit
from bayescore.plotting.fits import COLOURS, GREY, histogram
from bayescore.plotting.style import figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_marginals"]

DRAWS = 20_000
PANELS = 24


def plot_marginals(fit: Fit) -> Figure:
    """One panel for each of the first quantities of a model: q as a line, the reference in grey."""
    draws = fit.family.sample(DRAWS, seed=fit.seed)
    ours = columns(groups(fit.target, draws, fit.seed)["posterior"])
    model = model_of(fit.target)
    theirs = columns(model.reference_draws, lead=2) if getattr(model, "has_reference", False) else {}  # type: ignore[union-attr]
    names = [name for name in ours if float(ours[name].std()) > 0][:PANELS]
    across = min(len(names), max(2, math.ceil(math.sqrt(len(names)))))
    down = math.ceil(len(names) / across)
    with figure_style():
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        figure = new_figure(2.3 * across + 0.4, 1.7 * down + 1.0)
        for i, name in enumerate(names):
            _panel(figure.add_subplot(down, across, i + 1), name, ours, theirs)
        khat = "" if fit.khat is None else f"    k-hat {fit.khat.value:.2f}"
        more = f"    the first {PANELS} of {len(ours)} numbers" if len(ours) > PANELS else ""
        title = f"{type(fit.method).__name__} with {type(fit.family).__name__}{khat}{more}"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        handles: list[Any] = [Line2D([], [], color=COLOURS[0], label="q")]
        if any(name in theirs for name in names):
            handles.append(Patch(color=GREY, label="reference draws"))
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def _panel(axes: Any, name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    sides = [side[name].double().cpu().numpy() for side in (ours, theirs) if name in side]
    ends = np.concatenate([np.quantile(x[np.isfinite(x)], [0.002, 0.998]) for x in sides])
    low, high = float(ends.min()), float(ends.max())
    pad = 0.05 * (high - low)
    limits = (low - pad, high + pad)
    if len(sides) == 2:
        axes.fill_between(*histogram(sides[1], limits), color=GREY, linewidth=0)
    axes.plot(*histogram(sides[0], limits), color=COLOURS[0])
    axes.set(title=name, xlim=limits, yticks=[])
    axes.set_ylim(bottom=0)
    axes.grid(False)
    axes.spines["left"].set_visible(False)
