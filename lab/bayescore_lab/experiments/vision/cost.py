"""Time and memory of a step, and of a prediction against its draws: full-size networks, random weights.

The steps are those of `nn.fit`: draw, forward, backward, update, on random pictures of 224 pixels in batches
of 16. Memory is the largest resident size of a process of its own, on a GPU that of torch's allocator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Experiment, Figure, PaperValue, Profile, Records, Run, RunOutcome, Table
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.workers import ask_once
from bayescore_lab.experiments.vision.table_one import NETWORKS

METHODS = {"Plain": "plain", "ADVI": "advi", "Ours": "proximal"}
#: seconds and gigabytes per step on a V100
PRINTED = {
    ("Plain", "resnet101"): (0.1263, 0.30), ("Plain", "vit_l_32"): (0.2034, 2.09),
    ("ADVI", "resnet101"): (0.2463, 0.96), ("ADVI", "vit_l_32"): (0.3007, 6.85),
    ("Ours", "resnet101"): (0.3256, 0.33), ("Ours", "vit_l_32"): (0.4323, 2.30),
}  # fmt: skip
LOCATION = "Sec. 5.7, the table of time and memory"
FULL = {"networks": list(NETWORKS), "size": 224, "batch_size": 16, "steps": 5, "draws": [1, 5, 10]}
QUICK = {"networks": ["small"], "size": 16, "batch_size": 4, "steps": 2, "draws": [1, 2]}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    shared = {key: settings[key] for key in ("size", "batch_size", "steps", "draws")}
    return [
        Run(name, seed, {"net": net, "method": METHODS[name], **shared}, cost=100.0)
        for name in methods
        for net in settings["networks"]
        for seed in seeds
    ]


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """Every run in a process of its own."""
    for run in todo:
        done = ask_once("bayescore_lab.experiments.vision.cost_worker", {**run.config, "seed": run.seed})
        if done.answer is None:
            raise RuntimeError(f"the process of {run.method} failed: {done.errors[-300:]}")
        found = dict(done.answer)
        yield RunOutcome(run, found, int(run.config["steps"]))


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for record in records:
        printed = PRINTED.get((record.method, record.config["net"]), (None, None))
        times = {name: value for name, value in record.metrics.items() if name.startswith("predict_")}
        rows.append(
            [
                record.config["net"],
                record.method,
                record.metrics["seconds_per_step"],
                printed[0],
                record.metrics["peak_gb"],
                printed[1],
                ", ".join(f"{name.removeprefix('predict_')}: {value:.3g}" for name, value in times.items()),
            ]
        )
    columns = ["network", "arm", "s per step", "paper, V100", "peak GB", "paper, GB", "s per batch by draws"]
    return [Table("Cost of a step and of a prediction", columns, rows, note=f"Paper: {LOCATION}.")]


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


EXPERIMENT = Experiment(
    id="vision-cost",
    title="Time and memory of fine-tuning",
    location="Sec. 5.7, App. D.2",
    shows="Seconds and memory of a training step, and of predictions with more draws.",
    methods=tuple(METHODS),
    profiles={
        "quick": Profile(seeds=1, minutes=1, settings=QUICK),
        "paper": Profile(seeds=1, minutes=40, settings=FULL),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    paper=[
        PaperValue(arm, f"seconds_per_step {net}", value[0], LOCATION)
        for (arm, net), value in PRINTED.items()
    ],
)
