"""Which settings the MNIST experiment uses: as many trials for every method, judged on validation at 1 %.

The images are those of other seeds than the experiment's. What wins stands in `mnist_arms.TUNED`; the table
says so, and a test compares it with the committed records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayescore.experiments import Experiment, Figure, Outcome, Profile, Record, Records, Run, Table
from bayescore.experiments.encoding import dumps
from bayescore.experiments.networks.learn import Schedule, learn, network
from bayescore.experiments.networks.mnist_arms import TUNED
from bayescore.experiments.networks.split import mnist_split
from bayescore.experiments.tables import Cell

__all__ = ["EXPERIMENT", "TRIALS"]

OTHER_SEEDS = 100


def _product(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


#: eight settings of each method's own two or three most important options
TRIALS: dict[str, list[dict[str, Any]]] = {
    "Plain": _product(lr=(1e-4, 3e-4), weight_decay=(0.0, 0.1, 1.0, 3.0)),
    "Ours, exact": _product(lr=(0.02, 0.05), init_sd=(0.003, 0.006, 0.01, 0.02)),
    "Ours, gradient": _product(
        solver=("gradient",), lr=(5e-5, 1.5e-4), init_sd=(0.01, 0.02), temperature=(1e-3, 1e-4)
    ),
    "ADVI": _product(lr=(1e-4, 3e-4), init_sd=(0.01, 0.02), sd_rate=(1.0, 10.0)),
    # lr/(1 + lr) N sd^2 is the rate of its first steps: about 0.03 and 0.08 here too
    "BaM, diagonal": [
        {"lr": lr, "init_sd": sd}
        for sd, rates in ((0.01, (1.0, 5.0)), (0.015, (0.29, 1.5)), (0.02, (0.14, 0.5)), (0.03, (0.06, 0.17)))
        for lr in rates
    ],
    "MC-dropout": _product(lr=(1e-4, 3e-4), p=(0.1, 0.2, 0.3, 0.5), weight_decay=(0.1,)),
    "SGLD": _product(preconditioned=(False,), lr=(3e-2, 1e-1), temperature=(1e-2, 1e-4))
    + _product(preconditioned=(True,), lr=(1e-4, 3e-4), temperature=(1e-2, 1e-4)),
    # its hess_init is 1/(N sd^2)
    "IVON": _product(lr=(0.03, 0.08), hess_init=(46.3, 16.67, 7.41, 4.17), weight_decay=(1e-3,)),
}
SETTINGS: dict[str, Any] = {
    "percent": 1.0,
    "schedule": {"epochs": 100, "every": 5, "patience": 20},
    "hidden": [1000, 1000, 1000],
}
QUICK: dict[str, Any] = {
    "percent": 0.5,
    "schedule": {"epochs": 4, "every": 2, "patience": 100},
    "hidden": [50],
}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    shared = {**SETTINGS, **settings}
    return [
        Run(name, seed, {**shared, "kind": TUNED[name]["kind"], "options": options})
        for options_of in itertools.zip_longest(*(TRIALS[name] for name in methods))
        for name, options in zip(methods, options_of, strict=True)
        if options is not None
        for seed in seeds
    ]


def execute(todo: Sequence[Run]) -> Iterator[Outcome]:
    for run in todo:
        c, seed = run.config, run.seed + OTHER_SEEDS
        model, split = network(seed, tuple(c["hidden"])), mnist_split(c["percent"], seed)
        found = learn(c["kind"], dict(c["options"]), split, model, seed, Schedule(**c["schedule"]))
        metrics = {"validation_nll": found.validation_nll, "epoch": found.epoch}
        ended = "ok" if found.posterior is not None else "diverged"
        yield Outcome(run, metrics, found.steps, found.trace, ended=ended)


def trial(record: Record) -> str:
    return f"{record.method} {dumps(record.config['options'])}"


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(record.method for record in records):
        own = records.select(lambda r, name=name: r.method == name)  # type: ignore[misc]
        scored = sorted((float(c.values("validation_nll").mean()), c[0]) for c in own.arms.values())
        for place, (value, record) in enumerate(scored):
            options = record.config["options"]
            used = "used" if options == TUNED[name]["options"] else ""
            rows.append(
                [name, dumps(options), value, record.metrics["epoch"], "best" if not place else "", used]
            )
    columns = ["method", "options", "validation NLL", "epoch", "", "in the experiment"]
    note = "5 draws, 5,000 validation images, mean over seeds; early stopping as in the experiment."
    return [Table("Trials at 1 % of MNIST", columns, rows, note=note)]


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


EXPERIMENT = Experiment(
    id="mnist-tuning",
    title="Settings for MNIST: eight trials per method, on validation",
    location="beside Fig. 3",
    shows="The validation NLL of every trial at 1 % of the training images.",
    methods=tuple(TRIALS),
    profiles={
        "quick": Profile(seeds=1, minutes=2, settings=QUICK),
        "paper": Profile(seeds=1, minutes=45, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    arm=trial,
    axis="epoch",
)
