"""Pictures of a fit: its density over that of the target, and its ELBO and loss during the run.

A density is shown by the smallest regions that hold p = 50, 80 and 95 % of its mass:
    {x : f(x) >= c_p},   c_p the largest c with  sum f(x_i) over f(x_i) >= c  at least  p sum f(x_i)      (1)
over a grid x_i. In two dimensions f is evaluated; beyond, it is a smoothed histogram of draws, for pairs of
the first four coordinates. The target is filled in grey and q is drawn in lines, so that the picture can
also be read in black and white.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bayescore.families.base import Family
from bayescore.inference.result import Fit
from bayescore.plotting.style import figure_style, new_figure
from bayescore.targets.base import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "GREY",
    "common_window",
    "draw_family",
    "draw_target",
    "histogram",
    "legend_handles",
    "plot_fit",
]

Grid = tuple[np.ndarray, np.ndarray, np.ndarray]
Window = tuple[tuple[float, float], ...]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito
MASSES = (0.5, 0.8, 0.95)
_GREYS = ("#E9E9E9", "#D0D0D0", "#ADADAD")  # from the outermost region inwards
GREY = _GREYS[1]
_SIZE = 160  # points per side of a grid
_DRAWS = 50_000
_BINS = 60
_CHUNK = 2_000  # points per call: for each of them a density may need memory for all data


def plot_fit(fit: Fit) -> Figure:
    """The density of a fit over its target, with the recorded ELBO and loss.

    One panel in one or two dimensions, pairs of the first four coordinates beyond. The target is shown if it
    has a density (one or two dimensions) or exact draws (more).
    """
    dim = min(fit.family.dim, 4)
    with figure_style():
        figure = new_figure(8.4, 5.2) if dim <= 2 else new_figure(2.2 * dim + 0.6, 2.1 * dim + 0.7)
        if dim <= 2:
            grid = figure.add_gridspec(2, 2, width_ratios=(2.1, 1))
            _density_panel(figure.add_subplot(grid[:, 0]), fit)
            spots = [grid[0, 1], grid[1, 1]]
        else:
            grid = figure.add_gridspec(dim, dim)
            _pairs(figure, grid, fit, dim)
            block = grid[0, 1:].subgridspec(1, 2) if dim == 3 else grid[:2, 2:].subgridspec(2, 1)
            spots = [block[0], block[1] if dim == 3 else block[1, 0]]
        for spot, name in zip(spots, ("elbo", "loss"), strict=True):
            _trace(figure.add_subplot(spot), fit, name)
        title = f"{type(fit.method).__name__} with {type(fit.family).__name__}"
        if fit.elbo is not None and fit.khat is not None:
            title += f"    ELBO {fit.elbo}    k-hat {fit.khat.value:.2f}"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        shown = fit.target is not None and (fit.target.has_density if dim <= 2 else fit.target.has_samples)
        figure.legend(
            handles=legend_handles(COLOURS[0], dim, target=shown), loc="outside lower left", ncols=3
        )
    return figure


def common_window(target: Target | None, families: Sequence[Family]) -> Window:
    """Limits of every coordinate that contain draws of the families and, if it has a sampler, the target."""
    clouds = [family.sample(_DRAWS, seed=0) for family in families]
    margin = 0.35
    if target is not None and target.has_samples:
        clouds.append(target.sample(_DRAWS, seed=0))
        margin = 0.06
    edges = torch.tensor([0.004, 0.996], dtype=torch.float64)
    low, high = torch.stack(
        [torch.quantile(cloud.double().cpu(), edges, dim=0) for cloud in clouds], 1
    )  # (n, D) each
    first, last = low.min(0).values, high.max(0).values
    pad = margin * (last - first)
    return tuple(zip((first - pad).tolist(), (last + pad).tolist(), strict=True))


def draw_target(axes: Axes, target: Target, window: Window) -> None:
    """Fill the regions (1) of a target in two dimensions."""
    _fill(axes, _evaluate(target, window))


def draw_family(
    axes: Axes, family: Family, window: Window, colour: str = COLOURS[0], draws: int = 400
) -> None:
    """Outline the regions (1) of a family in two dimensions, with a few of its draws."""
    points = family.sample(draws, seed=1).cpu().numpy()
    axes.plot(*points.T, ".", color=colour, alpha=0.35, markersize=2.5, zorder=2)
    _outline(axes, _evaluate(family, window), colour)
    axes.set(xlim=window[0], ylim=window[1])


def _density_panel(axes: Axes, fit: Fit) -> None:
    window = common_window(fit.target, [fit.family])
    has_density = fit.target is not None and fit.target.has_density
    if fit.family.dim == 2:
        if fit.target is not None and has_density:
            draw_target(axes, fit.target, window)
        draw_family(axes, fit.family, window)
        axes.set(xlabel=_name(0), ylabel=_name(1))
        axes.grid(False)
        return
    x, _, f = _evaluate(fit.family, window)
    if fit.target is not None and has_density:
        axes.fill_between(x, _evaluate(fit.target, window)[2], color=_GREYS[1], linewidth=0)
    axes.plot(x, f, color=COLOURS[0])
    axes.set(xlabel=_name(0), ylabel="density", xlim=window[0])
    axes.set_ylim(bottom=0)


def _pairs(figure: Figure, grid: Any, fit: Fit, dim: int) -> None:
    """Marginals on the diagonal, pairs below it."""
    window = common_window(fit.target, [fit.family])
    ours = fit.family.sample(_DRAWS, seed=1)[:, :dim].cpu().numpy()
    exact = fit.target is not None and fit.target.has_samples
    theirs = (
        fit.target.sample(_DRAWS, seed=2)[:, :dim].cpu().numpy() if fit.target is not None and exact else None
    )
    for i in range(dim):
        for j in range(i + 1):
            axes = figure.add_subplot(grid[i, j])
            axes.grid(False)
            if i == j:
                if theirs is not None:
                    axes.fill_between(*histogram(theirs[:, i], window[i]), color=_GREYS[1], linewidth=0)
                axes.plot(*histogram(ours[:, i], window[i]), color=COLOURS[0])
                axes.set_ylim(bottom=0)
                axes.set_yticks([])
                axes.spines["left"].set_visible(False)
            else:
                if theirs is not None:
                    _fill(axes, _histogram2d(theirs[:, [j, i]], (window[j], window[i])))
                _outline(axes, _histogram2d(ours[:, [j, i]], (window[j], window[i])), COLOURS[0])
                axes.set_ylim(window[i])
            axes.set_xlim(window[j])
            axes.tick_params(labelbottom=i == dim - 1, labelleft=j == 0 < i)
            axes.set_xlabel(_name(j) if i == dim - 1 else "")
            axes.set_ylabel(_name(i) if j == 0 < i else "")


def _trace(axes: Axes, fit: Fit, name: str) -> None:
    """A recorded column against score calls; the axis is scaled to all but the first tenth of the run."""
    calls = np.array(fit.history.columns["score_calls"])
    values = np.array(fit.history.columns.get(name, []))
    kept = np.isfinite(values)
    axes.set_title({"elbo": "ELBO (larger is better)", "loss": "loss (smaller is better)"}[name])
    axes.set_xlabel("score calls")
    if not kept.any():
        axes.text(
            0.5, 0.5, "not recorded", ha="center", va="center", transform=axes.transAxes, color="#666666"
        )
        axes.set(xticks=[], yticks=[])
        return
    calls, values = calls[kept], values[kept]
    axes.plot(calls, values, color=COLOURS[0], markevery=[-1], marker="o")
    if name == "loss" and values.min() > 0 and values.max() > 10 * values.min():
        axes.set_yscale("log")
        return
    late = values[len(values) // 10 :]
    pad = max(0.08 * (late.max() - late.min()), 0.02)
    axes.set_ylim(late.min() - pad, late.max() + pad)


def legend_handles(colour: str, dim: int, *, target: bool = True) -> list[Any]:
    """Handles of a legend for the greys and the lines."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    regions = f": {', '.join(f'{mass:.0%}' for mass in MASSES)} of its mass" if dim > 1 else ""
    handles: list[Any] = [Patch(color=_GREYS[1], label=f"target{regions}")] if target else []
    handles.append(Line2D([], [], color=colour, label="q, the same" if target and dim > 1 else f"q{regions}"))
    if dim == 2:
        handles.append(Line2D([], [], color=colour, marker=".", linestyle="", label="draws of q"))
    return handles


def _name(i: int) -> str:
    return f"theta[{i + 1}]"


def _evaluate(density: Target | Family, window: Window) -> Grid:
    """A density in one or two dimensions on a grid, scaled so that it integrates to one there."""
    sides = [torch.linspace(low, high, _SIZE, dtype=torch.float64) for low, high in window]
    points = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1).reshape(-1, len(sides))
    with torch.no_grad():
        parts = points.to(density.device, density.dtype).split(_CHUNK)
        values = torch.cat([density.log_prob(part) for part in parts]).cpu().double()
    values = values.nan_to_num(nan=-torch.inf).reshape([_SIZE] * len(sides))
    f = (values - values.max()).exp()
    cell = float(np.prod([side[1] - side[0] for side in sides]))
    return sides[0].numpy(), sides[-1].numpy(), (f / (f.sum() * cell)).numpy()


def histogram(x: np.ndarray, limits: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """A smoothed histogram: the middles of its bins and its heights."""
    counts, edges = np.histogram(x, bins=_BINS, range=limits, density=True)
    return 0.5 * (edges[1:] + edges[:-1]), _smooth(counts)


def _histogram2d(x: np.ndarray, window: Window) -> Grid:
    counts, first, second = np.histogram2d(x[:, 0], x[:, 1], bins=_BINS, range=window)
    f = np.apply_along_axis(_smooth, 1, np.apply_along_axis(_smooth, 0, counts))
    return 0.5 * (first[1:] + first[:-1]), 0.5 * (second[1:] + second[:-1]), f.T


def _smooth(counts: np.ndarray) -> np.ndarray:
    """Average over neighbouring bins with normal weights of standard deviation 1.5."""
    kernel = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    return np.convolve(np.pad(counts, 5), kernel / kernel.sum(), mode="valid")


def _levels(f: np.ndarray) -> list[float]:
    """c_p of (1), from the outermost region inwards."""
    ordered = np.sort(f.ravel())[::-1]
    mass = np.cumsum(ordered) / ordered.sum()
    return [float(ordered[min(int(np.searchsorted(mass, p)), len(ordered) - 1)]) for p in reversed(MASSES)]


def _fill(axes: Axes, grid: Grid) -> None:
    x, y, f = grid
    levels = _levels(f)
    if levels == sorted(set(levels)):
        axes.contourf(
            x, y, f, levels=[*levels, max(float(f.max()), levels[-1]) * 1.01], colors=_GREYS, zorder=1
        )


def _outline(axes: Axes, grid: Grid, colour: str) -> None:
    x, y, f = grid
    levels = _levels(f)
    if levels == sorted(set(levels)):
        axes.contour(x, y, f, levels=levels, colors=colour, linewidths=(1.0, 1.3, 1.7), zorder=3)
