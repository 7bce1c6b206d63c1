"""Which settings the MNIST experiment uses: as many trials for every method, judged on validation at 1 %.

How the weight decay goes with the number of images is one rule for all methods, chosen at ten times as many.
The images are those of other seeds than the experiment's. What wins stands in `mnist_arms.TUNED` and
`DECAY_POWER`; the tables say so, and a test compares them with the committed records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Experiment, Figure, Outcome, Profile, Record, Records, Run, Table
from bayescore_lab.engine.encoding import dumps
from bayescore_lab.engine.tables import Cell
from bayescore_lab.experiments.networks.learn import Schedule, learn, network
from bayescore_lab.experiments.networks.mnist_arms import DECAY_POWER, TUNED, scaled
from bayescore_lab.experiments.networks.mnist_trials import TRIALS
from bayescore_lab.experiments.networks.split import mnist_split

__all__ = ["EXPERIMENT", "TRIALS"]

OTHER_SEEDS = 100


POWERS = (0.0, 0.5, 1.0)  # of the weight decay, by these:
SCALED = ("Plain", "Ours, exact", "Ours, gradient")
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
    trials = [
        Run(name, seed, {**shared, "kind": TUNED[name]["kind"], "options": options})
        for options_of in itertools.zip_longest(*(TRIALS[name] for name in methods))
        for name, options in zip(methods, options_of, strict=True)
        if options is not None
        for seed in seeds
    ]
    percent = 10 * shared["percent"]
    powers = [
        Run(
            name,
            seed,
            {**shared, **TUNED[name], "percent": percent, "power": power, "options": options},
            "",
            5,
        )
        for name in SCALED
        if name in methods
        for power in POWERS
        for options in (scaled(TUNED[name]["options"], percent, power),)
        for seed in seeds
    ]
    return trials + powers


def execute(todo: Sequence[Run]) -> Iterator[Outcome]:
    for run in todo:
        c, seed = run.config, run.seed + OTHER_SEEDS
        model, split = network(seed, tuple(c["hidden"])), mnist_split(c["percent"], seed)
        found = learn(c["kind"], dict(c["options"]), split, model, seed, Schedule(**c["schedule"]))
        metrics = {"validation_nll": found.validation_nll, "epoch": found.epoch}
        ended = "ok" if found.posterior is not None else "diverged"
        yield Outcome(run, metrics, found.steps, found.trace, ended=ended)


def trial(record: Record) -> str:
    return f"{record.method} {dumps(record.config['options'])} {record.config['percent']:g}"


def tables(records: Records) -> list[Table]:
    trials = records.select(lambda r: "power" not in r.config)
    powers = records.select(lambda r: "power" in r.config)
    note = "5 draws, 5,000 validation images, mean over seeds; early stopping as in the experiment."
    columns = ["validation NLL", "epoch", "", "in the experiment"]
    found = [
        Table(
            "Trials at 1 % of MNIST",
            ["method", "options", *columns],
            [
                [name, dumps(record.config["options"]), *cells]
                for name in dict.fromkeys(record.method for record in trials)
                for record, cells in _ranked(trials, name, lambda c, n: c["options"] == TUNED[n]["options"])
            ],
            note=note,
        )
    ]
    if len(powers):
        rows: list[list[Cell]] = [
            [name, record.config["power"], record.config["options"]["weight_decay"], *cells]
            for name in SCALED
            for record, cells in _ranked(powers, name, lambda c, _: c["power"] == DECAY_POWER)
        ]
        title = "The weight decay at 10 %: divided by (steps per epoch / those at 1 %)^power"
        found.append(
            Table(title, ["method", "power", "weight decay", *columns], rows, name="decay", note=note)
        )
    return found


def _ranked(
    records: Records, name: str, used: Callable[[Mapping[str, Any], str], bool]
) -> Iterator[tuple[Record, list[Cell]]]:
    """The trials of a method, best first, with the cells that say how good they are."""
    own = records.select(lambda record: record.method == name)
    rows = [(float(c.values("validation_nll").mean()), c[0]) for c in own.arms.values()]
    scored = sorted(rows, key=lambda row: row[0])
    for place, (value, record) in enumerate(scored):
        yield (
            record,
            [
                value,
                record.metrics["epoch"],
                "best" if not place else "",
                "used" if used(record.config, name) else "",
            ],
        )


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


EXPERIMENT = Experiment(
    id="mnist-tuning",
    title="Settings for MNIST: 12 trials per method, on validation",
    location="beside Fig. 3",
    shows="The validation NLL of every trial at 1 % of the training images.",
    methods=tuple(TRIALS),
    profiles={
        "quick": Profile(seeds=1, minutes=2, settings=QUICK),
        "paper": Profile(seeds=1, minutes=60, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    arm=trial,
    axis="epoch",
)
