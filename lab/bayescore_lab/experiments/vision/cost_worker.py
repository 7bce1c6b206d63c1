"""Time and memory of a few training steps of one method on one network, in a process of its own.

    python -m bayescore_lab.experiments.vision.cost_worker '{"net": ..., "method": ..., ...}'

prints one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import time
import warnings
from typing import Any

import torch

import bayescore as bs
from bayescore.models import image_classifier

__all__ = ["measure"]

GIGABYTE = 1e9


def measure(config: dict[str, Any]) -> dict[str, float]:
    """Seconds per step without the first, which compiles, peak memory, seconds per prediction by draws."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(config["seed"])
    network = image_classifier(config["net"], 37, size=config["size"], head="random").module.to(device)
    count = config["batch_size"] * (config["steps"] + 1)
    x, y = torch.randn(count, 3, config["size"], config["size"]), torch.randint(37, (count,))
    times: list[float] = []

    def batch(rows: torch.Tensor, rng: torch.Generator | None) -> torch.Tensor:  # noqa: ARG001
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        return x[rows]

    batches = bs.data.Batches(batch, y, config["batch_size"])
    fit = bs.nn.fit(
        network, batches, method=config["method"], epochs=1, batchnorm="frozen", progress=False,
        callbacks=lambda _: times.append(time.perf_counter()),
    )  # fmt: skip
    steps = [b - a for a, b in itertools.pairwise(times[1:])]
    found = {"seconds_per_step": statistics.median(steps)}
    for draws in config["draws"]:
        begin = time.perf_counter()
        fit.predict(x[: config["batch_size"]], draws)
        found[f"predict_{draws}"] = time.perf_counter() - begin
    if device.type == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_allocated() / GIGABYTE
    else:
        found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIGABYTE
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(json.dumps(measure(json.loads(sys.argv[1]))))
