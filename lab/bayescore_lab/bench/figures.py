"""The figure of a benchmark: ratios of pairs, times to a goal, phases of a profile, lines of a curve."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayescore.plotting.style import figure_style, looks
from bayescore_lab.bench.results import Part, Row
from bayescore_lab.bench.timing import PHASES, interval_or_range
from bayescore_lab.engine.drawing import write_file
from bayescore_lab.engine.figures import panels, png
from bayescore_lab.engine.wording import short_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_parts"]

BLUE, GREY, RED = "#2b6cb0", "#a0aec0", "#c53030"
SHADES = {"forward": "#a0aec0", "backward": "#718096", "update": "#2b6cb0", "noise": "#dd6b20"}


def draw_parts(path: Path, parts: Sequence[Part], ours: frozenset[str]) -> None:
    """Draw to a PNG file; `ours` are the arms shown in colour."""
    with figure_style():
        wanted = [panel for part in parts for panel in _panels(part, ours)]
        drawing, axes = panels(width=9, heights=[height for height, _ in wanted])
        for axis, (_, draw) in zip(axes, wanted, strict=True):
            draw(axis)
        data = png(drawing)
    write_file(path, data)


def _panels(part: Part, ours: frozenset[str]) -> list[tuple[float, Callable[[Axes], None]]]:
    """The panels of a part: a height in inches, and how to draw it."""
    if part.kind == "pairs":
        return [(1.8, lambda axis: _ratios(axis, part))]
    if part.kind == "profile":
        return [(1.2 + 0.28 * len(part.rows), lambda axis: _profile(axis, part, ours))]
    if part.kind == "curve":
        return [(3.2, lambda axis: _curve(axis, part))]
    problems = dict.fromkeys(row.problem for row in part.rows)
    grouped = {name: [row for row in part.rows if row.problem == name] for name in problems}
    return [
        (2.8, lambda axis, name=name: _times(axis, f"{part.title}: {name}", grouped[name], ours))  # type: ignore[misc]
        for name in problems
    ]


def _ratios(axis: Axes, part: Part) -> None:
    for y, ratio in enumerate(part.ratios):
        axis.barh(y, ratio.spread.estimate, color=BLUE, height=0.6)
        axis.plot(ratio.values, [y] * len(ratio.values), "k.", markersize=4)
        if ratio.bar is not None:
            axis.plot([ratio.bar] * 2, [y - 0.4, y + 0.4], color=RED, linewidth=2)
    axis.set_yticks(range(len(part.ratios)), [ratio.problem for ratio in part.ratios])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_title(part.title, loc="left", fontsize=10)
    axis.set_xlabel("ratio of wall-clock times; red: the bar, dots: single rounds")


def _times(axis: Axes, title: str, rows: Sequence[Row], ours: frozenset[str]) -> None:
    able = sorted((row for row in rows if row.spread is not None), key=lambda row: row.spread.estimate)  # type: ignore[union-attr]
    failed = [row for row in rows if row.spread is None]
    for y, row in enumerate(able):
        assert row.spread is not None
        colour = BLUE if row.arm in ours else GREY
        axis.plot([row.spread.low, row.spread.high], [y, y], color=colour, linewidth=4, alpha=0.5)
        axis.plot(row.spread.estimate, y, "o", color=colour)
        axis.annotate(f"   {short_time(row.spread.estimate)}", (row.spread.high, y), va="center", fontsize=8)
    for y, row in enumerate(failed, len(able)):
        axis.annotate(f"  {row.note}", (0, y), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [row.arm for row in [*able, *failed]])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xscale("log")
    axis.margins(x=0.15)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_xlabel("seconds, without compilation: median and range; in colour: bayescore")


def _profile(axis: Axes, part: Part, ours: frozenset[str]) -> None:
    """A bar per method, stacked by phase, with the interval of the whole and the peak memory beside it."""
    able = [row for row in part.rows if row.seconds]
    failed = [row for row in part.rows if not row.seconds]
    for y, row in enumerate(able):
        left = 0.0
        for name in PHASES:
            width = statistics.median(row.phases.get(name, (0.0,)))
            axis.barh(y, width, left=left, color=SHADES[name], height=0.7, label=name if y == 0 else None)
            left += width
        found = interval_or_range([s for s in row.seconds if s is not None])
        axis.plot([found.low, found.high], [y, y], "k|-", linewidth=1, markersize=5)
        peak = row.numbers.get("peak")
        axis.annotate(f"  {peak / 1e9:.2f} GB" if peak else "", (found.high, y), va="center", fontsize=7)
    for y, row in enumerate(failed, len(able)):
        words = row.note if len(row.note) <= 90 else row.note[:90] + " ..."
        axis.annotate(f" {words}", (0, y), xycoords=("axes fraction", "data"), va="center", fontsize=7)
    rows = [*able, *failed]
    axis.set_yticks(range(len(rows)), [row.arm for row in rows], fontsize=8)
    for label, row in zip(axis.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.arm in ours else "normal")
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.margins(x=0.12)
    axis.set_title(part.title, loc="left", fontsize=10)
    axis.set_xlabel("seconds per step: median, interval and peak memory; bold: bayescore", fontsize=8)
    if able:
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(PHASES), fontsize=7, frameon=False)


def _curve(axis: Axes, part: Part) -> None:
    """Seconds over the size that every problem begins with, a line per arm."""
    arms = dict.fromkeys(row.arm for row in part.rows if row.seconds)
    for arm, look in looks(arms).items():
        rows = [row for row in part.rows if row.arm == arm and row.seconds]
        x = [row.numbers["size"] for row in rows]
        y = [statistics.median(s for s in row.seconds if s is not None) for row in rows]
        axis.plot(x, y, color=look.colour, linestyle=look.line, marker=look.marker, label=arm)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_title(part.title, loc="left", fontsize=10)
    axis.set_xlabel(str(part.config.get("size", "size")))
    axis.set_ylabel("seconds")
    axis.legend(fontsize=7, frameon=False)
