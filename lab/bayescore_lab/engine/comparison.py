"""The two tables most experiments want: every arm beside the paper's number, and significance by pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from bayescore_lab.engine.declare import PaperValue
from bayescore_lab.engine.record import Metric, Records
from bayescore_lab.engine.rules import pairs
from bayescore_lab.engine.statistics import Interval, holm, median_interval, paired_t, wilcoxon
from bayescore_lab.engine.tables import Cell, Table
from bayescore_lab.engine.wording import number

__all__ = ["arm_table", "significance_table"]


def arm_table(
    records: Records,
    metrics: Mapping[str, Metric],
    paper: Sequence[PaperValue] = (),
    *,
    title: str,
    name: str = "",
    note: str = "",
    interval: Callable[[Sequence[float]], Interval] = median_interval,
) -> Table:
    """One row per arm: the number of runs and, for each metric (heading -> metric), ours and the paper's.

    A run without the metric counts as +inf; a cell is empty where no run of the arm has it. The paper's
    column appears for the metrics that it has values for.
    """
    printed = {(value.arm, value.metric): value for value in paper}
    known = {value.metric for value in paper}
    columns = ["arm", "runs"]
    for heading, metric in metrics.items():
        columns += [heading, f"{heading}, paper"] if metric in known else [heading]
    rows: list[list[Cell]] = []
    for arm, chosen in records.arms.items():
        row: list[Cell] = [arm, len(chosen)]
        for metric in metrics.values():
            has = callable(metric) or any(metric in record.metrics for record in chosen)
            row.append(interval(list(chosen.values(metric, math.inf))) if has else None)
            if metric in known:
                value = printed.get((arm, str(metric)))
                row.append(number(value.value) if value else None)
        rows.append(row)
    places = ", ".join(dict.fromkeys(value.location for value in paper))
    source = f"Paper: {places}." if places else ""
    return Table(title=title, columns=columns, rows=rows, name=name, note=f"{note} {source}".strip())


def significance_table(
    records: Records,
    metric: Metric,
    compared: Sequence[tuple[str, str]],
    *,
    title: str,
    name: str = "significance",
) -> Table:
    """For pairs of arms, the paired t-test (the paper's) and Wilcoxon's, each also with Holm's correction."""
    sides = [pairs(records, metric, one, other) for one, other in compared]
    t_tests = [paired_t(*side) for side in sides]
    ranks = [wilcoxon(*side) for side in sides]
    rows: list[list[Cell]] = [
        [f"{one} against {other}", t.n, t.p, t_holm, w.p, w_holm]
        for (one, other), t, t_holm, w, w_holm in zip(
            compared, t_tests, holm([t.p for t in t_tests]), ranks, holm([w.p for w in ranks]), strict=True
        )
    ]
    columns = ["arms", "pairs", "p, paired t", "p, paired t, Holm", "p, Wilcoxon", "p, Wilcoxon, Holm"]
    return Table(title=title, columns=columns, rows=rows, name=name, note="Two-sided; uncorrected and Holm.")
