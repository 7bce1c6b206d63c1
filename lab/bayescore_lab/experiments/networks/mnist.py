"""Fig. 3: MNIST with few labels, an MLP with three hidden layers of 1,000 units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
    Experiment,
    Figure,
    Profile,
    Records,
    Run,
    Table,
    all_of,
    arm_table,
    mean_interval,
)
from bayescore_lab.experiments.networks.mnist_arms import (
    ARMS,
    DEFAULT,
    PLAIN,
    PLAIN_DEFAULT,
    arm_runs,
    execute,
)
from bayescore_lab.experiments.networks.mnist_results import (
    OURS,
    Measure,
    at_most,
    differences_table,
    lower_mean,
    not_worse,
    percent_figure,
    similar,
)

PERCENTAGES: dict[str, dict[str, Any]] = {
    "0.1": {},
    "0.5": {},
    "1": {},
    "5": {},
    "10": {},
    "99": {"seeds": 1, "schedule": {"epochs": 20, "every": 1, "patience": 5}},
}
SETTINGS: dict[str, Any] = {
    "percentages": PERCENTAGES,
    "schedule": {"epochs": 100, "every": 5, "patience": 20},
    "hidden": [1000, 1000, 1000],
}
QUICK: dict[str, Any] = {
    "percentages": {"0.5": {}, "1": {}},
    "schedule": {"epochs": 20, "every": 10, "patience": 20},
    "hidden": [100, 100],
    "test_limit": 500,
}
METRICS = {
    "error": "error",
    "NLL": "nll",
    "ECE-15": "ece",
    "all-class ECE, %": "all_class_ece",
    "Brier": "brier",
    "OOD AUROC": "auroc_entropy",
    "NLL, 30 draws": "nll_30",
    "ECE-15, 30 draws": "ece_30",
    "OOD AUROC, 30 draws": "auroc_entropy_30",
    "best epoch": "epoch",
}
GUESS = math.log(10)  # NLL of a uniform guess
FEW = (0.1, 0.5, 1.0, 5.0, 10.0)
#: what one network, trained once and tuned, may do instead of ours
SINGLE = (PLAIN, "Plain, temperature", "Laplace", "MC-dropout", "SGLD", "ADVI", "BaM, diagonal", "IVON")
NOTE = (
    "Means over seeds with 95 % t intervals. The paper shows its numbers only as a picture. Validation "
    "chooses the epoch; settings were chosen by mnist-tuning at 1 %. Arms with default settings (AdamW's for "
    "the plain network) have three seeds, those as printed and without weight decay two. An empty row has "
    "diverged."
)


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return arm_runs(ARMS, {**SETTINGS, **settings}, seeds, methods)


def percentages(records: Records) -> list[float]:
    return sorted({record.config["percent"] for record in records})


def tables(records: Records) -> list[Table]:
    found = []
    for percent in percentages(records):
        chosen = records.where(percent=percent)
        title = f"MNIST, {percent:g} % of the training images"
        name = f"{percent:g}".replace(".", "-")
        found.append(arm_table(chosen, METRICS, title=title, name=name, note=NOTE, interval=mean_interval))
    found.append(differences_table(records, "nll_30", "NLL with 30 draws"))
    found.append(differences_table(records, "nll", "NLL with 5 draws"))
    found.append(differences_table(records, "ece_30", "ECE-15 with 30 draws"))
    return found


def figures(records: Records) -> list[Figure]:
    few = (Measure("error", "test error"), Measure("ece", "ECE-15"), Measure("nll", "test NLL", guess=GUESS))
    many = (
        Measure("ece_30", "ECE-15"),
        Measure("nll_30", "test NLL / the plain network's", relative=True, guess=GUESS),
        Measure("auroc_entropy_30", "OOD AUROC"),
    )
    return [
        percent_figure(records, few, title="MNIST with few labels, 5 draws"),
        percent_figure(records, many, title="MNIST with few labels, 30 draws", name="30"),
    ]


EXPERIMENT = Experiment(
    id="mnist",
    title="MNIST with few labels: error and calibration",
    location="Fig. 3, Sec. 5.2",
    shows="Test error, calibration error and NLL of an MLP against the share of training images.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(seeds=1, minutes=5, settings=QUICK),
        "paper": Profile(seeds=5, minutes=450, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    axis="epoch",
    claims=(
        Claim(
            "The test errors of Ours and ADVI are equally good.",
            "Sec. 5.2",
            all_of(*(similar("error", "Ours, gradient", "ADVI", percent, 0.1) for percent in FEW)),
        ),
        Claim(
            "Ours has a lower NLL than ADVI.",
            "Sec. 5.2",
            all_of(*(lower_mean("nll", "Ours, gradient", "ADVI", percent) for percent in FEW)),
        ),
        Claim(
            "Ours has a lower ECE than ADVI.",
            "Sec. 5.2",
            all_of(*(lower_mean("all_class_ece", "Ours, gradient", "ADVI", percent) for percent in FEW)),
        ),
        Claim(
            "The closed form has a lower NLL than ADVI.",
            "not in the paper",
            all_of(*(lower_mean("nll", "Ours, exact", "ADVI", percent) for percent in FEW)),
        ),
        Claim(
            "The closed form has a lower ECE than ADVI.",
            "not in the paper",
            all_of(*(lower_mean("ece_30", "Ours, exact", "ADVI", percent) for percent in FEW)),
        ),
        *(
            Claim(
                f"{ours}: with 30 draws no other single network has a lower NLL.",
                "not in the paper",
                not_worse("nll_30", ours, SINGLE, FEW, GUESS),
            )
            for ours in OURS
        ),
        Claim(
            "With default settings ours has at most the NLL of the plain network.",
            "not in the paper",
            not_worse("nll_30", DEFAULT, (PLAIN_DEFAULT,), FEW, GUESS),
        ),
        *(
            Claim(
                f"{ours}: with nearly all images the test error is 2 % or less.",
                "not in the paper",
                at_most("error_30", ours, 99.0, 0.02),
            )
            for ours in OURS
        ),
        *(
            Claim(
                f"{ours}: one network with 30 draws has a lower NLL than an ensemble of five.",
                "not in the paper",
                all_of(*(lower_mean("nll_30", ours, "Ensemble x5", percent) for percent in (0.5, 1.0, 5.0))),
            )
            for ours in OURS
        ),
        *(
            Claim(
                f"{ours} has a lower NLL than IVON.",
                "not in the paper",
                all_of(*(lower_mean("nll_30", ours, "IVON", percent) for percent in FEW)),
            )
            for ours in OURS
        ),
    ),
)
