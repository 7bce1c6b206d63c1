"""The style of every figure: colours for the colour-blind, line styles and markers for print in grey.

The colours are those of Okabe and Ito without the yellow, which is invisible on white paper. Colours,
line styles and markers repeat after 7, 5 and 8 arms, so no two of the first 280 arms look alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Look", "figure_style", "looks", "new_figure"]

_COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")

_SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "figure.titlesize": 11,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 8.5,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "bayescore",  # the same figure gives the same file
}


@dataclass(frozen=True)
class Look:
    """The colour, line style and marker of one arm."""

    colour: str
    line: Any
    marker: str


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """A look for each arm, by its position."""
    return {
        arm: Look(_COLOURS[i % len(_COLOURS)], _LINES[i % len(_LINES)], _MARKERS[i % len(_MARKERS)])
        for i, arm in enumerate(arms)
    }


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the project's style to everything drawn in the block."""
    try:
        import matplotlib
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'bayescore[plot]'") from missing
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches, without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
