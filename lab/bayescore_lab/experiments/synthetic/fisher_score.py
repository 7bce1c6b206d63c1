"""Appendix D.5: ours beside Fisher and Score on Gaussian targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
    Experiment,
    Figure,
    PaperValue,
    Profile,
    Records,
    Run,
    Table,
    all_of,
    medians,
    ratio_within,
)
from bayescore_lab.experiments.synthetic.arms import OURS, arm, execute, grid
from bayescore_lab.experiments.synthetic.drawing import kl_figure, kl_tables
from bayescore_lab.experiments.synthetic.gaussian import GAUSSIAN

LOCATION = "Appendix D.5, table of Fisher and Score"
ARMS = {
    "Ours": OURS,
    "Ours, default": arm("proximal", tuned=False),
    "Fisher": arm("fisher"),
    "Score": arm("score"),
}
PAPER = (
    PaperValue("Fisher", "forward_kl", 5.6e-4, LOCATION),
    *(
        PaperValue(name, metric, value, LOCATION)
        for name, values in {"Ours": (260, 320), "Fisher": (273, 358), "Score": (284, 362)}.items()
        for metric, value in zip(("hit_0.01", "hit_0.001"), values, strict=True)
    ),
)
TITLE = "Fisher and Score beside ours, Gaussian targets"


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return grid(ARMS, {**GAUSSIAN, **settings}, seeds, methods)


def tables(records: Records) -> list[Table]:
    metrics = {
        "iterations to 1e-2": "hit_0.01",
        "iterations to 1e-3": "hit_0.001",
        "forward KL": "forward_kl",
    }
    note = "Fisher and Score take one Hessian product per score call too."
    return kl_tables(records, TITLE, metrics, PAPER, note=note)


def figures(records: Records) -> list[Figure]:
    printed = {value.arm: value.value for value in PAPER if value.metric == "hit_0.01"}
    return [kl_figure(records, TITLE, points=("hit_0.01", "iterations to 1e-2"), paper=printed)]


EXPERIMENT = Experiment(
    id="fisher-score",
    title=TITLE,
    location=LOCATION,
    shows="Iterations to a forward KL of 1e-2 and 1e-3, and the final one.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(seeds=4, minutes=1, settings={"scale": 0.2, "pilots": 2}),
        "paper": Profile(seeds=20, minutes=3),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    paper=PAPER,
    claims=(
        Claim(
            "On small problems Fisher and Score work as well: they take about as many iterations as ours.",
            LOCATION,
            all_of(
                *(
                    ratio_within(f"hit_{t}", other, "Ours", 0.5, 2.0, name=f"iterations to {t:g}")
                    for other in ("Fisher", "Score")
                    for t in (0.01, 0.001)
                )
            ),
            paper="260 against 273, 284",
            ours=medians("hit_0.01", "Ours", "Fisher", "Score"),
        ),
    ),
)
