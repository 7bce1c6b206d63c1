"""Two panels of a benchmark's picture: stacked phases of a profile, and lines over sizes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bayescore.plotting.style import looks
from bayescore_lab.bench.phases import PHASES
from bayescore_lab.bench.rows import Part
from bayescore_lab.bench.timing import median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_curve", "draw_profile"]

SHADES = {"forward": "#a0aec0", "backward": "#718096", "update": "#2b6cb0", "noise": "#dd6b20"}


def draw_profile(axis: Axes, part: Part, ours: frozenset[str]) -> None:
    """A bar per method, stacked by phase, with the interval of the whole and the peak memory beside it."""
    able = [row for row in part.rows if row.seconds]
    failed = [row for row in part.rows if not row.seconds]
    for y, row in enumerate(able):
        left = 0.0
        for name in PHASES:
            width = statistics.median(row.phases.get(name, (0.0,)))
            axis.barh(y, width, left=left, color=SHADES[name], height=0.7, label=name if y == 0 else None)
            left += width
        found = median_interval([s for s in row.seconds if s is not None])
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


def draw_curve(axis: Axes, part: Part) -> None:
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
