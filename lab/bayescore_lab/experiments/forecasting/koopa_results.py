"""The tables, figures and rules of the forecasting experiments: arms are compared by pairs, set by set.

The grids take hours and are drawn while they grow. Fewer than FEWEST seeds are not judged: a rule that asks
for no significant difference would hold because there are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from bayescore_lab.engine import (
    Criterion,
    Figure,
    Judgement,
    PaperValue,
    Records,
    Table,
    arm_table,
    captioned,
    figure_style,
    looks,
    mean_interval,
    paired_t,
    panels,
    shared_legend,
)
from bayescore_lab.engine.statistics import differences
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.engine.wording import counted, interval_text

__all__ = [
    "FEWEST",
    "METRICS",
    "coverage_within",
    "data_sets",
    "data_tables",
    "differences_table",
    "interval_figure",
    "lower_on",
    "no_more_than",
    "not_worse_on",
]

FEWEST = 5

#: by table of a data set: heading -> metric
METRICS = {
    "": {
        "MSE": "mse",
        "MAE": "mae",
        "NLL": "nll",
        "NLL, noise of the test": "nll_test_noise",
        "CRPS": "crps",
    },
    "more draws": {
        "MSE, 30 draws": "mse_30",
        "NLL, 30 draws": "nll_30",
        "CRPS, 30 draws": "crps_30",
        "NLL, noise per step": "nll_steps",
        "NLL, calibrated": "nll_calibrated",
        "best epoch": "epoch",
        "CPU seconds": "training_cpu_seconds",
    },
    "intervals": {
        "50 % covers": "coverage_50",
        "80 % covers": "coverage_80",
        "95 % covers": "coverage_95",
        "80 % width": "width_80",
        "80 % calibrated covers": "calibrated_80",
        "80 % calibrated width": "calibrated_width_80",
    },
}


def data_sets(records: Records) -> list[str]:
    """The data sets in the order of the grid."""
    return list(dict.fromkeys(record.config["data"] for record in records))


def data_tables(records: Records, data: str, paper: Sequence[PaperValue], note: str) -> list[Table]:
    """One data set: every arm, with t intervals of the means over seeds, and the paper's numbers."""
    chosen = records.where(data=data)
    found = []
    for part, metrics in METRICS.items():
        title = f"{data}, {part}" if part else data
        name = title.lower().replace(", ", "-").replace(" ", "-")
        printed = () if part else paper
        below = "" if part else note
        table = arm_table(
            chosen, metrics, printed, title=title, name=name, note=below, interval=mean_interval
        )
        found.append(table)
    return found


def differences_table(records: Records, metric: str, label: str, ours: str) -> Table:
    """Every arm minus ours, paired by seed, with the t interval of the mean and the t-test's p-value."""
    rows: list[list[Cell]] = []
    for data in data_sets(records):
        chosen = records.where(data=data)
        for arm in chosen.arms:
            theirs, own = chosen.pairs(metric, arm, ours)
            if arm != ours and len(own) > 1:
                interval = mean_interval(differences(theirs, own))
                rows.append([data, arm, len(own), interval, paired_t(theirs, own).p])
    return Table(
        title=f"{label}: arm minus {ours}, paired by seed",
        columns=["data", "arm", "pairs", "difference", "p"],
        rows=rows,
        name=f"differences-{metric.replace('_', '-')}",
        note="Above 0: ours is better. p of the paired t-test, uncorrected for the number of comparisons.",
    )


def interval_figure(records: Records) -> Figure:
    """How often intervals of 50, 80 and 95 % hold the test values, by data set; the diagonal is right."""
    names = data_sets(records)
    with figure_style():
        drawing, axes = panels(len(names), width=max(3.2, 9 / len(names)), height=3.0)
        for panel, data in zip(axes, names, strict=True):
            arms = records.where(data=data).arms
            look = looks(arms)
            panel.plot([50, 95], [50, 95], color="0.6", linewidth=1)
            for arm, chosen in arms.items():
                shares = [100 * chosen.values(f"coverage_{level}").mean() for level in (50, 80, 95)]
                style = look[arm]
                panel.plot(
                    [50, 80, 95], shares, color=style.colour, linestyle=style.line, marker=style.marker,
                    markersize=4, label=arm,
                )  # fmt: skip
            panel.set(title=data, xlabel="interval, %", ylabel="of the test values inside, %")
        shared_legend(drawing)
    title = "Intervals against the test values"
    return captioned(drawing, records, title=title, note="30 draws, one noise level chosen on validation.")


def _pairs(records: Records, metric: str, arm: str, than: str, data: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of two arms by seed; raises _TooFew for fewer than FEWEST seeds."""
    ours, theirs = records.where(data=data).pairs(metric, arm, than)
    if len(ours) < FEWEST:
        raise _TooFew(f"{arm} and {than}", data, len(ours))
    return ours, theirs


class _TooFew(Exception):
    """What a rule compares has too few seeds."""

    def __init__(self, arms: str, data: str, count: int) -> None:
        seeds = counted(count, "seed")
        super().__init__(f"Not judged: {seeds} of {arms} on {data}, and {FEWEST} are needed.")


def _criterion(words: str, judge: Callable[[Records], Judgement]) -> Criterion:
    """A rule that does not judge where there are too few seeds."""

    def careful(records: Records) -> Judgement:
        try:
            return judge(records)
        except _TooFew as problem:
            return Judgement(None, str(problem))

    return Criterion(f"{words} Fewer than {FEWEST} seeds are not judged.", careful)


def not_worse_on(
    metrics: Sequence[str], arm: str, than: str, data: Sequence[str], at_least: int
) -> Criterion:
    """`arm` is significantly worse than `than` nowhere, and lower in the mean on `at_least` data sets."""
    listed = ", ".join(metrics)
    words = (
        f"On each of {', '.join(data)}, take {listed} of {arm} minus that of {than}, seed by seed. "
        "Reproduced if the 95 % t interval of no mean lies above 0 and, for each metric, the mean is below 0 "
        f"on at least {at_least} of {len(data)}; not reproduced here if some interval lies above 0; partly "
        "otherwise."
    )

    def judge(records: Records) -> Judgement:
        sentences, counts, verdict = [], [], REPRODUCED
        for metric in metrics:
            lower, worse = 0, []
            for name in data:
                interval = mean_interval(differences(*_pairs(records, metric, arm, than, name)))
                lower += interval.estimate < 0
                worse += [f"{name} by {interval_text(interval, 3)}"] if interval.low > 0 else []
            where = ", ".join(worse) or "none"
            sentences.append(f"{metric}: lower on {lower} of {len(data)}, significantly worse on {where}.")
            counts.append(f"{metric} lower on {lower}, worse on {len(worse)} of {len(data)}")
            if worse:
                verdict = NOT_REPRODUCED
            elif lower < at_least and verdict == REPRODUCED:
                verdict = PARTLY
        return Judgement(verdict, " ".join(sentences), ours="; ".join(counts))

    return _criterion(words, judge)


def lower_on(metric: str, arm: str, than: str, data: str) -> Criterion:
    """`arm` has lower values than `than` on average over seeds, on one data set."""
    words = (
        f"On {data}, take {metric} of {arm} minus that of {than}, seed by seed. Reproduced if the 95 % t "
        "interval of the mean lies below 0, not reproduced here if above, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        interval = mean_interval(differences(*_pairs(records, metric, arm, than, data)))
        verdict = REPRODUCED if interval.high < 0 else NOT_REPRODUCED if interval.low > 0 else PARTLY
        shown = interval_text(interval, 3)
        return Judgement(verdict, f"{data}: {shown} over {interval.n}.", ours=shown)

    return _criterion(words, judge)


def no_more_than(metric: str, arm: str, than: str, data: str, factor: float) -> Criterion:
    """The mean of `arm` is at most `factor` times that of `than`; a negative mean may rise by that share."""
    words = (
        f"On {data}, take the means of {metric} over the seeds of both {arm} and {than}, a and b. "
        f"Reproduced if (a - b)/|b| is at most {factor - 1:.2g}, not reproduced here otherwise."
    )

    def judge(records: Records) -> Judgement:
        ours, theirs = _pairs(records, metric, arm, than, data)
        if not np.isfinite(ours).all():
            return Judgement(NOT_REPRODUCED, f"On {data} runs of {arm} diverged.")
        a, b = float(ours.mean()), float(theirs.mean())
        verdict = REPRODUCED if a - b <= (factor - 1) * abs(b) else NOT_REPRODUCED
        shown = f"{a:.4g} and {b:.4g}"
        numbers = {"ours": a, "theirs": b}
        return Judgement(verdict, f"{data}: {shown} over {len(ours)}.", numbers, shown)

    return _criterion(words, judge)


def coverage_within(arm: str, data: Sequence[str], low: float, high: float, at_least: int) -> Criterion:
    """Calibrated 80 % intervals of `arm` hold a share of the test values between `low` and `high`."""
    words = (
        f"Reproduced if the mean share of test values inside the calibrated 80 % intervals of {arm} is from "
        f"{low:g} to {high:g} on at least {at_least} of {', '.join(data)}; not reproduced here otherwise."
    )

    def judge(records: Records) -> Judgement:
        shares = {}
        for name in data:
            own = records.where(data=name).arms.get(arm, Records(()))
            if len(own) < FEWEST:
                raise _TooFew(arm, name, len(own))
            shares[name] = float(own.values("calibrated_80", math.nan).mean())
        good = sum(low <= share <= high for share in shares.values())
        sentence = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
        verdict = REPRODUCED if good >= at_least else NOT_REPRODUCED
        return Judgement(verdict, f"{sentence}.", shares, f"{good} of {len(data)} sets")

    return _criterion(words, judge)
