"""Figures: traces with spread bands, points with intervals, the paper's value as a star.

As files they are PNG and SVG, small, and the same bytes for the same figure.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescore.plotting.style import Look, looks
from bayescore_lab.engine.records import Records
from bayescore_lab.engine.statistics import Interval
from bayescore_lab.engine.traces import QuantileTrace, quantile_trace
from bayescore_lab.engine.wording import counted, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

__all__ = [
    "SVG_LIMIT",
    "Figure",
    "captioned",
    "panels",
    "plot_points",
    "plot_traces",
    "png",
    "shared_legend",
    "svg",
    "write_caption",
]

#: size in bytes above which the curves of an SVG are rasterised
SVG_LIMIT = 300_000
_DPI = 160
_BAND = (0.1, 0.9)
_STAR: dict[str, Any] = {"marker": "*", "markersize": 11, "markeredgecolor": "black", "linestyle": "none"}


@dataclass(frozen=True)
class Figure:
    """A drawing with what every caption must state: the number of seeds, and the budget of each run."""

    title: str
    drawing: Drawing
    seeds: int
    budget: str
    name: str = ""
    note: str = ""

    @property
    def stem(self) -> str:
        """The name of its files, without the ending."""
        return f"figure-{self.name}" if self.name else "figure"

    @property
    def caption(self) -> str:
        """The lines below the drawing: title, seeds, budget, note."""
        return f"{self.title}. {counted(self.seeds, 'seed')}, {self.budget}. {self.note}".strip()


def captioned(drawing: Drawing, records: Records, *, title: str, name: str = "", note: str = "") -> Figure:
    """A figure of these records: their seeds, and as the budget the largest number of score calls."""
    budget = f"up to {records.budget:,} score calls per run"
    return Figure(title, drawing, len(records.seeds), budget, name, note)


def panels(
    columns: int = 1,
    rows: int = 1,
    *,
    width: float = 3.4,
    height: float = 2.8,
    heights: Sequence[float] | None = None,
) -> tuple[Drawing, list[Axes]]:
    """An empty drawing with its axes, row by row.

    `width` and `height` are those of one panel, in inches; `heights` gives each row its own height.
    """
    from matplotlib.figure import Figure as Drawing

    tall = rows * height if heights is None else sum(heights)
    drawing = Drawing(figsize=(max(4.6, columns * width), tall + 0.9), layout="constrained")
    count = rows if heights is None else len(heights)
    axes = drawing.subplots(count, columns, squeeze=False, height_ratios=heights)
    return drawing, list(axes.flat)


def plot_traces(
    axes: Axes,
    records: Records,
    metric: str,
    *,
    label: str = "",
    axis: str = "score_calls",
    log_x: bool = True,
    log_y: bool = True,
    look: Mapping[str, Look] | None = None,
    paper: Mapping[str, float] | None = None,
) -> None:
    """The median over seeds of each arm against score calls, in a band from the 10 % to the 90 % quantile.

    A run that broke down counts as +inf: the line ends where the median is infinite, and the band reaches the
    top where only the upper quantile is. `paper` puts a star at the right edge, at the paper's final value of
    an arm.
    """
    arms = records.arms
    look = looks(arms) if look is None else look
    traces = {name: quantile_trace(chosen, metric, axis) for name, chosen in arms.items()}
    shown = {name: trace for name, trace in traces.items() if trace is not None}
    axes.set(xlabel=axis.replace("_", " "), ylabel=label or metric.replace("_", " "))
    axes.set_xscale("log" if log_x else "linear")
    axes.set_yscale("log" if log_y else "linear")
    low, high = _limits(shown, paper or {}, log_y)
    for name, trace in shown.items():
        kept = (trace.x > 0) if log_x else np.ones(trace.x.shape, dtype=bool)
        x, style = trace.x[kept], look[name]
        # clipped beyond the limits, so that the band leaves the picture instead of breaking off
        bottom, top = (np.clip(trace.level(q)[kept], *_beyond(low, high, log_y)) for q in _BAND)
        axes.fill_between(x, bottom, top, color=style.colour, alpha=0.16, linewidth=0)
        middle = trace.level(0.5)[kept]
        axes.plot(
            x,
            np.where(np.isfinite(middle), middle, math.nan),
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markevery=max(1, x.size // 6),
            label=name,
        )
    axes.set_ylim(low, high)
    for name, value in (paper or {}).items():
        colour = look[name].colour if name in look else "white"
        spot: Any = {"transform": axes.get_yaxis_transform(), "clip_on": False, "zorder": 5}
        axes.plot([1.0], [value], color=colour, label="paper", **_STAR, **spot)


def plot_points(
    axes: Axes,
    points: Mapping[str, Interval],
    *,
    label: str = "",
    log: bool = False,
    look: Mapping[str, Look] | None = None,
    paper: Mapping[str, float] | None = None,
) -> None:
    """One row per arm: the estimate with its interval and, as a star, the paper's value."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    look = looks(points) if look is None else look
    printed = paper or {}
    axes.set_xscale("log" if log else "linear")
    places = dict(zip(points, range(len(points)), strict=True))
    for name, interval in points.items():
        style, place = look[name], places[name]
        if not math.isfinite(interval.estimate):
            words: Any = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
            axes.text(1.0, place, number(interval.estimate), color=style.colour, **words)
            continue
        ends = [interval.estimate]
        for end, edge, arrow in ((interval.low, 0.0, "<"), (interval.high, 1.0, ">")):
            if math.isfinite(end) and (end > 0 or not log):
                ends.append(end)
            elif interval.known:  # the interval leaves the picture
                axes.plot([edge], [place], arrow, color=style.colour, transform=axes.get_yaxis_transform())
        axes.plot([min(ends), max(ends)], [place, place], color=style.colour, linewidth=2)
        axes.plot([interval.estimate], [place], color=style.colour, marker=style.marker, markersize=6)
    for name, value in printed.items():
        if name in places:
            axes.plot([value], [places[name]], color="white", label="paper", zorder=5, **_STAR)
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.set_xlabel(label)
    low, high = axes.get_xlim()
    if log and high < 100 * low:  # too few powers of ten for tick labels
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())


def shared_legend(drawing: Drawing, columns: int = 4) -> None:
    """One legend for all panels, above them; a label that several panels use appears once."""
    entries: dict[str, Any] = {}
    for axes in drawing.axes:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    if entries:
        count = min(columns, len(entries))
        drawing.legend(
            entries.values(), entries.keys(), loc="outside upper left", ncols=count, handlelength=3.2
        )


def _limits(shown: Mapping[str, QuantileTrace], paper: Mapping[str, float], log: bool) -> tuple[float, float]:
    """Limits that contain every finite median, and every quantile within a factor of 10 of a median."""
    parts = [trace.level(0.5) for trace in shown.values()] + [
        np.array(list(paper.values()), dtype=np.float64)
    ]
    middle = np.concatenate(parts)
    middle = middle[np.isfinite(middle) & ((middle > 0) | (not log))]
    if not middle.size:
        return (0.1, 10.0) if log else (0.0, 1.0)
    low, high = float(middle.min()), float(middle.max())
    reach = (low / 10, high * 10) if log else (low - (high - low), high + (high - low))
    spread = np.concatenate([trace.level(q) for trace in shown.values() for q in _BAND] + [middle])
    spread = spread[(spread >= reach[0]) & (spread <= reach[1])]
    low, high = float(spread.min()), float(spread.max())
    if log:
        return low / 1.3, high * 1.3
    margin = 0.04 * (high - low) or 0.5
    return low - margin, high + margin


def _beyond(low: float, high: float, log: bool) -> tuple[float, float]:
    return (low / 10, high * 10) if log else (2 * low - high, 2 * high - low)


def write_caption(figure: Figure) -> None:
    """Put title, seeds and budget on the drawing itself, so that it can be shown alone."""
    lines = textwrap.wrap(figure.caption, int(figure.drawing.get_figwidth() * 15))
    figure.drawing.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5, color="#333333")


def png(drawing: Drawing) -> bytes:
    """The drawing in at most 256 colours, which is all that lines and text need."""
    from PIL import Image

    plain, small = io.BytesIO(), io.BytesIO()
    drawing.savefig(plain, format="png", dpi=_DPI, metadata={"Software": None})
    with Image.open(plain) as image:
        flat = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        flat.save(small, format="png", optimize=True)
    return small.getvalue()


def svg(drawing: Drawing) -> bytes:
    """The drawing as vectors; if the file would be too large, the curves are rasterised."""
    data = _vectors(drawing)
    if len(data) > SVG_LIMIT:
        for axes in drawing.axes:
            for artist in (*axes.lines, *axes.collections):
                artist.set_rasterized(True)
        data = _vectors(drawing)
    return data


def _vectors(drawing: Drawing) -> bytes:
    text = io.StringIO()
    drawing.savefig(text, format="svg", dpi=_DPI, metadata={"Date": None, "Creator": None})
    # hundredths of a point are finer than any screen or press
    return re.sub(r'(?<= d=")[^"]*', _shorten, text.getvalue()).encode()


def _shorten(path: re.Match[str]) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])
