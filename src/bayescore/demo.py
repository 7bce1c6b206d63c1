"""The demonstration: one target with five modes, three fits, a table and a picture.

    python -m bayescore.demo        writes demo/demo.png

Proximal score matching and ADVI fit a mixture of five Gaussians from one start, BaM the Gaussian with the
mean and covariance of that start, all with the same number of scores. The start was chosen among several as
one from which proximal score matching recovers the target; from most of the others it did not. So this shows
what a fit looks like, and is no evidence about methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bayescore.experiments.style import figure_style
from bayescore.families import FullGaussian, GaussianMixture
from bayescore.fit import fit
from bayescore.methods import ADVI, BaM, ProximalScore
from bayescore.metrics import ForwardKL
from bayescore.plots import COLOURS, common_window, draw_family, draw_target, key
from bayescore.result import Fit
from bayescore.targets import GaussianMixture as MixtureTarget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["demonstrate", "main", "make_table", "picture"]

STEPS, SAMPLES = 500, 10
PLACE = Path("demo/demo.png")

WEIGHTS = (0.30, 0.20, 0.20, 0.15, 0.15)
MEANS = ((0.0, 0.0), (3.2, 1.2), (0.4, 3.4), (-3.2, 1.0), (-1.2, -3.2))
COVARIANCES = (
    ((1.0, 0.5), (0.5, 0.7)),
    ((0.6, -0.3), (-0.3, 0.8)),
    ((1.2, 0.0), (0.0, 0.4)),
    ((0.5, 0.2), (0.2, 1.0)),
    ((1.2, -0.4), (-0.4, 0.6)),
)


def demonstrate(steps: int = STEPS) -> dict[str, Fit]:
    """The three fits by the name of their method, from one start and at equal score calls."""
    target = MixtureTarget(
        *(torch.tensor(part, dtype=torch.float64) for part in (WEIGHTS, MEANS, COVARIANCES))
    )
    q0 = GaussianMixture.init(dim=2, components=5, spread=2.0, seed=0)
    gaussian = FullGaussian.from_moments(q0.mean, q0.covariance)
    return {
        "ProximalScore": fit(target, q0, ProximalScore(samples=SAMPLES), steps=steps, seed=0),
        # the best of 0.01, 0.03 and 0.1 here
        "ADVI": fit(target, q0, ADVI(samples=SAMPLES, learning_rate=0.1), steps=steps, seed=0),
        "BaM": fit(target, gaussian, BaM(batch=SAMPLES), steps=steps, seed=0),
    }


def make_table(fits: Mapping[str, Fit]) -> Table:
    """Divergence from the target, diagnosis and cost of each fit."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for column in ("method", "family"):
        table.add_column(column, no_wrap=True)
    for column in ("forward KL", "ELBO", "k-hat", "calls", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, one in fits.items():
        assert one.target is not None
        divergence = float(ForwardKL(one.target, draws=100_000)(one.family))
        khat = f"{one.khat.value:.2f}" if one.khat is not None else ""
        cells = (f"{divergence:.4f}", str(one.elbo), khat, f"{one.score_calls:,}", f"{one.seconds:.1f} s")
        table.add_row(name, one.family.name, *cells)
    return table


def picture(fits: Mapping[str, Fit]) -> Figure:
    """The target's regions of 50, 80 and 95 % mass in grey, those of each fit over them."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("the picture needs matplotlib: pip install 'bayescore[plot]'") from missing
    first = next(iter(fits.values()))
    assert first.target is not None
    window = common_window(first.target, [one.family for one in fits.values()])
    with figure_style():
        figure = Figure(figsize=(3.1 * len(fits), 3.5), layout="constrained")
        panels = figure.subplots(1, len(fits), sharey=True)
        for panel, colour, (name, one) in zip(panels, COLOURS, fits.items(), strict=False):
            draw_target(panel, first.target, window)
            draw_family(panel, one.family, window, colour)
            panel.set_title(f"{name}, {type(one.family).__name__}\nELBO {one.elbo}")
            panel.set_xlabel("theta[0]")
            panel.grid(False)
        panels[0].set_ylabel("theta[1]")
        figure.legend(handles=key("#000000", dim=2), loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    """Fit, print the table, write the picture."""
    out = Console(soft_wrap=True, highlight=False)
    calls = f"{STEPS * SAMPLES:,}"
    out.print(
        f"A mixture of five Gaussians in two dimensions, fitted three times with {calls} score calls each ..."
    )
    fits = demonstrate()
    out.print(make_table(fits))
    out.print("\nForward KL over 100,000 exact draws. Where it and the ELBO are 0, q is the target.")
    out.print(
        "The start was chosen as one from which ProximalScore recovers the target; from most it does not."
    )
    out.print("This is a picture of a fit, not a comparison of methods.")
    PLACE.parent.mkdir(exist_ok=True)
    picture(fits).savefig(PLACE, dpi=110)
    out.print(f"wrote {PLACE}")


if __name__ == "__main__":
    main()
