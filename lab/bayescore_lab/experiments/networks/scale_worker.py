"""One method on one network within a memory limit, in a process of its own: did it run, and what did it cost?

    python -m bayescore_lab.experiments.networks.scale_worker '{"method": ..., "family": ..., ...}'

prints one line of JSON. The process may not hold more than the limit in memory of its own (RLIMIT_DATA), so
that what fails here fails on a machine of that size.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

from bayescore.families import DiagonalGaussian, FullGaussian, LowRankGaussian
from bayescore.families.base import Family
from bayescore.inference.fitting import fit
from bayescore.models import mlp
from bayescore.targets import LogDensity
from bayescore_lab.methods import low_dimensional_method

__all__ = ["attempt", "network_posterior", "start"]

RANK = 20
GIGABYTE = 1e9


def network_posterior(hidden: list[int], images: int = 128) -> LogDensity:
    """The posterior of a perceptron's weights as a flat log density; its data are random."""
    model = mlp(784, hidden, 10)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(images, 784, generator=rng)
    y = torch.randint(10, (images,), generator=rng)

    def one(theta: Tensor) -> Tensor:
        parts = theta.split(sizes)
        weights = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        out = functional_call(model, weights, (x.to(theta),))
        return -F.cross_entropy(out, y, reduction="sum") - 0.5 * theta.square().sum()

    return LogDensity(vmap(one), dim=sum(sizes), dtype=torch.float32)


def start(family: str, dim: int) -> Family:
    """A narrow Gaussian of the family."""
    common: dict[str, Any] = {"scale": 0.05, "dtype": torch.float32}
    if family == "full":
        return FullGaussian.init(dim, **common)
    if family == "low-rank":
        return LowRankGaussian.init(dim, rank=min(RANK, dim), **common)
    return DiagonalGaussian.init(dim, **common)


def attempt(config: dict[str, Any]) -> dict[str, Any]:
    """Run a few steps; what came out, or why nothing did."""
    target = network_posterior(config["hidden"])
    found: dict[str, Any] = {"parameters": target.dim, "ran": False}
    begin = time.perf_counter()
    try:
        q0 = start(config["family"], target.dim)
        method = low_dimensional_method(config["method"], family=config["family"], **config["options"])
        result = fit(target, q0, method, steps=config["steps"], metrics={}, progress=False, check=False)
        finite = bool(result.family.flat().isfinite().all())
        found |= {"ran": finite, "reason": "" if finite else "the parameters are not finite"}
    except (MemoryError, RuntimeError) as problem:  # torch's allocator raises a RuntimeError
        found["reason"] = " ".join(str(problem).split())[:300]
    found["seconds"] = time.perf_counter() - begin
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIGABYTE
    return found


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    limit = int(settings["gigabytes"] * GIGABYTE)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(json.dumps(attempt(settings)))
