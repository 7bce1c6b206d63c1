"""The tables, the figure and the rules of the untuned comparison.

For a task, x_as is the NLL of method a with seed s.
    difference   of a method to AdamW: the mean over seeds of x_as - x_AdamW,s, with Student's interval    (1)
    mean rank    of a method: its rank among the single networks by the mean over seeds, averaged over tasks;
                 its interval is a percentile bootstrap that draws tasks, and within each task seeds       (2)
    calibration  ECE, its mean over seeds; of a regression |c - 0.9|, where c is the share of test targets
                 inside the central 90 % intervals, averaged over seeds                                    (3)
A run that diverged has an infinite NLL. Only seeds that all compared methods have count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bayescore_lab.engine import (
    Criterion,
    Figure,
    Interval,
    Judgement,
    Records,
    Table,
    figure_style,
    looks,
    mean_interval,
    panels,
    shared_legend,
)
from bayescore_lab.engine.statistics import Floats, differences
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED, Verdict
from bayescore_lab.engine.wording import interval_text, number
from bayescore_lab.experiments.networks.untuned_arms import ENSEMBLE, OURS, PLAIN, SINGLE
from bayescore_lab.experiments.networks.untuned_tasks import TASKS

__all__ = [
    "best_rank",
    "calibrated_on_most",
    "calibration",
    "difference",
    "differences_figure",
    "differences_table",
    "error_within",
    "first_epoch_learns",
    "lower_on_most",
    "mean_ranks",
    "never_worse",
    "no_worse_than",
    "ranks_table",
    "scores_table",
    "summary_table",
]

SCORES = {
    "NLL": "nll",
    "error or RMSE": "error",
    "ECE": "ece",
    "ECE of calibrated labels": "ece_floor",
    "90 % coverage": "coverage",
    "CRPS": "crps",
    "OOD AUROC": "auroc",
    "seconds": "seconds",
}
LEVEL = 0.9  # of the intervals whose coverage is measured
RESAMPLES = 2000


# -- statistics ------------------------------------------------------------------------------------------


def tasks_in(records: Records, part: str | None = None) -> list[str]:
    """The tasks that were run, of one part or of all, in the order of the declaration."""
    found = {record.config["task"] for record in records}
    return [task.name for task in TASKS if task.name in found and part in (None, task.part)]


def difference(
    records: Records, task: str, arm: str, other: str = PLAIN, metric: str = "nll"
) -> Interval | None:
    """(1), or None if no seed has both."""
    ours, theirs = records.where(task=task).pairs(metric, arm, other)
    return mean_interval(differences(ours, theirs)) if len(ours) else None


def calibration(records: Records, task: str, arm: str) -> float:
    """(3); NaN if the method was not run, infinite if a run diverged."""
    chosen = records.where(task=task).arms.get(arm)
    if chosen is None:
        return math.nan
    if any("coverage" in record.metrics for record in chosen):
        return abs(float(np.mean(chosen.values("coverage", math.inf))) - LEVEL)
    return float(np.mean(chosen.values("ece", math.inf)))


def relative_error(records: Records, task: str, arm: str) -> float:
    """The mean error over AdamW's, minus 1; NaN if no seed has both."""
    ours, theirs = records.where(task=task).pairs("error", arm, PLAIN)
    if not len(ours):
        return math.nan
    one, other = float(np.mean(ours)), float(np.mean(theirs))
    return 0.0 if one == other else math.inf if other == 0 else one / other - 1


def mean_ranks(
    records: Records, arms: Sequence[str], tasks: Sequence[str], seed: int = 0
) -> dict[str, Interval]:
    """(2), over the tasks that all the methods have run; empty if there is none."""
    from scipy.stats import rankdata

    rng = np.random.default_rng(seed)
    exact, drawn = [], []
    for task in tasks:
        values = _by_seed(records.where(task=task), arms)
        if values is None:
            continue
        exact.append(rankdata(values.mean(1)))
        index = rng.integers(0, values.shape[1], (RESAMPLES, values.shape[1]))
        drawn.append(rankdata(values[:, index].mean(2), axis=0))  # (methods, resamples)
    if not exact:
        return {}
    ranks, chosen = np.stack(drawn), rng.integers(0, len(drawn), (RESAMPLES, len(drawn)))
    means = ranks[chosen, :, np.arange(RESAMPLES)[:, None]].mean(1)  # (resamples, methods)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    centre = np.mean(exact, axis=0)
    return {
        arm: Interval(float(centre[i]), float(low[i]), float(high[i]), len(exact))
        for i, arm in enumerate(arms)
    }


def _by_seed(records: Records, arms: Sequence[str]) -> Floats | None:
    """NLL (methods, seeds) for the seeds that every method has; None if there is none."""
    found = records.arms
    if any(arm not in found for arm in arms):
        return None
    seeds = sorted(set.intersection(*(set(found[arm].seeds) for arm in arms)))
    if not seeds:
        return None
    rows = [
        {r.seed: float(v) for r, v in zip(found[a], found[a].values("nll", math.inf), strict=True)}
        for a in arms
    ]
    return np.array([[row[seed] for seed in seeds] for row in rows])


class Standing(NamedTuple):
    """A method beside AdamW over some tasks."""

    tasks: list[str]
    differences: dict[str, Interval]
    calibrated: list[str]
    errors: dict[str, float]

    def level(self, tolerance: float = 0.02) -> list[str]:
        """The tasks whose NLL is at or below AdamW's, within the tolerance in nats or the interval."""
        return [t for t, d in self.differences.items() if d.estimate <= tolerance or (d.known and d.low <= 0)]

    @property
    def below(self) -> list[str]:
        return [task for task, d in self.differences.items() if d.estimate < 0]

    @property
    def worst(self) -> tuple[str, Interval]:
        return max(self.differences.items(), key=lambda pair: pair[1].estimate)

    @property
    def worst_error(self) -> tuple[str, float]:
        return max(self.errors.items(), key=lambda pair: pair[1])


def standing(records: Records, arm: str, tasks: Sequence[str]) -> Standing:
    """How a method stands beside AdamW on those of the tasks that both have run."""
    found = {task: difference(records, task, arm) for task in tasks}
    known = {task: d for task, d in found.items() if d is not None}
    good = [t for t in known if calibration(records, t, arm) <= calibration(records, t, PLAIN)]
    return Standing(list(known), known, good, {t: relative_error(records, t, arm) for t in known})


# -- tables ----------------------------------------------------------------------------------------------


def scores_table(records: Records, note: str) -> Table:
    """Every method on every task."""
    rows: list[list[Cell]] = []
    for task in tasks_in(records):
        for arm, chosen in records.where(task=task).arms.items():
            row: list[Cell] = [task, arm, len(chosen)]
            for metric in SCORES.values():
                has = any(metric in record.metrics for record in chosen)
                row.append(mean_interval(chosen.values(metric, math.inf)) if has else None)
            rows.append(row)
    columns = ["task", "method", "seeds", *SCORES]
    return Table("Scores on test data", columns, rows, name="scores", note=note, left=["task", "method"])


def ranks_table(records: Records) -> Table:
    """Mean ranks in NLL of the single networks: all tasks, each part, each kind."""
    kinds = {task.name: task.kind for task in TASKS}
    present = tasks_in(records)
    parts = {"all": present} | {part: tasks_in(records, part) for part in ("develop", "confirm", "again")}
    parts |= {kind: [t for t in present if kinds[t] == kind] for kind in dict.fromkeys(kinds.values())}
    arms = [arm for arm in SINGLE if arm in records.arms]
    found = {name: mean_ranks(records, arms, tasks) for name, tasks in parts.items() if tasks}
    found = {name: ranks for name, ranks in found.items() if ranks}
    rows: list[list[Cell]] = [[arm, *(ranks[arm] for ranks in found.values())] for arm in arms]
    if found:
        rows.append(["tasks", *(next(iter(ranks.values())).n for ranks in found.values())])
    return Table(
        "Mean rank in NLL among single networks, 1 is best",
        ["method", *found],
        rows if found else [],
        name="ranks",
        note="95 % bootstrap intervals over tasks and seeds; only tasks that every method has run.",
        left=["method"],
    )


def differences_table(records: Records) -> Table:
    """NLL minus AdamW's, paired by seed."""
    arms = [arm for arm in records.arms if arm != PLAIN]
    rows: list[list[Cell]] = [
        [task, *(difference(records, task, arm) for arm in arms)] for task in tasks_in(records)
    ]
    return Table(
        "NLL minus AdamW's, nats",
        ["task", *arms],
        rows,
        name="differences",
        note="Means over seeds with 95 % t intervals of the paired differences; below 0: better than AdamW.",
        left=["task"],
    )


def summary_table(records: Records) -> Table:
    """Every method beside AdamW, over all tasks that were run."""
    rows: list[list[Cell]] = []
    for arm in records.arms:
        found = standing(records, arm, tasks_in(records))
        if arm == PLAIN or not found.tasks:
            continue
        (task, worst), (place, error) = found.worst, found.worst_error
        rows.append(
            [
                arm, len(found.tasks), len(found.level()), len(found.below), worst, task,
                len(found.calibrated), 100 * error, place,
            ]
        )  # fmt: skip
    return Table(
        "Beside AdamW, over the tasks",
        [
            "method", "tasks", "NLL level or lower", "NLL lower", "worst NLL difference", "on",
            "calibration as good", "worst error, % above", "on ",
        ],
        rows,
        name="summary",
        note="Level: at most 0.02 nats above AdamW's, or the interval of the paired difference reaches 0.",
        left=["method", "on", "on "],
    )  # fmt: skip


# -- figure ----------------------------------------------------------------------------------------------

EDGE = 1.0  # nats; what lies further away is drawn at the edge


def differences_figure(records: Records) -> Figure:
    """The differences (1) in NLL to AdamW, a row per task."""
    tasks = tasks_in(records)
    arms = [arm for arm in (*SINGLE, ENSEMBLE) if arm in records.arms and arm != PLAIN]
    look = looks(arms)
    with figure_style():
        drawing, (panel,) = panels(1, width=7.6, height=0.5 + 0.42 * len(tasks))
        panel.set_xscale("symlog", linthresh=0.02)
        panel.axvline(0, color="black", linewidth=0.8)
        for shift, arm in enumerate(arms):
            found = {i: difference(records, task, arm) for i, task in enumerate(tasks)}
            known = {i: d for i, d in found.items() if d is not None and not math.isnan(d.estimate)}
            place = [i + 0.8 * ((shift + 0.5) / len(arms) - 0.5) for i in known]
            centre = np.array([np.clip(d.estimate, -EDGE, EDGE) for d in known.values()])
            ends = [(d.low, d.high) if d.known else (d.estimate, d.estimate) for d in known.values()]
            spread = np.clip(np.array(ends).reshape(-1, 2), -EDGE, EDGE)
            panel.errorbar(
                centre, place, xerr=np.abs(spread.T - centre), color=look[arm].colour,
                marker=look[arm].marker, linestyle="none", markersize=4, elinewidth=0.9, label=arm,
            )  # fmt: skip
        panel.set_xlim(-1.1 * EDGE, 1.1 * EDGE)
        ticks = [-1, -0.1, -0.02, 0, 0.02, 0.1, 1]
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        panel.set_yticks(range(len(tasks)), tasks)
        panel.set_ylim(len(tasks) - 0.5, -0.5)
        for i in range(1, len(tasks)):
            panel.axhline(i - 0.5, color="#cccccc", linewidth=0.5)
        panel.set_xlabel("NLL minus AdamW's, nats (left: better)")
        shared_legend(drawing, columns=5)
    note = (
        "Means over seeds with 95 % intervals of the paired differences; the scale is linear within 0.02, "
        f"and what lies beyond {EDGE:g} is drawn there."
    )
    return Figure("Untuned", drawing, len(records.seeds), "the same epochs for all methods", note=note)


# -- rules -----------------------------------------------------------------------------------------------

#: on how many tasks it holds, and a sentence
Judge = Callable[[Standing, Records], tuple[int, str]]


def _over_part(words: str, part: str, share: float, judge: Judge) -> Criterion:
    """A rule that a share of the tasks of a part must fulfil.

    Without a verdict unless ours and AdamW have run each of them.
    """
    wanted = [task.name for task in TASKS if task.part == part]

    def found(records: Records) -> Judgement:
        ours = standing(records, OURS, wanted)
        missing = [task for task in wanted if task not in ours.tasks]
        if missing:
            return Judgement(None, f"Not run with both methods: {', '.join(missing)}.")
        good, sentence = judge(ours, records)
        numbers = {"differences": {t: vars(d) for t, d in ours.differences.items()}}
        verdict = _share(good, len(wanted), share)
        return Judgement(verdict, sentence, numbers, f"{good} of {len(wanted)} tasks")

    return Criterion(words, found)


def never_worse(part: str, tolerance: float = 0.02) -> Criterion:
    """Ours has at most AdamW's NLL on every task of a part."""
    words = (
        f"On each task of the part {part!r}, take the NLL of ours minus AdamW's, paired by seed. A task is "
        f"good if the mean is at most {tolerance:g} nats, or its 95 % t interval reaches 0. Reproduced if "
        "all are good, not reproduced here if fewer than half are, partly otherwise."
    )

    def judge(ours: Standing, _: Records) -> tuple[int, str]:
        good, (task, worst) = ours.level(tolerance), ours.worst
        bad = [f"{t} {interval_text(d, 3)}" for t, d in ours.differences.items() if t not in good]
        sentence = (
            f"Good on {len(good)} of {len(ours.tasks)}; the worst is {task}, {interval_text(worst, 3)}."
        )
        return len(good), sentence + (f" Bad: {'; '.join(bad)}." if bad else "")

    return _over_part(words, part, 1.0, judge)


def lower_on_most(part: str, share: float = 0.8) -> Criterion:
    """Ours has a lower NLL than AdamW on most tasks of a part."""
    words = (
        f"Count the tasks of the part {part!r} on which the mean NLL of ours is below AdamW's, over the "
        f"seeds that both have. Reproduced if they are at least {share:.0%}, not reproduced here if fewer "
        "than half, partly otherwise."
    )

    def judge(ours: Standing, _: Records) -> tuple[int, str]:
        others = [task for task in ours.tasks if task not in ours.below]
        return len(ours.below), _counted("Lower", ours.below, ours.tasks, others)

    return _over_part(words, part, share, judge)


def calibrated_on_most(part: str, share: float = 0.8) -> Criterion:
    """Ours has at most AdamW's calibration error on most tasks of a part."""
    words = (
        f"Count the tasks of the part {part!r} on which the ECE of ours, or for a regression the distance of "
        f"its coverage from 90 %, is at most AdamW's, means over seeds. Reproduced if they are at least "
        f"{share:.0%}, not reproduced here if fewer than half, partly otherwise."
    )

    def judge(ours: Standing, records: Records) -> tuple[int, str]:
        others = [
            f"{task} ({number(calibration(records, task, OURS), 2)} against "
            f"{number(calibration(records, task, PLAIN), 2)})"
            for task in ours.tasks
            if task not in ours.calibrated
        ]
        return len(ours.calibrated), _counted("As good", ours.calibrated, ours.tasks, others)

    return _over_part(words, part, share, judge)


def error_within(part: str, bound: float = 0.03) -> Criterion:
    """Ours has at most AdamW's error on every task of a part, up to a share."""
    words = (
        f"On each task of the part {part!r}, take the mean error, or RMSE, of ours over AdamW's. Reproduced "
        f"if it is at most {1 + bound:g} on all, not reproduced here if on fewer than half, partly otherwise."
    )

    def judge(ours: Standing, _: Records) -> tuple[int, str]:
        bad = [f"{task} {100 * e:+.1f} %" for task, e in ours.errors.items() if not e <= bound]
        good = len(ours.tasks) - len(bad)
        task, worst = ours.worst_error
        sentence = (
            f"Within {bound:.0%} on {good} of {len(ours.tasks)}; the worst is {task}, {100 * worst:+.1f} %."
        )
        return good, sentence + (f" Beyond: {'; '.join(bad)}." if bad else "")

    return _over_part(words, part, 1.0, judge)


def best_rank(part: str) -> Criterion:
    """Ours has the best mean rank in NLL of the single networks."""
    words = (
        f"Rank the single networks by their mean NLL on each task of the part {part!r}, and average over "
        "tasks. Reproduced if ours is first, partly if its mean rank is within the 95 % bootstrap interval "
        "of the first, not reproduced here otherwise."
    )
    wanted = [task.name for task in TASKS if task.part == part]

    def judge(records: Records) -> Judgement:
        ranks = mean_ranks(records, SINGLE, wanted)
        if not ranks or ranks[OURS].n < len(wanted):
            return Judgement(None, f"Not every single network has run every task of the part {part!r}.")
        order = sorted(ranks, key=lambda arm: ranks[arm].estimate)
        first = ranks[order[0]]
        ours = ranks[OURS].estimate
        verdict = REPRODUCED if ours <= first.estimate else PARTLY if ours <= first.high else NOT_REPRODUCED
        sentence = "Mean ranks: " + ", ".join(f"{arm} {interval_text(ranks[arm], 3)}" for arm in order) + "."
        shown = f"{ours:.2f}, place {order.index(OURS) + 1} of {len(order)}"
        return Judgement(verdict, sentence, {arm: vars(rank) for arm, rank in ranks.items()}, shown)

    return Criterion(words, judge)


def no_worse_than(other: str, task: str, metrics: Mapping[str, str]) -> Criterion:
    """Ours is at or below another method on one task, in each of some metrics (name -> what it is)."""
    words = (
        f"On {task}, take {', '.join(metrics.values())} of ours minus that of {other}, paired by seed. "
        "Reproduced if no mean is above 0, not reproduced here if the 95 % t interval of one lies above 0, "
        "partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        found = {what: difference(records, task, OURS, other, name) for name, what in metrics.items()}
        known = {what: d for what, d in found.items() if d is not None}
        if len(known) < len(metrics) or not all(d.n > 1 for d in known.values()):
            return Judgement(None, f"Fewer than two seeds of ours and {other} on {task}.")
        worse = any((d.known and d.low > 0) or d.estimate == math.inf for d in known.values())
        level = all(d.estimate <= 0 for d in known.values())
        sentence = "; ".join(f"{what} {interval_text(d, 3)}" for what, d in known.items())
        numbers = {what: vars(d) for what, d in known.items()}
        verdict = NOT_REPRODUCED if worse else REPRODUCED if level else PARTLY
        return Judgement(verdict, f"Differences on {task}: {sentence}.", numbers, sentence)

    return Criterion(words, judge)


def first_epoch_learns(tasks: Sequence[str]) -> Criterion:
    """The first epoch of ours on pretrained networks ends below the loss that it began with."""
    words = (
        f"Count the runs of ours on {', '.join(tasks)} whose loss on training rows, at a draw of the weights "
        "after the first epoch, is at most that of the initial weights. Reproduced if these are all, not "
        "reproduced here if fewer than half, partly otherwise; at least one run on each."
    )

    def judge(records: Records) -> Judgement:
        runs = [r for task in tasks for r in records.where(task=task) if r.method == OURS]
        missing = [task for task in tasks if task not in {r.config["task"] for r in runs}]
        if missing:
            return Judgement(None, f"No run of ours on {', '.join(missing)}.")
        ends = [(r, r.metrics["loss_before"], r.metrics["loss_after_one_epoch"]) for r in runs]
        bad = [f"{r.config['task']}, seed {r.seed}: {a:.3g} to {b:.3g}" for r, a, b in ends if not b <= a]
        sentence = f"In {len(runs) - len(bad)} of {len(runs)} runs." + (
            f" Not: {'; '.join(bad)}." if bad else ""
        )
        good = len(runs) - len(bad)
        return Judgement(_share(good, len(runs), 1.0), sentence, ours=f"{good} of {len(runs)} runs")

    return Criterion(words, judge)


def _share(good: int, count: int, wanted: float) -> Verdict:
    """Reproduced from a wanted share on, not reproduced below a half."""
    return REPRODUCED if good >= wanted * count else NOT_REPRODUCED if good < count / 2 else PARTLY


def _counted(what: str, good: Sequence[str], tasks: Sequence[str], others: Sequence[str]) -> str:
    rest = f" Not on {', '.join(others)}." if others else ""
    return f"{what} on {len(good)} of {len(tasks)}.{rest}"
