"""The arms of the MNIST experiment, as plain data: their settings were chosen by `mnist-tuning`.

Plain networks are trained once per percentage and seed and serve four arms: the first member alone, with its
temperature scaled, with a Laplace approximation around it, and all five as a deep ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayescore_lab.engine import Imported, Run
from bayescore_lab.experiments.networks.untuned_arms import REVISION

__all__ = [
    "ARMS",
    "DECAY_POWER",
    "DEFAULT",
    "FROM_PLAIN",
    "MEMBERS",
    "PLAIN",
    "PLAIN_DEFAULT",
    "TUNED",
    "EpochBudget",
    "arm_runs",
    "execute",
    "scaled",
]

execute = Imported("bayescore_lab.experiments.networks.mnist_fits:execute")

MEMBERS = 5
TUNED_AT = 1.0  # percent
#: of `scaled`: the best of 0, 1/2 and 1 on validation data at 10 % (experiment mnist-tuning)
DECAY_POWER = 0.5
PLAIN = "Plain"
DEFAULT, PLAIN_DEFAULT = "Ours, default settings", "Plain, default settings"
FROM_PLAIN = {
    PLAIN: "the network itself",
    "Plain, temperature": "its logits scaled on validation",
    "Laplace": "last layer, Kronecker, prior chosen on validation",
    f"Ensemble x{MEMBERS}": "five networks",
}
Spec = dict[str, Any]

#: the best of each method's trials on validation data at 1 % (experiment mnist-tuning)
TUNED: dict[str, Spec] = {
    PLAIN: {"kind": "plain", "options": {"lr": 0.003, "weight_decay": 10.0, "average": 0.5}},
    "Ours, exact": {
        "kind": "proximal",
        "options": {
            "lr": 3.0,
            "prior_curvature": 6.7e-8,
            "weight_decay": 4e-3,
            "average": 0.5,
            "init_curvature": 2e-5,
            "temperature": 1e-7,
            "damping": 20.0,
        },
    },
    "Ours, gradient": {
        "kind": "proximal",
        "options": {
            "lr": 0.001,
            "init_sd": 0.01,
            "weight_decay": 10.0,
            "average": 0.5,
            "solver": "gradient",
            "temperature": 1e-06,
        },
    },
    "ADVI": {
        "kind": "advi",
        "options": {
            "lr": 0.006,
            "init_sd": 0.0015,
            "weight_decay": 5.0,
            "average": 0.5,
            "sd_rate": 1.0,
            "prior_sd": 1.0,
        },
    },
    "BaM, diagonal": {
        "kind": "bam",
        "options": {
            "lr": 1.5,
            "weight_decay": 0.006,
            "average": 0.5,
            "init_curvature": 1.85,
            "temperature": 0.01,
        },
    },
    "MC-dropout": {
        "kind": "dropout",
        "options": {"lr": 0.003, "p": 0.4, "weight_decay": 7.0, "average": 0.5},
    },
    "SGLD": {
        "kind": "sgld",
        "options": {
            "lr": 0.0006,
            "weight_decay": 10.0,
            "preconditioned": True,
            "temperature": 1e-06,
            "prior_sd": 1.0,
        },
    },
    "IVON": {
        "kind": "ivon",
        "options": {"hess_init": 740.0, "lr": 0.4, "weight_decay": 0.02, "average": 0.5},
    },
}
ARMS: dict[str, Spec] = {
    **TUNED,
    **dict.fromkeys(FROM_PLAIN, TUNED[PLAIN]),
    DEFAULT: {"kind": "ours", "options": {}, "revision": REVISION},
    PLAIN_DEFAULT: {"kind": "plain", "options": {}},
    "Plain, no decay": {"kind": "plain", "options": {**TUNED[PLAIN]["options"], "weight_decay": 0.0}},
    "Ours, as printed": {"kind": "proximal-as-printed", "options": {"init_sd": 0.01}},
    "ADVI, as printed": {"kind": "advi-as-printed", "options": {"init_sd": 0.01}},
}
#: arms that show what happens rather than compete, and how many seeds that takes
FEW_SEEDS = {
    **dict.fromkeys((DEFAULT, PLAIN_DEFAULT), 3),
    **{name: 2 for name in ARMS if name.endswith(("no decay", "as printed"))},
}


@dataclass(frozen=True)
class EpochBudget:
    """How long a run may take: epochs, validation every so many, stop after so many without improvement."""

    epochs: int
    every: int
    patience: int
    batch_size: int = 128
    draws: int = 5


def arm_runs(
    arms: Mapping[str, Spec], settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]
) -> list[Run]:
    """Every arm at every percentage; `settings` holds percentages -> {seeds, schedule} and the schedule."""
    runs = []
    for percent, size in settings["percentages"].items():
        schedule = {**settings["schedule"], **size.get("schedule", {})}
        for name in methods:
            config = {
                **arms[name],
                "options": scaled(arms[name]["options"], float(percent)),
                "percent": float(percent),
                "schedule": schedule,
                "hidden": settings["hidden"],
            }
            if "test_limit" in settings:
                config["test_limit"] = settings["test_limit"]
            together = f"plain {percent}" if name in FROM_PLAIN else ""
            cost = 1 + float(percent) * schedule["epochs"] / 100
            count = min(size.get("seeds", len(seeds)), FEW_SEEDS.get(name, len(seeds)))
            for seed in seeds[:count]:
                group = f"{together} {seed}" if together else ""
                runs.append(Run(name, seed, config, group, cost))
    return runs


def scaled(options: Mapping[str, Any], percent: float, power: float = DECAY_POWER) -> dict[str, Any]:
    """The options chosen at 1 % as they are used elsewhere: the decay per step is scaled, all else is fixed.

    An epoch has k times the steps that it had where the options were chosen: weight_decay/k^power. Power 0
    takes off the same share per step, 1 the same share per epoch.
    """
    if "weight_decay" not in options:
        return dict(options)
    steps, chosen = (-(-round(600 * p) // EpochBudget.batch_size) for p in (percent, TUNED_AT))
    return {**options, "weight_decay": options["weight_decay"] * (chosen / steps) ** power}
