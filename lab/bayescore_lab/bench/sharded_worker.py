"""One of several processes that hold a network together by FSDP2, and train it with one or more methods.

A single process holds it whole.

    python -m bayescore_lab.bench.sharded_worker '{"rank": 0, "processes": 2, "meeting": FILE, ...}'

`work` names what the request has. Several methods take turns on the same sharded network. The first process
prints one line of JSON: the seconds of every method's steps, and the peak memory of each process.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from bayescore_lab.bench.networks import Workload, network
from bayescore_lab.bench.steppers import make_stepper, step_method
from bayescore_lab.bench.timing import PHASES, StepClock, peak_memory

__all__ = ["layers", "work"]


def layers(module: nn.Module) -> list[nn.Module]:
    """The layers that are gathered one by one: the members of the outermost rows of layers."""
    if isinstance(module, nn.Sequential | nn.ModuleList):
        return [child for child in module.children() if any(True for _ in child.parameters())]
    return [layer for child in module.children() for layer in layers(child)]


def work(
    rank: int,
    processes: int,
    meeting: str,
    net: str,
    batch: int,
    methods: Sequence[str],
    rounds: int,
    skip: int,
) -> dict[str, Any]:
    """Train, and tell what it took.

    Arguments:
        meeting: a file that the processes share, not there yet.
        batch: rows of each process.
        rounds, skip: steps of every method that are timed, and steps before these that are not.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    job = Workload(network(net), batch)
    weights = job.size
    if processes > 1:
        for layer in layers(job.model):
            fully_shard(layer)
        fully_shard(job.model)
    steppers = {name: make_stepper(step_method(name), job) for name in methods}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    phases: dict[str, dict[str, list[float]]] = {name: {each: [] for each in PHASES} for name in methods}
    for turn in range(skip + rounds):
        for name in list(methods)[:: 1 if turn % 2 == 0 else -1]:
            dist.barrier()
            began = time.perf_counter()
            clock = StepClock()
            steppers[name].step(clock)
            dist.barrier()
            if turn >= skip:
                seconds[name].append(time.perf_counter() - began)
                for phase, values in phases[name].items():
                    values.append(clock.seconds[phase])
    peaks: list[Any] = [None] * processes
    dist.all_gather_object(peaks, peak_memory())
    dist.destroy_process_group()
    return {"weights": weights, "seconds": seconds, "phases": phases, "peaks": peaks}


def main() -> None:
    """Answer one request."""
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[1])
    found = work(**request)
    if request["rank"] == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
