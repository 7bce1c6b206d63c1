"""The process of the peers of posteriordb-peers.

    python -m bayescore_lab.experiments.posteriordb.peers_worker

answers requests {"posterior", "peer", "seed", "budget"} (engine/workers.py) with the metrics of what the peer
found, the scores and seconds that it took, and how it ended. Seconds are of all its trials, with compiling.
"""

from __future__ import annotations

import os
import time
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
import torch

from bayescore_lab.bench.choices import INSTALL
from bayescore_lab.bench.jax_worker import ONE_THREAD
from bayescore_lab.engine.workers import Answer, answer_requests
from bayescore_lab.experiments.posteriordb.all_fits import target_of
from bayescore_lab.experiments.posteriordb.peers_density import CountedDensity
from bayescore_lab.experiments.posteriordb.peers_fits import measure
from bayescore_lab.experiments.posteriordb.peers_methods import PEERS

__all__ = ["answer"]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What a peer found, as JSON types, or the error."""
    name = request["posterior"]
    target = target_of(name)
    began = time.perf_counter()
    ended = "diverged"
    try:
        found = PEERS[request["peer"]](CountedDensity(target), request["seed"], request["budget"])
    except ImportError as missing:
        return {"error": f"{missing}; {INSTALL}"}
    except (FloatingPointError, np.linalg.LinAlgError) as problem:
        found, ended = None, f"diverged: {problem}"
    seconds = time.perf_counter() - began
    if found is None:
        return {"metrics": {}, "scores": request["budget"], "seconds": seconds, "ended": ended}
    x, log_q = torch.from_numpy(found.draws), torch.from_numpy(found.log_q)
    pool = None if found.pool is None else (torch.from_numpy(found.pool[0]), torch.from_numpy(found.pool[1]))
    metrics = measure(target, name, x, log_q, pool)
    metrics |= {"setting": found.setting, "values": found.values}
    return {"metrics": metrics, "scores": found.scores, "seconds": seconds, "ended": "ok"}


def _prepare() -> Answer:
    """On one thread and in 64 bits."""
    os.environ.update(ONE_THREAD, JAX_PLATFORMS="cpu")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with suppress(ImportError):  # every request will say so
        import_module("jax").config.update("jax_enable_x64", True)
    return answer


if __name__ == "__main__":
    answer_requests(_prepare)
