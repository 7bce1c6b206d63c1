"""The tables and figures that the synthetic experiments share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Figure,
    PaperValue,
    Records,
    Table,
    arm_table,
    captioned,
    median_interval,
    panels,
    plot_points,
    plot_traces,
    shared_legend,
)

__all__ = ["MIXTURE_METRICS", "SETTING", "bound_line", "kl_figure", "kl_tables", "rates_table"]

#: what the experiments share unless they say otherwise
SETTING: dict[str, Any] = {"pilots": 5, "trace_draws": 10_000, "final_draws": 100_000, "records": 100}

MIXTURE_METRICS = {
    "forward KL": "forward_kl",
    "forward KL, 500 draws": "forward_kl_500",
    "weight error": "weight_error",
}

MEDIANS = "Medians over targets with 95 % intervals."
LINES = "Lines: medians over targets; bands: 10 to 90 %."


def bound_line(axes: Any, records: Records) -> None:
    """The median forward KL of the Gaussian with the target's own moments."""
    value = float(sorted(records.values("bound"))[len(records) // 2])
    axes.axhline(value, color="0.35", linewidth=1.0, linestyle=(0, (1, 1)), label="best Gaussian")


def kl_figure(
    records: Records,
    title: str,
    *,
    paper: Mapping[str, float] | None = None,
    traces: Sequence[tuple[str, str]] = (("forward_kl", "forward KL"),),
    points: tuple[str, str] = ("forward_kl", "final forward KL"),
    bound: bool = False,
    note: str = "",
    name: str = "",
) -> Figure:
    """Traces against score calls, then one number of every arm with its interval."""
    drawing, axes = panels(len(traces) + 1, width=3.7, height=3.1)
    for place, (metric, label) in zip(axes, traces, strict=False):
        plot_traces(place, records, metric, label=label)
    if bound:
        bound_line(axes[0], records)
    metric, label = points
    medians = {a: median_interval(chosen.values(metric, math.inf)) for a, chosen in records.arms.items()}
    plot_points(axes[-1], medians, label=label, log=True, paper=paper)
    shared_legend(drawing, columns=3)
    star = " Star: the paper's value." if paper else ""
    return captioned(drawing, records, title=title, name=name, note=f"{LINES}{star} {note}".strip())


def kl_tables(
    records: Records,
    title: str,
    metrics: Mapping[str, str | Callable[..., float]],
    paper: Sequence[PaperValue] = (),
    note: str = "",
) -> list[Table]:
    """Every arm with its metrics, the paper's number beside."""
    return [
        arm_table(records, metrics, paper, title=title, note=f"{MEDIANS} {note}".strip()),
        rates_table(records),
    ]


def rates_table(records: Records) -> Table:
    """What the pilots gave for each learning rate, and which was chosen."""
    rows: list[list[Any]] = []
    for name, chosen in records.arms.items():
        first = chosen[0]
        if first.metrics.get("pilot"):
            tried = ", ".join(f"{k}: {v[-1]:.3g}" for k, v in first.metrics["pilot"].items())
            rows.append([name, f"{first.metrics['learning_rate']:g}", first.config["pilots"], tried])
    return Table(
        title="Learning rates, chosen on pilot targets that no result uses",
        columns=["arm", "chosen", "pilot targets", "median final forward KL of each"],
        rows=rows,
        name="learning-rates",
        note="The same grid and the same budget for every method.",
    )
