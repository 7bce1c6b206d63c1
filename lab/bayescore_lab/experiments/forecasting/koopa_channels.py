"""What a training step costs with the networks of Weather (21 channels), ECL (321) and Traffic (862)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Experiment, Figure, Profile, Records, Run, RunOutcome, Table
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.workers import ask_once
from bayescore_lab.experiments.forecasting.koopa_arms import ADVI, DROPOUT, OURS, PROXIMAL, VANILLA

__all__ = ["EXPERIMENT"]

KINDS = {VANILLA: "plain", ADVI: "advi", OURS: "descent", PROXIMAL: "proximal", DROPOUT: "dropout"}
SETTINGS: dict[str, Any] = {"data": {"Weather": {}, "ECL": {}, "Traffic": {}}, "steps": 20}
QUICK: dict[str, Any] = {"data": {"ILI": {"hidden": 8, "dynamic_dim": 8}}, "steps": 4}
WORKER = "bayescore_lab.experiments.forecasting.channels_worker"


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    chosen = {**SETTINGS, **settings}
    return [
        Run(
            name,
            seed,
            {"data": data, "sizes": sizes, "kind": KINDS[name], "options": {}, "steps": chosen["steps"]},
        )
        for data, sizes in chosen["data"].items()
        for name in methods
        for seed in seeds
    ]


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """Every run in a process of its own, so that its memory is its own."""
    for run in todo:
        done = ask_once(WORKER, run.config)
        if done.answer is None:
            raise RuntimeError(f"the process of {run.method} failed: {done.errors[-300:]}")
        yield RunOutcome(run, done.answer, int(run.config["steps"]))


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for record in records:
        m = record.metrics
        names = ("weights", "seconds_per_step", "training_gb", "peak_gb")
        rows.append([record.config["data"], record.method, *(m[name] for name in names)])
    columns = ["data", "method", "weights", "seconds per step", "GB of training", "GB of the process"]
    steps = records[0].config["steps"] if len(records) else SETTINGS["steps"]
    note = f"{steps} steps with batches of 32 random windows on one thread, the second half of them timed."
    return [Table("Training steps on random windows", columns, rows, note=note)]


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


EXPERIMENT = Experiment(
    id="koopa-channels",
    title="Koopa with hundreds of channels: time and memory of a training step",
    location="beside Table 2",
    shows="Seconds per step and memory of every method with the networks of Weather, ECL and Traffic.",
    methods=tuple(KINDS),
    profiles={
        "quick": Profile(seeds=1, minutes=1, settings=QUICK),
        "paper": Profile(seeds=1, minutes=15, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
)
