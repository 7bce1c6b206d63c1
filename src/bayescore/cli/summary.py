"""The summary of a fit on the terminal: how it ended, how far to trust it, and its marginals."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bayescore.inference.export import model_of
from bayescore.inference.result import Fit, Outcome, Trust, why_no_diagnosis
from bayescore.metrics import Estimate

__all__ = ["show_fit"]

_COLOURS = {Outcome.CONVERGED: "green", Outcome.WORSE: "red", Outcome.DIVERGED: "red"}
_TONES = {Trust.GOOD: "green", Trust.POOR: "red", Trust.IMPROPER: "red"}


def show_fit(fit: Fit, out: Console, title: str) -> None:
    """The summary, on standard output."""
    counts = fit.counts
    calls = f"{counts.score_calls:,}"
    if counts.search_calls:
        calls += f", of which {counts.search_calls:,} went into the start"
    if counts.hessian_products:
        calls += f", and {counts.hessian_products:,} Hessian products"
    if counts.skipped_steps:
        calls += f"; {counts.skipped_steps:,} steps skipped for scores that were not finite"
    if fit.diagnosis is not None and fit.diagnosis.score_calls:
        calls += f"; and {fit.diagnosis.score_calls:,} for the diagnosis"
    none = f"none: {why_no_diagnosis(fit)}"
    lines = {
        "status": Text(fit.status, _COLOURS.get(fit.outcome, "yellow")),
        "score calls": Text(calls),
        "seconds": Text(f"{fit.seconds:.2f}"),
        "ELBO": Text(none if fit.elbo is None else _number(fit.elbo)),
        "k-hat": Text(none if fit.khat is None else _number(fit.khat)),
        "verdict": Text(fit.verdict, _TONES.get(fit.trust, "yellow")),
    }
    finite = bool(fit.family.flat().isfinite().all())
    if finite and getattr(model_of(fit.target), "has_reference", False):
        lines["reference"] = Text(str(fit.compare()))
    out.print(Text(title, "bold"), soft_wrap=True)
    for name, line in lines.items():
        out.print(Text.assemble((f"  {name:<12}", "dim"), line), soft_wrap=True)
    for note in fit.notes:
        out.print(Text(f"  - {note}", "dim"), soft_wrap=True)
    if not finite:
        return
    marginals = fit.marginals()
    rows, more = marginals.printed()
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for heading in marginals.headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print()
    out.print(table)
    if more:
        out.print(Text(f"  {more}", "dim"))


def _number(estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):
        return f"{estimate.value}"
    return str(estimate) if abs(estimate.value) < 1e6 else f"{estimate.value:.4g} ± {estimate.error:.2g}"
