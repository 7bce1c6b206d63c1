"""The arms of the forecasting experiments, as plain data: their settings were chosen by `koopa-tuning`.

`tau` is the paper's temperature: the likelihood of a window is exp(-MSE/tau), MSE over its steps and
channels. The paper prints tau = 1e-6, N = 2, rate 1e-3, batch 32, 10 epochs, and neither the initial variance
nor the prior; a prior of N(0, 1) and the initial sd 1e-6 of the author's earlier code stand for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Imported, Run

__all__ = [
    "ADVI",
    "ARMS",
    "DATA",
    "DROPOUT",
    "ENSEMBLE",
    "FEW",
    "MANY",
    "MEMBERS",
    "OURS",
    "PROXIMAL",
    "TUNED",
    "VANILLA",
    "arm_runs",
    "cost",
    "data_name",
    "execute",
]

execute = Imported("bayescore_lab.experiments.forecasting.koopa_fits:execute")

Spec = dict[str, Any]

FEW, MANY = 5, 30  # draws: the paper's, and a fair budget
MEMBERS = 5
VANILLA, ADVI, OURS, PROXIMAL = "Vanilla", "ADVI", "Ours, inner loop", "ProximalScore"
DROPOUT, ENSEMBLE = "MC-dropout", f"Ensemble x{MEMBERS}"
#: the data sets, and what a run on them costs
DATA = {"ILI": 1.0, "Exchange": 8.0, "ETTh2": 15.0, "Weather": 55.0}
PRINTED: Spec = {"lr": 1e-3, "tau": 1e-6, "init_sd": 1e-6}

#: the best of each method's trials on the validation windows of ILI and Exchange (koopa-tuning)
TUNED: dict[str, Spec] = {
    ADVI: {"kind": "advi", "options": {"lr": 1e-3, "tau": 1e-4, "init_sd": 1e-2}},
    OURS: {"kind": "descent", "options": {"lr": 1e-3, "tau": 1e-4, "init_sd": 1e-2, "inner_steps": 2}},
    PROXIMAL: {"kind": "proximal", "options": {"lr": 1e-3, "tau": 1e-2}},
    DROPOUT: {"kind": "dropout", "options": {"lr": 1e-3}, "sizes": {"dropout": 0.1}},
}
ARMS: dict[str, Spec] = {
    VANILLA: {"kind": "plain", "options": {"lr": 1e-3}},
    ADVI: TUNED[ADVI],
    OURS: TUNED[OURS],
    PROXIMAL: TUNED[PROXIMAL],
    DROPOUT: TUNED[DROPOUT],
    ENSEMBLE: {"kind": "plain", "options": {"lr": 1e-3}},
    "Ours, as printed": {"kind": "descent", "options": {**PRINTED, "inner_steps": 2, "floor": 0.0}},
    "ADVI, as printed": {"kind": "advi", "options": PRINTED},
}
#: arms that are references or show what happens, and how many seeds that takes
FEW_SEEDS = dict.fromkeys((DROPOUT, ENSEMBLE, "Ours, as printed", "ADVI, as printed"), 3)


def arm_runs(
    arms: Mapping[str, Spec],
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    methods: Sequence[str],
    few_seeds: Mapping[str, int] = FEW_SEEDS,
) -> list[Run]:
    """Every arm on every data set; `settings` holds data -> its network's sizes, and epochs.

    Seeds take turns: of a grid that is stopped, the first seeds have all arms and all data sets.
    """
    runs = []
    for data, sizes in settings["data"].items():
        for name in methods:
            spec = arms[name]
            config = {
                "data": data,
                "kind": spec["kind"],
                "options": spec["options"],
                "sizes": {**sizes, **spec.get("sizes", {})},
                "epochs": settings["epochs"],
            }
            if "family" in spec:
                config["family"] = spec["family"]
            for seed in seeds[: few_seeds.get(name, len(seeds))]:
                group = f"plain {data} {seed}" if name in (VANILLA, ENSEMBLE) else ""
                runs.append(Run(name, seed, config, group, cost(data, name), turn=seed))
    return runs


def cost(data: str, name: str) -> float:
    """Relative to a plain network on ILI."""
    return DATA[data_name(data)] * (MEMBERS if name == ENSEMBLE else 1)


def data_name(data: str) -> str:
    """The data set, where a label says more: "Weather, segment 24" is Weather."""
    return data.partition(",")[0]
