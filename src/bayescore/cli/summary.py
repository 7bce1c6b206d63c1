"""What the terminal shows of a fit: how it ended, how far to trust it, and its marginals."""

from __future__ import annotations

import math

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bayescore.metrics import Estimate
from bayescore.result import Fit, Outcome

__all__ = ["console", "marginals", "show_fit"]

COORDINATES = 20
DRAWS = 10_000
LEVELS = (0.05, 0.5, 0.95)
_COLOURS = {Outcome.CONVERGED: "green", Outcome.WORSE: "red", Outcome.DIVERGED: "red"}
_PIPE_WIDTH = 120


def console() -> Console:
    """Standard output; a pipe gets wide lines instead of the 80 columns that rich assumes."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=_PIPE_WIDTH)


def marginals(fit: Fit) -> list[tuple[float, ...]]:
    """Mean, standard deviation and quantiles of the first coordinates, from draws of q."""
    draws = fit.family.sample(DRAWS, seed=fit.seed)[:, :COORDINATES].double()  # (n, at most 20)
    quantiles = torch.quantile(draws, torch.tensor(LEVELS, dtype=torch.float64), dim=0)
    rows = torch.stack([draws.mean(0), draws.std(0), *quantiles], -1)
    return [tuple(row) for row in rows.tolist()]


def show_fit(fit: Fit, out: Console, title: str) -> None:
    """The summary, on standard output."""
    counts = fit.counts
    calls = f"{counts.score_calls:,}"
    if counts.hessian_products:
        calls += f", and {counts.hessian_products:,} Hessian products"
    if counts.skipped_steps:
        calls += f"; {counts.skipped_steps:,} steps skipped for scores that were not finite"
    lines = {
        "status": Text(fit.status, _COLOURS.get(fit.outcome, "yellow")),
        "score calls": Text(calls),
        "seconds": Text(f"{fit.seconds:.2f}"),
        "ELBO": Text(f"none: {fit.reasons['elbo']}" if fit.elbo is None else _number(fit.elbo)),
        "k-hat": Text(
            f"none: {fit.reasons['khat']}" if fit.khat is None else f"{_number(fit.khat)}  {_advice(fit)}"
        ),
    }
    out.print(Text(title, "bold"), soft_wrap=True)
    for name, line in lines.items():
        out.print(Text.assemble((f"  {name:<12}", "dim"), line), soft_wrap=True)
    if not fit.family.flat().isfinite().all():
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for column in ("", "mean", "sd", *(f"{level:.0%}" for level in LEVELS)):
        table.add_column(column, justify="right")
    for i, row in enumerate(marginals(fit)):
        table.add_row(
            f"theta[{i}]", *(f"{value:.3f}" if abs(value) < 1e4 else f"{value:.3e}" for value in row)
        )
    out.print()
    out.print(table)
    if fit.family.dim > COORDINATES:
        out.print(Text(f"  the first {COORDINATES} of {fit.family.dim:,} coordinates", "dim"))


def _advice(fit: Fit) -> str:
    doubtful = fit.verdict.startswith("do not")
    return fit.verdict + ("; try a richer family, more steps or another start" if doubtful else "")


def _number(estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):
        return f"{estimate.value}"
    return str(estimate) if abs(estimate.value) < 1e6 else f"{estimate.value:.4g} ± {estimate.error:.2g}"
