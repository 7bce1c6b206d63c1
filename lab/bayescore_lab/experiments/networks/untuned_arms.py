"""The methods that are compared untuned, as plain data, and the grid of their runs.

Each has the settings that its own documentation recommends, or its defaults: AdamW those of torch; IVON those
of its README, and on LeNet-5 also those that were published for it; SWAG a rate that is constant from the
half of the run on, where it collects weights; dropout a rate of 0.1. Ours has none at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Imported, Run
from bayescore_lab.experiments.networks.untuned_budgets import BUDGETS, DRAWS, Budget
from bayescore_lab.experiments.networks.untuned_tasks import TASKS, Task

__all__ = [
    "ARMS",
    "ENSEMBLE",
    "OURS",
    "PLAIN",
    "PUBLISHED",
    "REVISION",
    "SCALED",
    "SINGLE",
    "arm_runs",
    "execute",
]

execute = Imported("bayescore_lab.experiments.networks.untuned_fits:execute")

PLAIN, SCALED, OURS, ENSEMBLE = "AdamW", "AdamW, scaled", "Ours", "Ensemble of AdamW"
PUBLISHED = "IVON, as published"
ADAMW = {"lr": 1e-3, "weight_decay": 0.01}
#: of our rule; raise it whenever the rule or one of its defaults changes, so that its runs are made again
REVISION = 3
#: what makes our rule the rule without a part of it: Adam with a Fisher width, at the temperature that probes
#: of such a rule found best
VARIANTS: dict[str, dict[str, Any]] = {"Ours, no residual": {"residual": False, "temperature": 0.1}}

#: the tasks of methods that are not run on all
ONLY = {
    PUBLISHED: ("LeNet-5 Fashion-MNIST",),
    **dict.fromkeys(VARIANTS, tuple(task.name for task in TASKS if task.part == "develop")),
}

Spec = dict[str, Any]

ARMS: dict[str, Spec] = {
    PLAIN: {"kind": "plain", "options": ADAMW},
    SCALED: {"kind": "plain", "options": ADAMW, "held_out": 0.1},
    "ADVI": {"kind": "advi", "options": {}},
    "IVON": {"kind": "ivon", "options": {"lr": 0.1}},
    "MC-dropout": {"kind": "dropout", "options": {**ADAMW, "p": 0.1}},
    "SWAG": {"kind": "swag", "options": {**ADAMW, "rank": 20}},
    OURS: {"kind": "ours", "options": {}, "revision": REVISION},
    "Ours, as it was": {"kind": "proximal", "options": {}},
    ENSEMBLE: {"kind": "plain", "options": ADAMW},
    PUBLISHED: {"kind": "ivon", "options": {"lr": 0.2, "weight_decay": 2e-3, "hess_init": 0.5}},
    **{
        name: {"kind": "ours", "options": options, "revision": REVISION} for name, options in VARIANTS.items()
    },
}
#: one network, trained once, on every task
SINGLE = tuple(name for name in ARMS if name != ENSEMBLE and name not in ONLY)
#: a prior around the weights that a pretrained network begins with
CENTRED = ("advi", "ours", "proximal")


def arm_runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    """Every method on every task of `settings["tasks"]`, and as many seeds as its budget has.

    `settings["epochs"]` replaces the budget's epochs, `settings["whole"]` trains all layers of networks whose
    first ones are otherwise frozen.
    """
    chosen = {task.name: task for task in TASKS}
    return [
        run
        for name in settings["tasks"]
        for method in methods
        for run in _runs(chosen[name], method, settings, seeds)
    ]


def _runs(task: Task, method: str, settings: Mapping[str, Any], seeds: Sequence[int]) -> list[Run]:
    if task.name not in ONLY.get(method, BUDGETS):
        return []
    budget, arm = BUDGETS[task.name], ARMS[method]
    config: dict[str, Any] = {
        "task": task.name,
        **arm,
        "epochs": settings.get("epochs", budget.epochs),
        "batch_size": budget.batch_size,
        "warmup": budget.warmup,
        "draws": DRAWS,
    }
    if settings.get("whole"):
        config["whole"] = True
    if task.kind == "pretrained" and arm["kind"] in CENTRED:
        config["options"] = {**arm["options"], "prior_mean": "current"}
    cost = budget.plain if arm["kind"] == "plain" else budget.sampled
    count = min(budget.seeds, len(seeds))
    if method == ENSEMBLE:
        more = 0 if budget.shared_split else budget.members - 1  # networks that AdamW does not train anyway
        return [
            Run(method, seed, {**config, "members": seeds_of}, _group(task, budget, seed), cost * more + 0.1)
            for seed, seeds_of in _members(budget, count).items()
        ]
    group = method == PLAIN
    return [
        Run(method, seed, config, _group(task, budget, seed) if group else "", cost) for seed in seeds[:count]
    ]


def _members(budget: Budget, count: int) -> dict[int, list[int]]:
    """The seeds of the members' initial weights, by the seed of the ensemble."""
    if budget.shared_split:
        return {0: list(range(count))} if count > 1 else {}
    shown = count if budget.ensembles is None else min(count, budget.ensembles)
    return {seed: [seed + 1000 * member for member in range(budget.members)] for seed in range(shown)}


def _group(task: Task, budget: Budget, seed: int) -> str:
    """AdamW's networks are members of ensembles: they are trained together, and once."""
    return f"{task.name}, AdamW" if budget.shared_split else f"{task.name}, AdamW, seed {seed}"
