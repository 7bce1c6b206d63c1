"""Network optimizers with their own defaults, on tables, images, pretrained networks and sequences.

The tasks are in two halves (`untuned_tasks`): our rule is developed on one and confirmed, once, on the other.
There is a profile for each half and for each task; the records are the same, so that a half can be run task by
task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bayescore_lab.engine import Experiment, Figure, Profile, Records, Table, arm_table, mean_interval
from bayescore_lab.experiments.networks.untuned_arms import ARMS, COSTS, arm_runs, execute
from bayescore_lab.experiments.networks.untuned_budgets import BUDGETS
from bayescore_lab.experiments.networks.untuned_tasks import TASKS

HALVES = {half: [task.name for task in TASKS if task.half == half] for half in ("develop", "confirm")}


def _profile(tasks: Iterable[str], **settings: Any) -> Profile:
    names = list(tasks)
    seeds = max(BUDGETS[name].seeds for name in names)
    found = {"tasks": names, **settings}
    seconds = sum(run.cost for run in arm_runs(found, range(seeds), list(ARMS)))
    return Profile(seeds, round(seconds / 120, 1), found)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def tables(records: Records) -> list[Table]:
    return [arm_table(records.where(task=name), {"NLL": "nll", "error": "error", "ECE": "ece", "coverage": "coverage", "seconds": "seconds"}, title=name, name=_slug(name), interval=mean_interval) for name in BUDGETS if len(records.where(task=name))]


def figures(records: Records) -> list[Figure]:
    return []


EXPERIMENT = Experiment(
    id="untuned",
    title="Network optimizers with their own defaults",
    location="not in the paper",
    shows="NLL, error and calibration on two halves of 22 tasks, nothing tuned.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(2, 0.2, {"tasks": ["wine", "gap curve"], "epochs": 2}),
        **{half: _profile(names) for half, names in HALVES.items()},
        "paper": _profile(BUDGETS),
        **{_slug(task.name): _profile([task.name]) for task in TASKS},
    },
    runs=arm_runs,
    execute=execute,
    tables=tables,
    figures=figures,
    axis="epoch",
)
