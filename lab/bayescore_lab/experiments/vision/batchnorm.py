"""BatchNorm's statistics in fine-tuning: kept, learned in training, or estimated again after it.

A few epochs on Pets with one network, the first stages frozen, judged on validation: a policy is chosen here,
not tested.
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
    mean_interval,
)
from bayescore_lab.experiments.vision.arms import ARMS
from bayescore_lab.experiments.vision.vision import QUICK, SMALL

__all__ = ["EXPERIMENT", "POLICIES"]

POLICIES = ("frozen", "training", "re-estimated")
TRAINED = ("Ours, untuned", "Plain, untuned")
METHODS = {f"{arm}, {policy}": (arm, policy) for arm in TRAINED for policy in POLICIES}
METRICS = {"validation NLL": "validation_nll", "error": "validation_error", "ECE-15": "validation_ece"}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    (place,) = settings["cells"]
    shared = {**place, **settings["shared"]}
    return [
        Run(name, seed, {**shared, **ARMS[METHODS[name][0]], "batchnorm": METHODS[name][1]})
        for seed in seeds
        for name in methods
    ]


def tables(records: Records) -> list[Table]:
    note = "Validation data of Pets; the first stages and their statistics are frozen in all arms."
    return [
        arm_table(
            records,
            METRICS,
            title="Statistics of BatchNorm in fine-tuning",
            note=note,
            interval=mean_interval,
        )
    ]


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _first(settings: Mapping[str, Any]) -> dict[str, Any]:
    cells = [{key: value for key, value in cell.items() if key != "cost"} for cell in settings["cells"][:1]]
    return {"shared": {**settings["shared"], "epochs": 3}, "cells": cells}


EXPERIMENT = Experiment(
    id="vision-batchnorm",
    title="BatchNorm's statistics in fine-tuning",
    location="not in the paper",
    shows="Validation loss and calibration by what becomes of BatchNorm's statistics.",
    methods=tuple(METHODS),
    profiles={
        "quick": Profile(seeds=1, minutes=1, settings=_first(QUICK)),
        "small": Profile(seeds=2, minutes=3, settings=_first(SMALL)),
        "paper": Profile(seeds=5, minutes=8, settings=_first(SMALL)),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.vision.fits:execute_trials"),
    tables=tables,
    figures=figures,
)
