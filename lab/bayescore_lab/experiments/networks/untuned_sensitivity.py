"""How much the outcome depends on what a user may set: rate, limit of the noise, temperature, prior.

One of them is changed at a time, on small tasks of the untuned comparison. AdamW has only a rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayescore_lab.engine import (
    Experiment,
    Figure,
    Profile,
    Record,
    Records,
    Run,
    Table,
    figure_style,
    looks,
    panels,
    shared_legend,
)
from bayescore_lab.engine.statistics import Floats
from bayescore_lab.engine.tables import Cell
from bayescore_lab.experiments.networks.untuned_arms import ARMS, OURS, PLAIN, execute
from bayescore_lab.experiments.networks.untuned_budgets import BUDGETS, DRAWS
from bayescore_lab.experiments.networks.untuned_tasks import TASKS

RATE, NOISE, TEMPERATURE, PRIOR = "learning rate", "limit of the noise", "temperature", "prior scale"
VALUES: dict[str, Sequence[float]] = {
    RATE: (3e-4, 1e-3, 3e-3, 1e-2),
    NOISE: (0.001, 0.003, 0.01, 0.03, 0.1),
    TEMPERATURE: (0.03, 0.1, 0.3, 1.0, 3.0),
    PRIOR: (0.1, 1.0, 10.0),
}
USUAL = 1e-3  # AdamW's rate, which everything is compared with
#: the options behind a setting, for one of its values
OPTIONS = {
    RATE: lambda value: {"lr": value},
    NOISE: lambda value: {"nats": value},
    TEMPERATURE: lambda value: {"temperature": value},
    PRIOR: lambda value: {"prior_scale": value},
}
SMALL = [
    task.name
    for task in TASKS
    if task.part != "again" and (task.kind == "table" or task.name.startswith("digits"))
]
EDGE = 1.0  # nats; what lies further away is drawn at the edge


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    """Every value of every setting that a method has, on every task."""
    found = []
    for task in settings["tasks"]:
        budget = BUDGETS[task]
        for method in methods:
            for name, values in VALUES.items():
                if method == PLAIN and name != RATE:
                    continue
                for value in values:
                    config = {
                        "task": task,
                        **ARMS[method],
                        "options": {**ARMS[method]["options"], **OPTIONS[name](value)},
                        "setting": name,
                        "value": value,
                        "epochs": settings.get("epochs", budget.epochs),
                        "batch_size": budget.batch_size,
                        "warmup": budget.warmup,
                        "draws": DRAWS,
                    }
                    cost = budget.plain if method == PLAIN else budget.sampled
                    found += [Run(method, seed, config, cost=cost) for seed in seeds]
    return found


def arm(record: Record) -> str:
    """A method with one setting changed."""
    return f"{record.method}, {record.config['setting']} {record.config['value']:g}"


def above_usual(records: Records, method: str, setting: str, task: str) -> Floats:
    """NLL minus that of AdamW at its usual rate, for every value of a setting; NaN where it was not run."""
    usual = f"{PLAIN}, {RATE} {USUAL:g}"
    found = []
    for value in VALUES[setting]:
        ours, theirs = records.where(task=task).pairs("nll", f"{method}, {setting} {value:g}", usual)
        found.append(float(np.mean(ours) - np.mean(theirs)) if len(ours) else math.nan)
    return np.array(found)


def tables(records: Records) -> list[Table]:
    tasks = list(dict.fromkeys(record.config["task"] for record in records))
    rows: list[list[Cell]] = []
    for method in (PLAIN, OURS):
        for setting, values in VALUES.items():
            grid = np.array([above_usual(records, method, setting, task) for task in tasks])
            for value, column in zip(values, grid.T, strict=True):
                known = column[~np.isnan(column)]
                if known.size:
                    worst = tasks[int(np.nanargmax(column))]
                    rows.append(
                        [
                            method,
                            setting,
                            value,
                            known.size,
                            float(np.median(known)),
                            float(known.max()),
                            worst,
                        ]
                    )
    return [
        Table(
            f"NLL minus that of AdamW with the rate {USUAL:g}, over tasks",
            ["method", "setting", "value", "tasks", "median", "worst", "on"],
            rows,
            note="Nats, means over seeds. All other settings are the defaults.",
            left=["method", "setting", "on"],
        )
    ]


def figures(records: Records) -> list[Figure]:
    tasks = list(dict.fromkeys(record.config["task"] for record in records))
    look = looks([PLAIN, OURS])
    with figure_style():
        drawing, axes = panels(len(VALUES), width=2.7, height=3.0)
        for panel, (setting, values) in zip(axes, VALUES.items(), strict=True):
            panel.axhline(0, color="black", linewidth=0.8)
            for method in (PLAIN, OURS):
                lines = np.array([above_usual(records, method, setting, task) for task in tasks])
                if np.isnan(lines).all():
                    continue
                style = look[method]
                for line in np.clip(lines, -EDGE, EDGE):
                    panel.plot(values, line, color=style.colour, linewidth=0.7, alpha=0.4)
                middle = np.clip(np.nanmedian(lines, axis=0), -EDGE, EDGE)
                panel.plot(
                    values, middle, color=style.colour, marker=style.marker, linewidth=2.2,
                    label=f"{method}, median",
                )  # fmt: skip
            panel.set_xscale("log")
            panel.set_yscale("symlog", linthresh=0.02)
            panel.set_ylim(-1.1 * EDGE, 1.1 * EDGE)
            panel.set_yticks([-1, -0.1, 0, 0.1, 1], ["-1", "-0.1", "0", "0.1", "1"])
            panel.set_xticks(values, [f"{value:g}" for value in values])
            panel.minorticks_off()
            units = {PRIOR: ", times the default", NOISE: ", nats"}
            panel.set_xlabel(setting + units.get(setting, ""))
        axes[0].set_ylabel("NLL minus AdamW's, nats")
        shared_legend(drawing)
    note = (
        f"A thin line is a task. AdamW's is at the rate {USUAL:g}; the scale is linear within 0.02, and what "
        f"lies beyond {EDGE:g} is drawn there."
    )
    return [Figure("Sensitivity", drawing, len(records.seeds), "the budgets of `untuned`", note=note)]


EXPERIMENT = Experiment(
    id="untuned-sensitivity",
    title="How much the outcome depends on rate, noise, temperature and prior",
    location="not in the paper",
    shows="NLL of AdamW and ours on small tasks when one setting is changed.",
    methods=(PLAIN, OURS),
    profiles={
        "quick": Profile(1, 0.2, {"tasks": ["wine"], "epochs": 2}),
        "paper": Profile(2, 17, {"tasks": SMALL}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    arm=arm,
    axis="epoch",
)
