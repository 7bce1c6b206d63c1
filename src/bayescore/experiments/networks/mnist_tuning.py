"""Which settings the MNIST experiment uses: as many trials for every method, judged on validation at 1 %.

How the weight decay goes with the number of images is one rule for all methods, chosen at ten times as many.
The images are those of other seeds than the experiment's. What wins stands in `mnist_arms.TUNED` and
`DECAY_POWER`; the tables say so, and a test compares them with the committed records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bayescore.experiments import Experiment, Figure, Outcome, Profile, Record, Records, Run, Table
from bayescore.experiments.encoding import dumps
from bayescore.experiments.networks.learn import Schedule, learn, network
from bayescore.experiments.networks.mnist_arms import DECAY_POWER, TUNED, scaled
from bayescore.experiments.networks.split import mnist_split
from bayescore.experiments.tables import Cell

__all__ = ["EXPERIMENT", "TRIALS"]

OTHER_SEEDS = 100


def _at(temperature: float, *trials: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"lr": lr, "init_sd": sd, "temperature": temperature} for lr, sd in trials]


def _trials(names: str, *values: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), value, strict=True)) for value in values]


#: 24 settings of each method: the best two of an earlier grid of eight, where the best of nearly every method
#: was at an edge, eight beyond them, six near the best of these or colder, four with the weight decay that
#: the plain network had all along, or near the best where that was no news, and four around the best of all
TRIALS: dict[str, list[dict[str, Any]]] = {
    "Plain": _trials(
        "lr weight_decay",
        *((1e-4, decay) for decay in (0.1, 3.0, 10.0, 30.0)),
        *((5e-5, decay) for decay in (0.1, 3.0, 10.0, 30.0)),
        *((2e-4, decay) for decay in (10.0, 30.0)),
        *((3.5e-5, decay) for decay in (10.0, 20.0)),
        *((2.5e-5, decay) for decay in (10.0, 30.0)),
        (5e-5, 20.0),
        (7e-5, 10.0),
        (7e-5, 20.0),
        (7e-5, 15.0),
        (5e-5, 15.0),
        (1e-4, 20.0),
        (1e-4, 25.0),
        (1.5e-4, 15.0),
        (1.5e-4, 20.0),
        (2e-4, 20.0),
    ),
    "Ours, exact": [
        *_at(1.0, (0.05, 0.003), (0.05, 0.006), (0.1, 0.001), (0.1, 0.003), (0.1, 0.006), (0.2, 0.003)),
        *_at(0.1, (0.1, 0.003), (0.2, 0.006)),
        *_at(0.01, (0.1, 0.003)),
        {"lr": 0.1, "init_sd": 0.003, "prior_sd": 0.1},
        *_trials(
            "lr init_curvature temperature damping prior_sd",
            (0.1, 2e-5, 1e-7, 20.0, 0.05),
            (0.07, 2e-5, 1e-7, 20.0, 0.05),
            (0.05, 2e-5, 1e-7, 20.0, 0.05),
            (0.1, 2e-5, 1e-7, 20.0, 0.01),
            (0.1, 5e-5, 1e-6, 20.0, 0.05),
            (0.05, 5e-5, 1e-6, 20.0, 0.05),
        ),
        *_trials(
            "lr init_curvature temperature damping prior_sd weight_decay",
            (0.1, 2e-5, 1e-7, 20.0, 0.05, 2e-3),
            (0.1, 2e-5, 1e-7, 20.0, 0.05, 5e-3),
            (0.2, 2e-5, 1e-7, 20.0, 0.05, 2.5e-3),
            (0.2, 2e-5, 1e-7, 20.0, 0.05, 5e-3),
            (0.3, 2e-5, 1e-7, 20.0, 0.05, 3e-3),
            (0.3, 2e-5, 1e-7, 20.0, 0.05, 5e-3),
            (0.4, 2e-5, 1e-7, 20.0, 0.05, 2.5e-3),
            (0.4, 2e-5, 1e-7, 20.0, 0.05, 5e-3),
        ),
    ],
    "Ours, gradient": [
        {"solver": "gradient", **trial}
        for trial in [
            *_at(1e-3, (5e-5, 0.01)),
            *_at(1e-4, (5e-5, 0.01), (5e-5, 0.006), (5e-5, 0.003), (2.5e-5, 0.006), (2.5e-5, 0.003)),
            *_at(1e-4, (1e-4, 0.006)),
            *_at(1.0, (5e-5, 0.006)),
            {"lr": 5e-5, "init_sd": 0.006, "prior_sd": 0.1},
            {"lr": 5e-5, "init_sd": 0.003, "prior_sd": 0.05},
            *_at(1e-4, (1.8e-5, 0.006), (1.8e-5, 0.003), (1.25e-5, 0.006), (1.25e-5, 0.003)),
            *_at(1e-4, (2.5e-5, 0.0015)),
            *_at(1e-6, (2.5e-5, 0.003)),
            *_trials(
                "lr init_sd temperature weight_decay",
                (2.5e-5, 0.0015, 1e-4, 10.0),
                (2.5e-5, 0.0015, 1e-4, 20.0),
                (5e-5, 0.0015, 1e-4, 10.0),
                (2.5e-5, 0.003, 1e-4, 20.0),
                (2.5e-5, 0.0015, 1e-4, 15.0),
                (2.5e-5, 0.0015, 1e-6, 15.0),
                (3.5e-5, 0.0015, 1e-4, 15.0),
                (3.5e-5, 0.00075, 1e-4, 20.0),
            ),
        ]
    ],
    "ADVI": _trials(
        "lr init_sd sd_rate prior_sd",
        (1e-4, 0.01, 1.0, 1.0),
        (1e-4, 0.01, 10.0, 1.0),
        (1e-4, 0.006, 1.0, 1.0),
        (1e-4, 0.003, 1.0, 1.0),
        (5e-5, 0.006, 1.0, 1.0),
        (5e-5, 0.003, 1.0, 1.0),
        (2e-4, 0.006, 1.0, 1.0),
        (1e-4, 0.006, 10.0, 1.0),
        (1e-4, 0.006, 1.0, 0.1),
        (1e-4, 0.003, 1.0, 0.05),
        (2.5e-5, 0.006, 1.0, 1.0),
        (2.5e-5, 0.003, 1.0, 1.0),
        (2.5e-5, 0.0015, 1.0, 1.0),
        (5e-5, 0.0015, 1.0, 1.0),
        (3.5e-5, 0.003, 1.0, 0.1),
        (2.5e-5, 0.003, 1.0, 0.05),
    )
    + _trials(
        "lr init_sd sd_rate prior_sd weight_decay",
        (5e-5, 0.0015, 1.0, 1.0, 10.0),
        (5e-5, 0.0015, 1.0, 1.0, 20.0),
        (1e-4, 0.0015, 1.0, 1.0, 10.0),
        (5e-5, 0.003, 1.0, 1.0, 10.0),
        (5e-5, 0.00075, 1.0, 1.0, 10.0),
        (7e-5, 0.0015, 1.0, 1.0, 15.0),
        (7e-5, 0.00075, 1.0, 1.0, 15.0),
        (1e-4, 0.00075, 1.0, 1.0, 20.0),
    ),
    # lr/(1 + lr) N sd^2/temperature is the rate of its first steps: 0.03 to 0.1 here too
    "BaM, diagonal": [
        *_at(1.0, (1.0, 0.01), (5.0, 0.01)),
        *_at(0.1, (1.0, 0.003), (5.0, 0.003), (0.2, 0.006), (0.5, 0.006), (1.0, 0.006)),
        *_at(0.01, (0.1, 0.003)),
        {"lr": 0.25, "init_curvature": 1.85, "temperature": 0.01},
        {"lr": 0.5, "init_sd": 0.006, "temperature": 0.1, "prior_sd": 0.1},
        *_at(0.1, (2.0, 0.006)),
        *_at(0.01, (0.05, 0.006)),
        {"lr": 1.0, "init_sd": 0.006, "temperature": 0.1, "damping": 20.0},
        *_trials(
            "lr init_curvature temperature damping prior_sd",
            (0.02, 0.2, 1e-3, 20.0, 0.05),
            (2e-4, 2e-3, 1e-5, 20.0, 0.05),
            (2e-6, 2e-5, 1e-7, 20.0, 0.05),
        ),
        *_trials(
            "lr init_curvature temperature weight_decay",
            (0.25, 1.85, 0.01, 1e-3),
            (0.25, 1.85, 0.01, 2e-3),
            (0.5, 1.85, 0.01, 1e-3),
            (0.15, 1.85, 0.01, 3e-3),
            (0.25, 1.85, 0.01, 4e-3),
            (0.35, 1.85, 0.01, 3e-3),
        ),
        *_trials(
            "lr init_curvature temperature damping prior_sd weight_decay",
            (2e-6, 2e-5, 1e-7, 20.0, 0.05, 250.0),
            (4e-6, 2e-5, 1e-7, 20.0, 0.05, 125.0),
        ),
    ],
    "MC-dropout": _trials(
        "lr p weight_decay",
        (1e-4, 0.3, 0.1),
        (1e-4, 0.2, 0.1),
        (5e-5, 0.3, 0.1),
        (5e-5, 0.5, 0.1),
        (1e-4, 0.3, 3.0),
        (1e-4, 0.4, 3.0),
        (1.5e-4, 0.4, 3.0),
        (1e-4, 0.3, 10.0),
        (1e-4, 0.4, 10.0),
        (1e-4, 0.4, 30.0),
        (7e-5, 0.3, 3.0),
        (7e-5, 0.3, 10.0),
        (7e-5, 0.4, 10.0),
        (1e-4, 0.2, 10.0),
        (1e-4, 0.25, 5.0),
        (1.5e-4, 0.3, 10.0),
        (1.5e-4, 0.3, 20.0),
        (2e-4, 0.3, 10.0),
        (1.5e-4, 0.25, 10.0),
        (2e-4, 0.35, 15.0),
        (2e-4, 0.3, 7.0),
        (2.5e-4, 0.3, 10.0),
        (3e-4, 0.3, 10.0),
        (3e-4, 0.4, 10.0),
    ),
    "SGLD": _trials(
        "preconditioned lr temperature prior_sd",
        (False, 0.03, 1e-2, 1.0),
        (False, 0.03, 1e-4, 1.0),
        (False, 0.03, 1e-1, 1.0),
        (False, 0.05, 1e-2, 1.0),
        (False, 0.02, 1e-2, 1.0),
        (False, 0.05, 1e-1, 1.0),
        (False, 0.03, 1e-2, 0.1),
        (False, 0.05, 1e-2, 0.1),
        (True, 3e-5, 1e-2, 1.0),
        (True, 3e-5, 1e-4, 1.0),
        (True, 3e-5, 1e-6, 1.0),
        (True, 2e-5, 1e-5, 1.0),
        (True, 1e-5, 1e-4, 1.0),
        (False, 0.05, 3e-3, 1.0),
        (False, 0.07, 3e-3, 1.0),
        (False, 0.04, 1e-2, 1.0),
    )
    + _trials(
        "preconditioned lr temperature prior_sd weight_decay",
        (True, 3e-5, 1e-6, 1.0, 8.0),
        (True, 3e-5, 1e-6, 1.0, 16.0),
        (True, 5e-5, 1e-6, 1.0, 10.0),
        (True, 3e-5, 1e-4, 1.0, 16.0),
        (True, 5e-5, 1e-6, 1.0, 20.0),
        (True, 7e-5, 1e-6, 1.0, 10.0),
        (True, 1e-4, 1e-6, 1.0, 10.0),
        (True, 1e-4, 1e-6, 1.0, 20.0),
    ),
    # its hess_init is temperature/(N sd^2), its weight_decay temperature/(N prior_sd^2)
    "IVON": _trials(
        "lr hess_init weight_decay",
        (0.08, 46.3, 1e-3),
        (0.08, 16.67, 1e-3),
        (0.15, 46.3, 1e-3),
        (0.3, 46.3, 1e-3),
        (0.08, 185.0, 1e-3),
        (0.15, 185.0, 1e-3),
        (0.3, 185.0, 1e-3),
        (0.15, 46.3, 0.02),
        (0.15, 46.3, 0.17),
        (0.3, 185.0, 0.17),
        (0.05, 46.3, 1e-3),
        (0.06, 46.3, 0.05),
        (0.03, 46.3, 1e-3),
        (0.05, 185.0, 1e-3),
        (0.08, 46.3, 0.01),
        (0.1, 46.3, 0.02),
        (0.05, 185.0, 0.01),
        (0.05, 740.0, 1e-3),
        (0.08, 185.0, 0.01),
        (0.1, 185.0, 0.02),
    )
    + _trials(
        "lr hess_init weight_decay temperature beta2",
        (0.08, 0.067, 1e-4, 1e-3, 0.9999),
        (0.08, 6.7e-4, 1e-6, 1e-5, 0.9999),
        (0.08, 1.85e-5, 1e-8, 1e-7, 0.9999),
        (0.1, 1.85e-5, 1e-8, 1e-7, 0.999),
    ),
}
POWERS = (0.0, 0.5, 1.0)  # of the weight decay, by these two:
SCALED = ("Plain", "Ours, exact")
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
    scored = sorted((float(c.values("validation_nll").mean()), c[0]) for c in own.arms.values())
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
    title="Settings for MNIST: 24 trials per method, on validation",
    location="beside Fig. 3",
    shows="The validation NLL of every trial at 1 % of the training images.",
    methods=tuple(TRIALS),
    profiles={
        "quick": Profile(seeds=1, minutes=2, settings=QUICK),
        "paper": Profile(seeds=1, minutes=110, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    arm=trial,
    axis="epoch",
)
