"""The default estimators for tables beside scikit-learn's networks and trees, on ten tables, nothing tuned.

Five folds of cross-validation, the same for all. Everybody learns from the training rows alone; the
classifiers of scikit-learn are calibrated by a sigmoid in five inner folds, and its regressors get a Gaussian
whose mean and sd are those of their residuals in five inner folds. The score is the log loss, or the CRPS in
units of the target's standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
    Criterion,
    Experiment,
    Figure,
    Imported,
    Judgement,
    Profile,
    Records,
    Run,
    Table,
    mean_interval,
)
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, REPRODUCED
from bayescore_lab.experiments.networks.tabular_sets import SETS

OURS = "Ours"
PEERS = ("MLP", "Gradient boosting", "Histogram gradient boosting")
FOLDS = 5
#: seconds of a fold, of ours, on one core
SECONDS = {"compactiv": 25.0, "segment": 15.0}
COLUMNS = {
    "log loss or CRPS": "score",
    "error or RMSE": "error",
    "ECE": "ece",
    "values in 90 % intervals": "coverage",
    "seconds": "fit_seconds",
}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    """Every method on every fold (the seed) of every table of `settings["sets"]`.

    `settings["rows"]` takes only so many rows, `settings["epochs"]` only so many passes.
    """
    smaller = {name: settings[name] for name in ("rows", "epochs") if name in settings}
    return [
        Run(method, fold, {"set": name, "folds": FOLDS, **smaller}, cost=SECONDS.get(name, 10.0))
        for name in settings["sets"]
        for method in methods
        for fold in seeds
    ]


def sets_in(records: Records) -> list[str]:
    """The tables of the records, in the order of the list."""
    there = {record.config["set"] for record in records}
    return [one.name for one in SETS if one.name in there]


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for name in sets_in(records):
        for arm, chosen in records.where(set=name).arms.items():
            row: list[Cell] = [name, arm, len(chosen)]
            for metric in COLUMNS.values():
                has = any(metric in record.metrics for record in chosen)
                row.append(mean_interval(chosen.values(metric, math.inf)) if has else None)
            rows.append(row)
    note = (
        "Means over folds with 95 % t intervals. CRPS and RMSE are in units of the target's standard "
        "deviation. Seconds: of fitting, on one thread, calibration of scikit-learn's estimators included."
    )
    columns = ["table", "method", "folds", *COLUMNS]
    return [Table("Scores on test folds", columns, rows, name="scores", note=note, left=["table", "method"])]


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _mean(records: Records, name: str, arm: str) -> float | None:
    chosen = records.where(set=name).arms.get(arm)
    return None if chosen is None else float(chosen.values("score", math.inf).mean())


def at_or_below(kind: str) -> Criterion:
    """Ours is at or below all peers on at least half of the tables of a kind, or of both."""
    chosen = [one.name for one in SETS if kind in ("both", one.kind)]
    words = (
        f"Count the tables ({kind}) on which the mean score of ours over the folds is at most that of each "
        f"of {', '.join(PEERS)}. Reproduced if they are at least half, not reproduced here otherwise."
    )

    def judge(records: Records) -> Judgement:
        won: list[str] = []
        lost: list[str] = []
        for name in chosen:
            ours, others = _mean(records, name, OURS), [_mean(records, name, peer) for peer in PEERS]
            if ours is None or any(other is None for other in others):
                return Judgement(None, f"{name} lacks a method")
            (won if all(ours <= other for other in others if other is not None) else lost).append(name)
        sentence = f"At or below all on {len(won)} of {len(chosen)}: {', '.join(won) or 'none'}."
        verdict = REPRODUCED if 2 * len(won) >= len(chosen) else NOT_REPRODUCED
        return Judgement(verdict, sentence, {"won": won, "lost": lost})

    return Criterion(words, judge)


EXPERIMENT = Experiment(
    id="tabular",
    title="Default estimators for tables beside scikit-learn's",
    location="not in the paper",
    shows="Log loss and CRPS of the default estimators on ten tables in five folds, nothing tuned.",
    methods=(OURS, *PEERS),
    profiles={
        "quick": Profile(2, 0.3, {"sets": ["pima", "autoMPG6"], "rows": 150, "epochs": 3}),
        "paper": Profile(FOLDS, 12, {"sets": [one.name for one in SETS]}),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.networks.tabular_fits:execute"),
    tables=tables,
    figures=figures,
    axis="epoch",
    claims=(
        Claim(
            "On at least half of the ten tables the default estimators are at or below scikit-learn's "
            "perceptron and both of its gradient boostings.",
            "not in the paper",
            at_or_below("both"),
        ),
        Claim("The same for the five of classes.", "not in the paper", at_or_below("classes")),
        Claim("The same for the five of values.", "not in the paper", at_or_below("values")),
    ),
)
