"""A network spread over processes by FSDP2, trained by AdamW and by ProximalScore: time and memory of a step.

    torchrun --nproc-per-node 2 examples/sharded.py --network mlp
    torchrun --nproc-per-node 2 examples/sharded.py --network vit_l_32 --optimizer proximal --rounds 1

With both optimizers, these take turns on the same sharded network, so that a busy machine slows both down.
Peak memory is that of a whole process and therefore asks for one optimizer per command. Weights and data are
random. The first process prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from bayescore.operators import declare_vision_operators
from bayescore.optim import ProximalScore


def network(name: str) -> tuple[nn.Module, list[nn.Module], tuple[int, ...]]:
    """A network, the layers that are sharded one by one, and the shape of an input."""
    if name == "mlp":
        width, depth = 1024, 8
        layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
        model = nn.Sequential(*layers, nn.Linear(width, 10))
        return model, list(layers), (width,)
    declare_vision_operators()  # beside a CPU build of torch
    from torchvision import models  # a network of torchvision by its name

    model = getattr(models, name)(num_classes=10)
    return model, list(model.encoder.layers), (3, 224, 224)


def step(model: nn.Module, opt: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    """Seconds of one training step."""
    dist.barrier()
    began = time.perf_counter()
    if isinstance(opt, ProximalScore):
        with opt.sample():
            nn.functional.cross_entropy(model(x), y).backward()
    else:
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    opt.zero_grad()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="mlp")
    parser.add_argument("--optimizer", choices=("adamw", "proximal", "both"), default="both")
    parser.add_argument("--batch", type=int, default=16, help="rows of each process")
    parser.add_argument("--rounds", type=int, default=5, help="of one step each, after two that do not count")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model, layers, shape = network(asked.network)
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    makers: dict[str, Callable[[], Any]] = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=1e-4),
        "proximal": lambda: ProximalScore(model.parameters(), num_data=50_000, lr=1e-4),
    }
    names = list(makers) if asked.optimizer == "both" else [asked.optimizer]
    optimizers = {name: makers[name]() for name in names}
    x, y = torch.randn(asked.batch, *shape), torch.randint(0, 10, (asked.batch,))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(asked.rounds + 2):
        for name, opt in optimizers.items():
            took = step(model, opt, x, y)
            if turn >= 2:
                seconds[name].append(took)
    if dist.get_rank() == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kilobytes on Linux
        found: dict[str, Any] = {"network": asked.network, "processes": dist.get_world_size()}
        found["weights"] = sum(p.numel() for p in model.parameters())
        found["seconds"] = {name: round(statistics.median(rows), 4) for name, rows in seconds.items()}
        found["peak_gb"] = round(peak, 3) if len(names) == 1 else None
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
