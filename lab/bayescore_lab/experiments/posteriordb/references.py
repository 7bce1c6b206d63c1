"""The references of posteriordb-all: moments and quantiles from long runs of Stan's NUTS, in references.json.

    python -m bayescore_lab.experiments.posteriordb.references [NAME ...]

samples the models that the file lacks (or those named) and adds them to it. A run is kept if it has no
divergence and the largest rank-normalised split R-hat (ArviZ) of all numbers that the program names is below
1.01; otherwise it is made again with a larger acceptance rate, and the last one is kept and says so. Centred
models are judged by the reference of their non-centred form and have none of their own. On mixture_three
three of four chains from Stan's starts stay in a mode that joins two components, 53 nats lower in log density
in eight dimensions, so without mass that counts; there a chain begins at the best of a hundred points.

The tail index of a number x is the generalised Pareto shape of |x - median|, as in metrics/psis.py: from 0.5
on the number has no standard deviation that a comparison could use.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bayescore.inference.export import columns
from bayescore.io import write_bytes
from bayescore.metrics import pareto_khat
from bayescore.targets.stan import Stan
from bayescore_lab.engine.provenance import machine, versions
from bayescore_lab.experiments.posteriordb.all_models import REFERENCES
from bayescore_lab.experiments.posteriordb.models import MODELS
from bayescore_lab.experiments.posteriordb.nuts import Chains, sample

__all__ = ["reference", "references", "tail_index"]

SEED = 20_261_118
CHAINS, WARMUP, DRAWS = 4, 1000, 2500
SLOW = {"ode_pharmacokinetics": 1000, "ode_predator_prey": 1000}  # draws of chains whose gradients are slow
BEST_START = {"mixture_three"}
DELTAS = (0.9, 0.97, 0.995, 0.999)  # acceptance rates, tried in turn
RHAT = 1.01
QUANTILES = (0.05, 0.5, 0.95)


@functools.cache
def references() -> dict[str, Any]:
    """The file: a dict per model, and the versions that made it."""
    found: dict[str, Any] = json.loads(REFERENCES.read_text(encoding="utf-8"))
    return found


def reference(name: str) -> dict[str, Any] | None:
    """The reference of a model of the list, or None."""
    found: dict[str, Any] | None = references()["models"].get(MODELS[name].reference_name)
    return found


def make(name: str) -> dict[str, Any]:
    """Sample one model."""
    target = Stan(MODELS[name].program, MODELS[name].data(), threads=1)
    draws = SLOW.get(name, DRAWS)
    for delta in DELTAS:
        began = time.perf_counter()
        chains = sample(target, CHAINS, WARMUP, draws, SEED, delta, best=name in BEST_START)
        seconds = time.perf_counter() - began
        found = _summary(target, chains)
        if not found["divergences"] and max(found["rhat"]) < RHAT:
            break
    settings: dict[str, Any] = {
        "chains": CHAINS,
        "warmup": WARMUP,
        "draws": draws,
        "delta": delta,
        "seed": SEED,
    }
    if name in BEST_START:
        settings["start"] = "the best of 100 points"
    return {**settings, "seconds": round(seconds, 1), **found}


def _summary(target: Stan, chains: Chains) -> dict[str, Any]:
    arviz: Any = import_module("arviz")
    named = columns(target.to_posterior(chains.draws.flatten(0, 1))["posterior"])
    varying = {name: x for name, x in named.items() if float(x.std()) > 0}
    x = torch.stack(list(varying.values()), -1)  # (chains n, K)
    shaped = x.reshape(*chains.draws.shape[:2], -1).numpy()
    data = arviz.convert_to_dataset({"x": shaped})
    found = {
        "mean": x.mean(0),
        "sd": x.std(0),
        "tail": torch.tensor([tail_index(column) for column in x.T]),
        "rhat": torch.as_tensor(arviz.rhat(data)["x"].values),
        "ess": torch.as_tensor(arviz.ess(data)["x"].values),
        "ess_sd": torch.as_tensor(arviz.ess(data, method="sd")["x"].values),
    }
    for q in QUANTILES:
        found[f"q{round(100 * q)}"] = x.quantile(q, 0)
    numbers = {key: [float(f"{value:.5g}") for value in values.tolist()] for key, values in found.items()}
    counted = {name: getattr(chains, name) for name in ("divergences", "deepest", "gradients")}
    return {**counted, "names": list(varying), **numbers}


def tail_index(x: Tensor) -> float:
    """Of draws (n,)."""
    away = (x - x.median()).abs()
    return pareto_khat(away.clamp_min(away[away > 0].min()).log()).value


def _write(models: dict[str, Any]) -> None:
    made = {"versions": versions(["httpstan", "arviz"]), "machine": machine()}
    ordered = {name: models[name] for name in MODELS if name in models}
    lines = [f" {json.dumps(name)}: {json.dumps(model)}" for name, model in ordered.items()]
    body = '"models": {\n' + ",\n".join(lines) + "\n}"
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in made.items())
    write_bytes(REFERENCES, f"{{\n{head}{body}\n}}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description="Sample the models that references.json lacks.")
    parser.add_argument("names", nargs="*", choices=[[], *MODELS], metavar="NAME")
    asked = parser.parse_args().names
    models = dict(references()["models"]) if REFERENCES.is_file() else {}
    own = [name for name, model in MODELS.items() if model.reference is None]
    for name in asked or [name for name in own if name not in models]:
        models[name] = found = make(name)
        _write(models)
        rhat, ess = max(found["rhat"]), min(found["ess"])
        words = f"R-hat {rhat:.4f}, ESS {ess:.0f}, {found['divergences']} divergences, delta {found['delta']}"
        print(f"{name}: {words}, {found['gradients']:,} gradients, {found['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
