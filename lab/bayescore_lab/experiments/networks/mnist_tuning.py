"""Which settings the MNIST experiment uses: as many trials for every method, judged on validation at 1 %.

How the weight decay depends on the number of images is one formula for all methods, chosen with ten times as
many images. The seeds, and so the images, are not those of the experiment. The best settings are in
`mnist_arms.TUNED` and `DECAY_POWER`; the tables show them, and a test compares them with the committed
records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Experiment, Figure, Imported, Profile, Record, Records, Run, Table
from bayescore_lab.engine.records import dumps
from bayescore_lab.engine.tables import Cell
from bayescore_lab.experiments.networks.mnist_arms import DECAY_POWER, TUNED, scaled

__all__ = ["EXPERIMENT", "TRIALS"]

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
COLD = {"init_curvature": 2e-5, "temperature": 1e-7, "damping": 20.0}
AVERAGE = 0.5  # optim/base.py (3); SGLD averages the predictions of its states instead


def _trials(names: str, *values: tuple[Any, ...], **shared: Any) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), value, strict=True)) | shared for value in values]


#: 12 settings of each method: the best of an earlier round of 24 without averages, seven with them, at the
#: higher rates that averages allow and the decays that go with these, and four around or beyond the best
TRIALS: dict[str, list[dict[str, Any]]] = {
    "Plain": [
        {"lr": 2e-4, "weight_decay": 20.0},
        *_trials(
            "lr weight_decay",
            (1e-3, 5.0),
            (1e-3, 10.0),
            (2e-3, 2.5),
            (2e-3, 5.0),
            (2e-3, 10.0),
            (4e-3, 2.5),
            (4e-3, 5.0),
            (2e-3, 15.0),
            (3e-3, 7.0),
            (3e-3, 10.0),
            (4e-3, 10.0),
            average=AVERAGE,
        ),
    ],
    # the flattest curvature is that of a prior_sd of 0.05, or 0.02 and 0.01, at 600 images
    "Ours, exact": [
        {"lr": 0.2, "prior_sd": 0.05, "weight_decay": 5e-3} | COLD,
        *_trials(
            "lr prior_curvature weight_decay",
            (1.0, 6.7e-8, 5e-3),
            (2.0, 6.7e-8, 2.5e-3),
            (2.0, 6.7e-8, 5e-3),
            (2.0, 6.7e-8, 1e-2),
            (4.0, 6.7e-8, 1.25e-3),
            (4.0, 6.7e-8, 2.5e-3),
            (8.0, 6.7e-8, 1.25e-3),
            (3.0, 6.7e-8, 4e-3),
            (2.0, 1.7e-6, 5e-3),
            (2.0, 4.2e-7, 5e-3),
            (4.0, 1.7e-6, 5e-3),
            average=AVERAGE,
            **COLD,
        ),
    ],
    "Ours, gradient": [
        trial | {"solver": "gradient", "temperature": 1e-6}
        for trial in [
            {"lr": 2.5e-5, "init_sd": 0.0015, "weight_decay": 15.0},
            *_trials(
                "lr init_sd weight_decay",
                (5e-4, 0.0015, 10.0),
                (5e-4, 0.0015, 20.0),
                (1e-3, 0.0015, 5.0),
                (1e-3, 0.0015, 10.0),
                (2e-3, 0.0015, 5.0),
                (1e-3, 0.006, 10.0),
                (5e-4, 0.006, 20.0),
                (1e-3, 0.006, 20.0),
                (1e-3, 0.01, 10.0),
                (1e-3, 0.01, 20.0),
                (2e-3, 0.006, 10.0),
                average=AVERAGE,
            ),
        ]
    ],
    "ADVI": [
        trial | {"sd_rate": 1.0, "prior_sd": 1.0}
        for trial in [
            {"lr": 7e-5, "init_sd": 7.5e-4, "weight_decay": 15.0},
            *_trials(
                "lr init_sd weight_decay",
                (1e-3, 0.0015, 5.0),
                (1e-3, 0.0015, 10.0),
                (2e-3, 0.0015, 5.0),
                (2e-3, 0.0015, 10.0),
                (4e-3, 0.0015, 2.5),
                (4e-3, 0.0015, 5.0),
                (2e-3, 0.006, 5.0),
                (4e-3, 0.0015, 10.0),
                (4e-3, 0.006, 5.0),
                (4e-3, 0.006, 10.0),
                (6e-3, 0.0015, 5.0),
                average=AVERAGE,
            ),
        ]
    ],
    "BaM, diagonal": [
        trial | {"init_curvature": 1.85, "temperature": 0.01}
        for trial in [
            {"lr": 0.35, "weight_decay": 3e-3},
            *_trials(
                "lr weight_decay",
                (0.35, 6e-3),
                (0.7, 3e-3),
                (0.7, 6e-3),
                (1.5, 3e-3),
                (1.5, 6e-3),
                (3.0, 1.5e-3),
                (3.0, 3e-3),
                (1.5, 8e-3),
                (1.5, 1e-2),
                (2.0, 6e-3),
                (3.0, 6e-3),
                average=AVERAGE,
            ),
        ]
    ],
    "MC-dropout": [
        {"lr": 3e-4, "p": 0.4, "weight_decay": 10.0},
        *_trials(
            "lr p weight_decay",
            (1e-3, 0.4, 5.0),
            (1e-3, 0.4, 10.0),
            (2e-3, 0.4, 5.0),
            (2e-3, 0.4, 10.0),
            (4e-3, 0.4, 5.0),
            (2e-3, 0.3, 5.0),
            (2e-3, 0.5, 5.0),
            (2e-3, 0.3, 10.0),
            (2e-3, 0.4, 7.0),
            (3e-3, 0.3, 10.0),
            (3e-3, 0.4, 7.0),
            average=AVERAGE,
        ),
    ],
    "SGLD": _trials(
        "lr weight_decay",
        (1e-4, 20.0),
        (1e-4, 40.0),
        (2e-4, 10.0),
        (2e-4, 20.0),
        (4e-4, 10.0),
        (4e-4, 20.0),
        (8e-4, 5.0),
        (8e-4, 10.0),
        (4e-4, 15.0),
        (4e-4, 30.0),
        (6e-4, 10.0),
        (6e-4, 20.0),
        preconditioned=True,
        temperature=1e-6,
        prior_sd=1.0,
    ),
    # its hess_init is temperature/(N sd^2), its weight_decay temperature/(N prior_sd^2)
    "IVON": [
        {"hess_init": 185.0} | trial
        for trial in [
            {"lr": 0.05, "weight_decay": 0.01},
            *_trials(
                "lr weight_decay",
                (0.1, 0.01),
                (0.2, 5e-3),
                (0.2, 0.01),
                (0.2, 0.02),
                (0.4, 2.5e-3),
                (0.4, 5e-3),
                (0.8, 2.5e-3),
                (0.4, 0.02),
                (0.4, 0.04),
                (0.8, 0.01),
                average=AVERAGE,
            ),
            {"lr": 0.4, "weight_decay": 0.02, "hess_init": 740.0, "average": AVERAGE},
        ]
    ],
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
    execute=Imported("bayescore_lab.experiments.networks.mnist_fits:execute_trials"),
    tables=tables,
    figures=figures,
    arm=trial,
    axis="epoch",
)
