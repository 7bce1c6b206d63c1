"""Sec. 5.6: the number of draws S (the paper: Monte Carlo samples), order-5 mixtures."""

from __future__ import annotations

import math
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
    below,
    captioned,
    median_interval,
    medians,
    panels,
    plot_points,
    plot_traces,
    shared_legend,
)
from bayescore_lab.experiments.synthetic.arms import arm, execute, grid
from bayescore_lab.experiments.synthetic.drawing import LINES, kl_tables
from bayescore_lab.experiments.synthetic.mixture import QUICK, setting

LOCATION = "Sec. 5.6"
FIRST = {1: 946, 5: 96, 10: 89, 20: 81}
ARMS = {f"S={s}": arm("proximal", samples=s) for s in FIRST}
PAPER = tuple(PaperValue(f"S={s}", "hit_0.05", value, LOCATION) for s, value in FIRST.items())
TITLE = "The number of samples S on order-5 mixtures"


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return grid(ARMS, {**setting(3, 5, 5), "hold_below": 0.05, **settings}, seeds, methods)


def tables(records: Records) -> list[Table]:
    metrics = {
        "iterations to 0.05": "hit_0.05",
        "score calls to 0.05": "calls_0.05",
        "forward KL": "forward_kl",
    }
    return kl_tables(records, TITLE, metrics, PAPER)


def figures(records: Records) -> list[Figure]:
    drawing, (left, middle, right) = panels(3, width=3.6, height=3.0)
    plot_traces(left, records, "forward_kl", label="forward KL", axis="step")
    left.set_xlabel("iterations")
    plot_traces(middle, records, "forward_kl", label="forward KL")
    points = {a: median_interval(c.values("hit_0.05", math.inf)) for a, c in records.arms.items()}
    printed = {v.arm: v.value for v in PAPER}
    plot_points(right, points, label="iterations to a forward KL of 0.05", log=True, paper=printed)
    shared_legend(drawing)
    return [captioned(drawing, records, title=TITLE, note=f"{LINES} Star: the paper's value.")]


EXPERIMENT = Experiment(
    id="ablation-samples",
    title=TITLE,
    location=LOCATION,
    shows="Iterations and score calls to a forward KL of 0.05 for S = 1, 5, 10, 20.",
    methods=tuple(ARMS),
    profiles={
        "quick": QUICK,
        "paper": Profile(seeds=20, minutes=10, settings={"pilots": 3, "trace_draws": 5000}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    paper=PAPER,
    claims=(
        Claim(
            "More samples speed up convergence in iterations.",
            LOCATION,
            all_of(*(below("hit_0.05", f"S={s}", "S=1", name="iterations to 0.05") for s in (5, 10, 20))),
            paper="946 against 96, 89, 81",
            ours=medians("hit_0.05", *ARMS),
        ),
        Claim(
            "More samples pay for themselves in score calls.",
            "not in the paper",
            all_of(*(below("calls_0.05", f"S={s}", "S=1", name="score calls to 0.05") for s in (5, 10, 20))),
        ),
    ),
)
