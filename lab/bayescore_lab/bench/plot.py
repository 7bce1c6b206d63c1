"""The picture of a benchmark: ratios for each part of pairs, times for each race, stacked phases for each
profile, lines for each curve."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayescore_lab.bench.curve_plot import draw_curve, draw_profile
from bayescore_lab.bench.rows import Part, Row
from bayescore_lab.bench.tables import duration
from bayescore_lab.engine.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_parts"]

BLUE, GREY, RED = "#2b6cb0", "#a0aec0", "#c53030"


def draw_parts(path: Path, parts: Sequence[Part], ours: frozenset[str]) -> None:
    """Draw to a PNG file; `ours` are the arms shown in colour."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a picture needs matplotlib: pip install 'bayescore[plot]'") from error
    panels: list[tuple[float, Callable[[Axes], None]]] = []
    for part in parts:
        panels += _panels(part, ours)
    figure = Figure(figsize=(9, sum(height for height, _ in panels)), layout="constrained")
    heights = [height for height, _ in panels]
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (_, draw) in zip(axes, panels, strict=True):
        draw(axis)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    write_file(path, data.getvalue())


def _panels(part: Part, ours: frozenset[str]) -> list[tuple[float, Callable[[Axes], None]]]:
    """The panels of a part: a height in inches, and how to draw it."""
    if part.kind == "pairs":
        return [(1.8, lambda axis: _ratios(axis, part))]
    if part.kind == "profile":
        return [(1.2 + 0.28 * len(part.rows), lambda axis: draw_profile(axis, part, ours))]
    if part.kind == "curve":
        return [(3.2, lambda axis: draw_curve(axis, part))]
    problems = dict.fromkeys(row.problem for row in part.rows)
    raced = {name: [row for row in part.rows if row.problem == name] for name in problems}
    return [
        (2.8, lambda axis, name=name: _times(axis, f"{part.title}: {name}", raced[name], ours))  # type: ignore[misc]
        for name in problems
    ]


def _ratios(axis: Axes, part: Part) -> None:
    for y, ratio in enumerate(part.ratios):
        axis.barh(y, ratio.spread.median, color=BLUE, height=0.6)
        axis.plot(ratio.values, [y] * len(ratio.values), "k.", markersize=4)
        if ratio.bar is not None:
            axis.plot([ratio.bar] * 2, [y - 0.4, y + 0.4], color=RED, linewidth=2)
    axis.set_yticks(range(len(part.ratios)), [ratio.problem for ratio in part.ratios])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_title(part.title, loc="left", fontsize=10)
    axis.set_xlabel("ratio of wall-clock times; red: the bar, dots: single rounds")


def _times(axis: Axes, title: str, rows: Sequence[Row], ours: frozenset[str]) -> None:
    able = sorted((row for row in rows if row.spread is not None), key=lambda row: row.spread.median)  # type: ignore[union-attr]
    failed = [row for row in rows if row.spread is None]
    for y, row in enumerate(able):
        assert row.spread is not None
        colour = BLUE if row.arm in ours else GREY
        axis.plot([row.spread.low, row.spread.high], [y, y], color=colour, linewidth=4, alpha=0.5)
        axis.plot(row.spread.median, y, "o", color=colour)
        axis.annotate(f"   {duration(row.spread.median)}", (row.spread.high, y), va="center", fontsize=8)
    for y, row in enumerate(failed, len(able)):
        axis.annotate(f"  {row.note}", (0, y), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [row.arm for row in [*able, *failed]])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xscale("log")
    axis.margins(x=0.15)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_xlabel("seconds, without compilation: median and range; in colour: bayescore")
