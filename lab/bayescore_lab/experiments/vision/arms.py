"""The arms of the vision and text experiments, as plain data, and the grids of their runs.

Untuned arms have the defaults of `bayescore.finetune`. "Ours, as printed" is Algorithm 1 with exactly the
settings that the paper prints: rates 1e-4 and 1e-2, temperature tau = 1e-6, two inner steps, here of SGD
with momentum 1/2. The initial width is not printed, and it decides: with c = tau/N and w = c/sd^2, the
gradient of the mean in the second inner step is 1 - 2 lr (1 + alpha) w^2 times that in the first. At
sd = 1e-6, which the authors' earlier code has, that is -58 for the body and -5,900 for the head on Pets, and
the network is lost in the first update. The arm begins where w = 1, at sd = sqrt(tau/N) ("unit_width"):
there the mean moves as by SGD with twice the printed rates.

The chosen settings of the others are the best of six trials each on validation data of Pets with one network
and one seed (experiment vision-tuning). What wins there need not suit another network: ADVI's rate loses
MobileNetV2, and is therefore shown untuned too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Imported, Run

__all__ = [
    "ARMS",
    "BASE",
    "CHOSEN",
    "FEWER_SEEDS",
    "OURS",
    "PLAIN",
    "PRINTED_ARM",
    "SCALED",
    "TRIALS",
    "WHOLE",
    "arm_runs",
    "execute",
]

execute = Imported("bayescore_lab.experiments.vision.fits:execute")

OURS, PLAIN, SCALED = "Ours", "Plain", "Plain, temperature"
PRINTED_ARM = "Ours, as printed"
Spec = dict[str, Any]
PRINTED: Spec = {
    "method": "descent",
    "body_lr": 1e-4,
    "head_lr": 1e-2,
    "unit_width": True,
    "options": {"temperature": 1e-6, "inner_steps": 2, "optimizer": "sgd", "momentum": 0.5},
}
LOW: Spec = {"body_lr": 3e-5, "head_lr": 3e-4}
#: chosen by vision-tuning, in place of the defaults; an ensemble has the plain network's
CHOSEN: dict[str, Spec] = {
    PLAIN: LOW,
    SCALED: LOW,
    "ADVI": {"body_lr": 3e-4, "head_lr": 1e-3},
    "MC-dropout": LOW,
    "MC-dropout, weights": LOW,
    "SGLD": {"body_lr": 1e-3, "head_lr": 1e-2, "options": {"temperature": 1e-3}},
    "Laplace": LOW,
    OURS: LOW,
    "Ensemble x5": LOW,
    "SWAG": LOW,
    "Ours, last layer": LOW,
}
BASE: dict[str, Spec] = {
    PLAIN: {"method": "plain"},
    SCALED: {"method": "plain"},
    "ADVI": {"method": "advi"},
    "MC-dropout": {"method": "dropout", "options": {"p": 0.1}},
    "MC-dropout, weights": {"method": "weight-dropout", "options": {"p": 0.1}},
    "SGLD": {"method": "sgld"},
    "Laplace": {"method": "laplace", "prior": "by validation"},
    OURS: {"method": "proximal"},
    "Ensemble x5": {"method": "ensemble"},
    "SWAG": {"method": "swag"},
    "Ours, last layer": {"method": "last-layer"},
}
ARMS: dict[str, Spec] = {
    **{name: {**spec, **CHOSEN.get(name, {})} for name, spec in BASE.items()},
    "Ours, untuned": BASE[OURS],
    "Plain, untuned": BASE[PLAIN],
    "ADVI, untuned": BASE["ADVI"],
    PRINTED_ARM: PRINTED,
}
#: five seeds for the two methods that the paper compares, three for the rest
FEWER_SEEDS = 3
ALL_SEEDS = ("ADVI", OURS, PLAIN, SCALED, "Ours, untuned", "Plain, untuned", "ADVI, untuned")
WHOLE = (PLAIN, "ADVI", OURS)
#: what a cell says of its runs, beside their config
RUNNING = ("only", "seeds", "cost", "turn")
#: six trials per method: rates of body and head, and what the method has of its own
RATES = ((3e-5, 3e-4), (1e-4, 1e-3), (3e-4, 1e-3), (3e-4, 3e-3), (1e-3, 3e-3), (1e-3, 1e-2))
TRIALS: dict[str, list[Spec]] = {
    name: [{"body_lr": body, "head_lr": head} for body, head in RATES]
    for name in (
        PLAIN,
        "ADVI",
        "MC-dropout",
        "MC-dropout, weights",
        "Laplace",
        OURS,
        "SWAG",
        "Ours, last layer",
    )
}
TRIALS["SGLD"] = [
    {"body_lr": rate, "head_lr": 10 * rate, "options": {"temperature": tau}}
    for rate in (1e-4, 1e-3, 1e-2)
    for tau in (1.0, 1e-3)
]


def arm_runs(
    arms: Mapping[str, Spec], settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]
) -> list[Run]:
    """Every method on every cell of `settings["cells"]`, a list of configs; some methods have fewer seeds.

    The plain network and the same with its temperature scaled are trained once. Seeds take turns: of a grid
    that is stopped the first seeds have all arms. Cells with a "turn" of their own come later.
    """
    found = []
    for place in settings["cells"]:
        for method in methods:
            if method not in place.get("only", methods):
                continue
            config = {key: value for key, value in place.items() if key not in RUNNING}
            config |= {**settings.get("shared", {}), **arms[method]}
            few = min(place.get("seeds", len(seeds)), len(seeds))
            count = few if method in ALL_SEEDS else min(few, FEWER_SEEDS)
            cost = place.get("cost", 1.0) * (5 if arms[method]["method"] == "ensemble" else 1)
            for seed in seeds[:count]:
                together = method in (PLAIN, SCALED)
                group = f"{place['data']}, {place['net']}, {place.get('freeze')}, {seed}" if together else ""
                found.append(Run(method, seed, config, group, cost, turn=place.get("turn", 0) + seed))
    return found
