"""Peers on one PosteriorDB posterior, in a process of its own, because JAX's 64-bit switch is global.

    python -m bayescore_lab.bench.posteriordb_worker '{"posterior": "arK-arK", "peers": ["numpyro"],
                                                   "seeds": [0], "budgets": [0.5, 2.0]}'

prints one line of JSON: per peer a list of Gaussians with what they cost, one per budget and seed, or the
reason why there are none. Peers are "numpyro", "pathfinder" and "pymc". With "points" in place of the last
three it prints the JAX density there.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from bayescore.targets.posterior_db.folder import Entry, Folder
from bayescore_lab.bench.jax_worker import ONE_THREAD
from bayescore_lab.bench.posteriordb_densities import log_density
from bayescore_lab.bench.posteriordb_peers import numpyro_runs, pathfinder_runs
from bayescore_lab.bench.posteriordb_pymc import pymc_runs

__all__ = ["answer"]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, as JSON types."""
    entry = Folder(request.get("path"))[request["posterior"]]
    if "points" in request:
        jax = _jax()
        density, _ = log_density(entry.model_name, entry.data)
        values = jax.jit(jax.vmap(density))(np.asarray(request["points"], dtype=np.float64))
        return {"values": np.asarray(values).tolist()}
    return {peer: _run(peer, entry, request["seeds"], request["budgets"]) for peer in request["peers"]}


def _run(peer: str, entry: Entry, seeds: Sequence[int], budgets: Sequence[float]) -> Any:
    try:
        if peer == "pymc":
            runs = pymc_runs(entry.model_name, entry.data, seeds, budgets)
        else:
            _jax()
            method = {"numpyro": numpyro_runs, "pathfinder": pathfinder_runs}[peer]
            runs = method(*log_density(entry.model_name, entry.data), seeds, budgets)
        return [vars(run) | {"mean": run.mean.tolist(), "factor": run.factor.tolist()} for run in runs]
    except ImportError as missing:
        return f"{missing}; pip install './lab[peers]'"


def _jax() -> Any:
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


if __name__ == "__main__":
    os.environ.update(ONE_THREAD, JAX_PLATFORMS="cpu")
    warnings.simplefilter("ignore")
    print(json.dumps(answer(json.loads(sys.argv[1]))))
