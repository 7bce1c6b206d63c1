"""Do the network methods learn the standard deviations? A linear model with Gaussian noise knows the answer.

What a mini-batch of B adds to the curvature's noise is governed by kappa = N/(B tau)                    (1)
(times 1 - B/N, as an epoch draws without replacement: the batch of all data adds none).
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
    Record,
    Records,
    Run,
    Table,
)
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, REPRODUCED

__all__ = ["ADAM", "ARMS", "DATA", "DIM", "EXPERIMENT"]

DATA, DIM = 1000, 20
ADAM = {"lr": 0.01}  # the weights are up to 2 away from where they start
INNER = {"solver": "gradient", **ADAM}
ARMS: dict[str, dict[str, Any]] = {
    "ProximalScore": {"shell": "proximal", "draws": 1},
    "ProximalScore(batch_size=B)": {"shell": "proximal", "draws": 1, "sized": True},
    "ProximalScore, 2 draws": {"shell": "proximal", "draws": 2},
    'ProximalScore(solver="gradient", lr=0.01)': {"shell": "proximal", "draws": 1, "options": INNER},
    'ProximalScore(solver="gradient", lr=0.01), 2 draws': {"shell": "proximal", "draws": 2, "options": INNER},
    "ADVI(lr=0.01)": {"shell": "advi", "draws": 1, "options": ADAM},
    "ADVI(lr=0.01), 2 draws": {"shell": "advi", "draws": 2, "options": ADAM},
    "BaM, 2 draws": {"shell": "bam", "draws": 2},
    "BaM(published=True, lr=0.02), 2 draws": {
        "shell": "bam",
        "draws": 2,
        "options": {"published": True, "lr": 0.02},
    },
}
SETTINGS: dict[str, Any] = {
    "long": {"batch": 32, "temperature": 1.0, "steps": 20_000},
    "steps": 6000,
    "kappas": [(DATA, 1.0), (10, 1.0), (10, 1e-2), (10, 1e-6)],  # batch and temperature: 1, 1e2, 1e4, 1e8
}
QUICK: dict[str, Any] = {"long": {**SETTINGS["long"], "steps": 100}, "steps": 50}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    s = {**SETTINGS, **settings}
    tasks = [s["long"]]
    tasks += [{"batch": b, "temperature": tau, "steps": s["steps"]} for b, tau in s["kappas"]]
    return [
        Run(name, seed, {**ARMS[name], **task}, cost=float(task["steps"]))
        for task in tasks
        for name in methods
        for seed in seeds
    ]


def kappa(record: Record) -> float:
    """(1)."""
    return float(f"{DATA / (record.config['batch'] * record.config['temperature']):.1g}")


def tables(records: Records) -> list[Table]:
    longest = max(record.config["steps"] for record in records)
    long = records.where(steps=longest)
    short = records.select(lambda record: record.config["steps"] < longest)
    note = f"{DATA} data, {DIM} weights; sd: relative error; mean: in sds; over all weights and seeds"
    rows: list[list[Cell]] = []
    for name, chosen in long.arms.items():
        squares = [float((chosen.values(key, math.inf) ** 2).mean() ** 0.5) for key in ("sd_rms", "mean_rms")]
        worst = [float(chosen.values(key, math.inf).max()) for key in ("sd_worst", "mean_worst")]
        rows.append([name, squares[0], worst[0], squares[1], worst[1], _share(chosen)])
    columns = ["method", "sd rms", "sd worst", "mean rms", "mean worst", "status: learned"]
    title = f"A linear model: {longest} steps, batches of {long[0].config['batch']}"
    found = [Table(title, columns, rows, note=note)]
    if not short:
        return found
    kappas = sorted({kappa(record) for record in short})
    cells: list[list[Cell]] = []
    for name, chosen in short.arms.items():
        at = [chosen.select(lambda record, k=k: kappa(record) == k) for k in kappas]  # type: ignore[misc]
        cells.append(
            [name, *(f"{100 * part.values('sd_worst', math.inf).max():.2g} %, {_share(part)}" for part in at)]
        )
    title = f"Worst error of an sd after {short[0].config['steps']} steps, and runs whose status says learned"
    found.append(Table(title, ["method", *(f"kappa {k:g}" for k in kappas)], cells, name="kappa", note=note))
    return found


def _share(records: Records) -> str:
    return f"{sum(record.metrics['learned'] for record in records)} of {len(records)}"


def _honest(limit: float) -> Criterion:
    words = f"Reproduced if no sd is off by more than {limit:.0%} in a run whose status says learned."

    def judge(records: Records) -> Judgement:
        sure = records.select(lambda record: record.metrics["learned"])
        if not len(sure):
            return Judgement(None, "No status says learned.")
        worst = float(sure.values("sd_worst").max())
        sentence = f"{len(sure)} of {len(records)} runs say learned; their worst sd is {worst:.1%} off."
        verdict = REPRODUCED if worst <= limit else NOT_REPRODUCED
        return Judgement(verdict, sentence, ours=f"worst sd {worst:.1%} off")

    return Criterion(words, judge)


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


EXPERIMENT = Experiment(
    id="linear-gaussian",
    title="Do the network methods learn the sd? A linear model knows",
    location="not in the paper",
    shows="Errors of means and sds against the best diagonal Gaussian, and what the status says of them.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(seeds=1, minutes=1, settings=QUICK),
        "paper": Profile(seeds=4, minutes=20, settings={}),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.networks.linear_fits:execute"),
    tables=tables,
    figures=figures,
    claims=(Claim("What the status calls learned has been learned.", "not in the paper", _honest(0.1)),),
)
