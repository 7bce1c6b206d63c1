"""Network optimizers with their own defaults, on tables, images, pretrained networks and sequences.

The tasks are in three parts (`untuned_tasks`): our rule is developed on two and confirmed on the third.
There is a profile for each part and for each task; the records are the same, so that a part can be run task
by task. Two more profiles train all layers of the networks on Pets, whose first layers are frozen otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bayescore_lab.engine import Claim, Experiment, Figure, Profile, Records, Table
from bayescore_lab.experiments.networks.untuned_arms import ARMS, PUBLISHED, SCALED, arm_runs, execute
from bayescore_lab.experiments.networks.untuned_budgets import BUDGETS, DRAWS
from bayescore_lab.experiments.networks.untuned_results import (
    best_rank,
    calibrated_on_most,
    differences_figure,
    differences_table,
    error_within,
    first_epoch_learns,
    lower_on_most,
    never_worse,
    no_worse_than,
    ranks_table,
    scores_table,
    summary_table,
    tasks_in,
)
from bayescore_lab.experiments.networks.untuned_tasks import TASKS

PARTS = {part: [task.name for task in TASKS if task.part == part] for part in ("develop", "confirm", "again")}
PETS = {"develop": "EfficientNet-Lite0 Pets", "confirm": "MobileNetV2 Pets"}
CONFIRM = "again"
LENET = "LeNet-5 Fashion-MNIST"


def slug(name: str) -> str:
    """The name of a task as a profile."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def note(records: Records) -> str:
    """What the reader of the scores must know, with the tasks that have fewer seeds than planned."""
    text = (
        f"Means over seeds with 95 % t intervals; {DRAWS} draws of the weights. Regressions are in units of "
        "the targets' standard deviation. ECE of calibrated labels: what a calibrated network would have on "
        "as many test data. Seconds: of the processor, in training, on one thread."
    )
    planned = {task.name: task.seeds for task in TASKS}
    fewer = [
        f"{name} {count} of {planned[name]}"
        for name in tasks_in(records)
        if (count := len(records.where(task=name).seeds)) < planned[name]
    ]
    return f"{text} Fewer seeds than planned: {', '.join(fewer)}." if fewer else text


def tables(records: Records) -> list[Table]:
    return [
        summary_table(records),
        ranks_table(records),
        differences_table(records),
        scores_table(records, note(records)),
    ]


def figures(records: Records) -> list[Figure]:
    return [differences_figure(records)]


def profile(tasks: Sequence[str], **settings: Any) -> Profile:
    """All methods on some tasks, with as many seeds as the budget of each; minutes are for two cores."""
    chosen = {"tasks": list(tasks), **settings}
    seeds = max(BUDGETS[name].seeds for name in tasks)
    seconds = sum(run.cost for run in arm_runs(chosen, range(seeds), list(ARMS)))
    return Profile(seeds, round(seconds / 120, 1), chosen)


EXPERIMENT = Experiment(
    id="untuned",
    title="Network optimizers with their own defaults",
    location="not in the paper",
    shows="NLL, error and calibration on 32 tasks, nothing tuned; a profile for each task.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(2, 0.2, {"tasks": ["wine", "gap curve"], "epochs": 2}),
        "paper": profile(list(BUDGETS)),
        **{part: profile(names) for part, names in PARTS.items()},
        **{f"{part}-whole": Profile(1, 60, {"tasks": [name], "whole": True}) for part, name in PETS.items()},
        **{slug(task.name): profile([task.name]) for task in TASKS},
    },
    runs=arm_runs,
    execute=execute,
    tables=tables,
    figures=figures,
    axis="epoch",
    claims=(
        Claim(
            "On every task of the part to confirm on, ours has at most AdamW's NLL.",
            "not in the paper",
            never_worse(CONFIRM),
        ),
        Claim(
            "On four fifths of the tasks of the part to confirm on, ours has a lower NLL than AdamW.",
            "not in the paper",
            lower_on_most(CONFIRM),
        ),
        Claim(
            "On the part to confirm on, ours has the best mean rank in NLL of the single networks.",
            "not in the paper",
            best_rank(CONFIRM),
        ),
        Claim(
            "On four fifths of the tasks of the part to confirm on, ours is calibrated as well as AdamW.",
            "not in the paper",
            calibrated_on_most(CONFIRM),
        ),
        Claim(
            "On no task of the part to confirm on is the error of ours more than 3 % above AdamW's.",
            "not in the paper",
            error_within(CONFIRM),
        ),
        *(
            Claim(
                f"{name}: the first epoch of ours ends below the loss that it began with.",
                "not in the paper",
                first_epoch_learns([name]),
            )
            for name in BUDGETS
            if {task.name: task.kind for task in TASKS}[name] == "pretrained"
        ),
        *(
            Claim(
                f"{name}: ours has at most the NLL of AdamW with its temperature scaled.",
                "not in the paper",
                no_worse_than(SCALED, name, {"nll": "NLL"}),
            )
            for name in PETS.values()
        ),
        *(
            Claim(
                f"{LENET}: ours is at least as accurate and as calibrated as {rival}.",
                "not in the paper",
                no_worse_than(rival, LENET, {"error": "error", "nll": "NLL", "ece": "ECE"}),
            )
            for rival in ("IVON", PUBLISHED)
        ),
    ),
)
