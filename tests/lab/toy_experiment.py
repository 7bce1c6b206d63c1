"""An experiment that costs nothing: random walks whose level depends on the method.

`sleep` in the settings makes it last, `trouble` makes some runs raise or kill their process.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bayescore_lab.engine import (
    Claim,
    Experiment,
    Figure,
    Imported,
    PaperValue,
    Profile,
    Records,
    Run,
    RunOutcome,
    Table,
    agrees,
    all_of,
    arm_table,
    below,
    captioned,
    median_interval,
    mostly,
    panels,
    plot_points,
    plot_traces,
    ratio_within,
    shared_legend,
    significance_table,
)

LEVELS = {"Ours": 0.01, "ADVI": 0.1, "GSM": 0.03}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return [
        Run(method, seed, dict(settings), group=f"{method} {seed // 4}", cost=1 + (method == "ADVI"))
        for method in methods
        for seed in seeds
    ]


def execute(batch: Sequence[Run]) -> Iterator[RunOutcome]:
    for run in batch:
        if run.config.get("trouble") == "raise" and run.method == "ADVI" and run.seed == 1:
            raise ArithmeticError("the walk went | astray")
        if run.config.get("trouble") == "kill" and run.method == "ADVI" and run.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(run.config.get("sleep", 0.0))
        yield walk(run)


def count_threads(batch: Sequence[Run]) -> Iterator[RunOutcome]:
    """The same, and how many threads a worker computes with."""
    import torch

    for outcome in execute(batch):
        yield replace(outcome, metrics={"threads": torch.get_num_threads()})


class Unloadable:
    """Can be sent to another process, but not received there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (refuse, ())


def refuse() -> None:
    raise ImportError("not in this process")


def execute_with(_: Unloadable, batch: Sequence[Run]) -> Iterator[RunOutcome]:
    return execute(batch)


def walk(run: Run) -> RunOutcome:
    steps = run.config["steps"]
    rng = np.random.default_rng([run.seed, len(run.method)])
    fall = np.exp(-np.linspace(0, 8, steps) + 0.1 * np.cumsum(rng.standard_normal(steps)))
    kl = fall + LEVELS[run.method] * (1 + 0.2 * rng.standard_normal())
    diverged = run.method == "GSM" and run.seed % 4 == 3
    if diverged:
        kl[steps // 2 :] = math.nan
    return RunOutcome(
        run,
        metrics={"forward_kl": kl[-1], "half_kl": kl[steps // 2]},
        score_calls=2 * steps,
        trace={"score_calls": 2 * np.arange(steps), "forward_kl": kl},
        ended="diverged" if diverged else "ok",
    )


def tables(records: Records) -> list[Table]:
    metrics = {"forward KL": "forward_kl", "forward KL half-way": "half_kl"}
    note = "Median over seeds with its 95 % interval."
    return [
        arm_table(records, metrics, PAPER, title="Forward KL at the end", note=note),
        significance_table(records, "forward_kl", [("Ours", "ADVI"), ("GSM", "ADVI")], title="Significance"),
    ]


def figures(records: Records) -> list[Figure]:
    drawing, (left, right) = panels(2)
    paper = {value.arm: value.value for value in PAPER}
    plot_traces(left, records, "forward_kl", label="forward KL", paper=paper)
    points = {
        arm: median_interval(chosen.values("forward_kl", math.inf)) for arm, chosen in records.arms.items()
    }
    plot_points(right, points, label="final forward KL", log=True, paper=paper)
    shared_legend(drawing)
    note = "Lines: median; bands: 10 to 90 %. Star: the paper's value."
    return [captioned(drawing, records, title="Walks that fall to a level", note=note)]


PAPER = (
    PaperValue("Ours", "forward_kl", 0.012, "Table 3"),
    PaperValue("ADVI", "forward_kl", 0.45, "Table 3"),
)

CLAIMS = (
    Claim("Ours ends below ADVI.", "Sec. 5.1", below("forward_kl", "Ours", "ADVI")),
    Claim("ADVI ends at 0.45.", "Table 3", agrees("forward_kl", "ADVI", 0.45)),
    Claim(
        "Ours is about 10 times below ADVI, and GSM fails.",
        "Sec. 5.2",
        all_of(
            ratio_within("forward_kl", "ADVI", "Ours", 5, 20),
            mostly(lambda record: record.status["ended"] == "diverged", "the walk diverged", "GSM"),
        ),
    ),
)

EXPERIMENT = Experiment(
    id="toy",
    title="Walks that fall to a level",
    location="Fig. 1 top, Sec. 5.1",
    shows="Walks with a level that depends on the method, <against> score calls.",
    methods=tuple(LEVELS),
    profiles={
        "quick": Profile(seeds=8, minutes=0.1, settings={"steps": 60}),
        "paper": Profile(seeds=20, minutes=0.2, settings={"steps": 400}),
        "slow": Profile(seeds=12, minutes=1, settings={"steps": 60, "sleep": 0.05}),
        "slower": Profile(seeds=12, minutes=1, settings={"steps": 60, "sleep": 0.5}),
        "raise": Profile(seeds=8, minutes=0.1, settings={"steps": 60, "trouble": "raise"}),
        "kill": Profile(seeds=8, minutes=0.1, settings={"steps": 60, "trouble": "kill"}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    paper=PAPER,
    claims=CLAIMS,
)

FIT = {
    "method": "bam",
    "options": {},
    "steps": 30,
    "learning_rates": [],
    "target": {"kind": "gaussian", "dim": 40},
    "family": {"kind": "gaussian"},
    "records": 5,
    "trace_draws": 100,
    "final_draws": 100,
}


def fit_runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return [Run("Ours", seed, FIT, group="one batch") for seed in seeds]


#: eight fits in 40 dimensions as one batch: BLAS rounds otherwise where it is given only one of them
FITS = replace(EXPERIMENT, id="toy-fits", runs=fit_runs, execute=Imported("toy_fits:execute"))

TWIN = replace(EXPERIMENT, id="toy-twin", title="The same again", location="Fig. 10", claims=())
