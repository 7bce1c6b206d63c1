"""The arms of the two PosteriorDB experiments, as plain data, and their grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Imported, Run

__all__ = ["BEST", "EXACT", "LOST", "MIXTURES", "NOISY", "arm", "execute", "grid", "per_iteration"]

execute = Imported("bayescore_lab.experiments.posteriordb.fits:execute")

#: the negative ELBO of the best full Gaussian, all constants kept, from long runs
BEST = {"diamonds": -3190.58, "arK": -57.88, "gp_pois_regr": 49.73, "low_dim_gauss_mix": 2117.07}
LOST = 1e8  # nats above the best that a run which broke down counts as in a trace

RATES = [0.003, 0.01, 0.03, 0.1]
WIDE: dict[str, Any] = {"scale": 1.0}
NARROW: dict[str, Any] = {"scale": 0.1}  # what the library begins with under noise
SEARCH: dict[str, Any] = {"search": True}
Spec = dict[str, Any]


def arm(method: str, *, tuned: bool = False, start: Spec = WIDE, **options: Any) -> Spec:
    """A method with its options and start; a tuned one has its learning rate chosen on pilot seeds."""
    rates = RATES if tuned else []
    return {"method": method, "options": options, "start": start, "learning_rates": rates}


#: the paper's: two steps of Adam in the Euclidean norm
PRINTED: Spec = {"inner_steps": 2, "metric": "euclidean"}
EXACT: dict[str, Spec] = {
    "Ours, N=2": arm("proximal", tuned=True, **PRINTED),
    "Ours, default": arm("proximal"),
    "ADVI": arm("advi", tuned=True),
    "GSM": arm("gsm"),
    "BaM": arm("bam"),
    "BaM, BD": arm("bam", regularisation="constant"),
    "BaM, BD/(t+1)": arm("bam", regularisation="decay"),
    "Ours, default, searched start": arm("proximal", start=SEARCH),
    "Ours, S=8, searched start": arm("proximal", samples=8, start=SEARCH),
    "ADVI, searched start": arm("advi", tuned=True, start=SEARCH),
    "GSM, searched start": arm("gsm", start=SEARCH),
    "BaM, searched start": arm("bam", start=SEARCH),
    "GSM, batch 32": arm("gsm", batch=32),
    "BaM, batch 32": arm("bam", batch=32),
    "BaM, batch 32, BD/(t+1)": arm("bam", batch=32, regularisation="decay"),
}
MIXTURES: dict[str, Spec] = {
    f"Ours, mixture of {k}": arm("proximal", tuned=True, start=SEARCH, inner_steps=2) | {"components": k}
    for k in (2, 3)
}
NOISY: dict[str, Spec] = {
    "Ours, N=2": arm("proximal", tuned=True, **PRINTED),
    "Ours, default": arm("proximal", start=NARROW),
    "ADVI": arm("advi", tuned=True),
    "ADVI, narrow start": arm("advi", tuned=True, start=NARROW),
    "GSM": arm("gsm"),
    "GSM, batch 16, narrow start": arm("gsm", batch=16, start=NARROW),
    "BaM": arm("bam"),
    "BaM, batch 16, narrow start": arm("bam", batch=16, start=NARROW),
    "BaM, batch 16, BD/(t+1), narrow start": arm("bam", batch=16, regularisation="decay", start=NARROW),
}


def grid(
    arms: Mapping[str, Spec], cases: Sequence[Mapping[str, Any]], seeds: Sequence[int], methods: Sequence[str]
) -> list[Run]:
    """Every arm in every case (a posterior, a noise level), all seeds and noise levels as one group."""
    runs = []
    for case in cases:
        for name in methods:
            config = {**arms[name], **case}
            if "components" in config and case["posterior"] not in ("gp_pois_regr", "low_dim_gauss_mix"):
                continue
            group = f"{name} {case['posterior']}"
            steps = case.get("iterations") or case["calls"] / per_iteration(config)
            cost = steps * (1 + len(config["learning_rates"]))
            runs += [Run(name, seed, config, group, cost) for seed in seeds]
    return runs


def per_iteration(config: dict[str, Any]) -> int:
    """Score calls of one iteration."""
    options = config["options"]
    if config["method"] in ("gsm", "bam"):
        return int(options.get("batch", 2))
    return int(options.get("samples", 1))
