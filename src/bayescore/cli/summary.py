"""The summary of a fit on the terminal: how it ended, how far to trust it, and its marginals."""

from __future__ import annotations

import math

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bayescore.inference.export import columns, groups, model_of
from bayescore.inference.result import Fit, Outcome, Trust, why_no_diagnosis
from bayescore.metrics import Estimate

__all__ = ["marginals", "show_fit"]

COORDINATES = 20
DRAWS = 10_000
LEVELS = (0.05, 0.5, 0.95)
_COLOURS = {Outcome.CONVERGED: "green", Outcome.WORSE: "red", Outcome.DIVERGED: "red"}
_ADVICE = {
    Trust.GOOD: "means, standard deviations and quantiles below can be used",
    Trust.USABLE: "rough numbers; draws kept by importance weights (--resample) are better",
    Trust.POOR: "try a richer family, another parametrisation or more steps",
}
_TONES = {Trust.GOOD: "green", Trust.POOR: "red", Trust.IMPROPER: "red"}


def marginals(fit: Fit) -> dict[str, tuple[float, ...]]:
    """Mean, standard deviation and quantiles of every quantity of the model, by name, from draws of q."""
    draws = fit.family.sample(DRAWS, seed=fit.seed)
    if not hasattr(model_of(fit.target), "to_posterior"):
        named = {f"theta[{i}]": draws[:, i] for i in range(min(fit.family.dim, COORDINATES))}
    else:
        named = columns(groups(fit.target, draws, fit.seed)["posterior"])
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    rows = {}
    for name, column in named.items():
        x = column.double().cpu()
        rows[name] = (float(x.mean()), float(x.std()), *torch.quantile(x, levels).tolist())
    return rows


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
    none = f"none: {why_no_diagnosis(fit)}"
    advice = f"; {_ADVICE[fit.trust]}" if fit.trust in _ADVICE else ""
    lines = {
        "status": Text(fit.status, _COLOURS.get(fit.outcome, "yellow")),
        "score calls": Text(calls),
        "seconds": Text(f"{fit.seconds:.2f}"),
        "ELBO": Text(none if fit.elbo is None else _number(fit.elbo)),
        "k-hat": Text(none if fit.khat is None else _number(fit.khat)),
        "verdict": Text(f"{fit.verdict}{advice}", _TONES.get(fit.trust, "yellow")),
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
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for column in ("", "mean", "sd", *(f"{level:.0%}" for level in LEVELS)):
        table.add_column(column, justify="right")
    rows = marginals(fit)
    for name, row in list(rows.items())[:COORDINATES]:
        table.add_row(Text(name), *(_short(value, row[1]) for value in row))
    out.print()
    out.print(table)
    total = max(len(rows), fit.family.dim)
    if total > COORDINATES:
        what = "numbers" if len(rows) > COORDINATES else "coordinates"
        out.print(Text(f"  the first {COORDINATES} of {total:,} {what}", "dim"))


def _short(value: float, sd: float) -> str:
    """A number, rounded to three digits of its standard deviation."""
    if not math.isfinite(value) or not 1e-6 < sd < 1e6 or abs(value) > 1e6 * sd:
        return f"{value:.4g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(sd)))}f}"


def _number(estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):
        return f"{estimate.value}"
    return str(estimate) if abs(estimate.value) < 1e6 else f"{estimate.value:.4g} ± {estimate.error:.2g}"
