"""One of several processes that train a sharded network, beside the same network held whole.

    python sharded_worker.py RANK PROCESSES FOLDER TASK

Every process also trains the whole network with the joined batch, so that each can compare its part.
`launch` starts the processes and returns what the first of them found.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from small_networks import OPTIMIZERS

import bayescore.optim.engine as engine
import bayescore.optim.noise as noise_of
from bayescore.optim.base import BayesianOptimizer
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.shards import local, sharded_like, whole

ROWS = 12  # of the joined batch: divisible by 1, 2, 3 and 4


class Convolutional(nn.Module):
    """With a BatchNorm layer whose weights are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)
        self.norm = nn.BatchNorm2d(5).requires_grad_(False)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class Language(nn.Module):
    """A transformer block between tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(x))).flatten(0, 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], list[str]]] = {
    # how it is made, the layers that are tensor parallel, the layers that are sharded by themselves
    "mlp": (mlp, {"0": ColwiseParallel(), "2": RowwiseParallel()}, ["0"]),
    "conv": (Convolutional, {"head": ColwiseParallel(output_layouts=Replicate())}, ["conv"]),
    "language": (
        Language,
        {"block.linear1": ColwiseParallel(), "block.linear2": RowwiseParallel()},
        ["block"],
    ),
}


def made(network: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = NETWORKS[network][0]().to(dtype)
    if network == "conv":
        model.norm.eval()  # type: ignore[operator]
    return model


def batch(network: str, dtype: torch.dtype, step: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(step)
    if network == "language":
        x = torch.randint(0, 11, (ROWS, 3), generator=rng)
        return x, torch.randint(0, 11, (ROWS, 3), generator=rng)
    shape = (ROWS, 1, 5, 5) if network == "conv" else (ROWS, 5)
    return torch.randn(*shape, generator=rng).to(dtype), torch.randint(0, 3, (ROWS,), generator=rng)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return F.cross_entropy(out if out.dtype == torch.float64 else out.float(), y.flatten())


def spread(model: nn.Module, network: str, how: str) -> tuple[nn.Module, int, int]:
    """The model in its wrapper, and which part of the batch this process sees, of how many."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if how == "ddp":
        return DistributedDataParallel(model), rank, world
    _, parallel, layers = NETWORKS[network]
    options: dict[str, Any] = {}
    mesh: DeviceMesh = init_device_mesh("cpu", (world,))
    if how == "offload":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if how == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if how in ("tp", "tp only"):
        both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, both["tensor"], parallel)
        if how == "tp only":
            return model, 0, 1
        mesh = both["data"]
        rank, world = rank // 2, world // 2
    if how == "hybrid":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in layers:
        fully_shard(model.get_submodule(layer), mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options), rank, world


def steps(
    opt: BayesianOptimizer,
    model: nn.Module,
    network: str,
    dtype: torch.dtype,
    part: tuple[int, int] = (0, 1),
    *,
    first: int = 0,
    count: int = 20,
    parts: int = 1,
    clip: float | None = None,
    spoilt: int | None = None,
    apart: int = 1,
) -> None:
    """Train; the batch of step `spoilt` gives an infinite gradient in one position.

    Arguments:
        parts: backward calls per block.
        clip: largest norm of the gradient.
        apart: parts of a batch whose losses are computed apart and averaged, as several processes do.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    for step in range(first, first + count):
        x, y = batch(network, dtype, step)
        x, y = x.chunk(part[1])[part[0]], y.chunk(part[1])[part[0]]
        for _ in range(opt.least_draws):
            with opt.sample():
                for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
                    pieces = zip(xs.chunk(apart), ys.chunk(apart), strict=True)
                    losses = [loss_of(model, a, b) for a, b in pieces]
                    (torch.stack(losses).mean() if apart > 1 else losses[0]).backward()
            if step == spoilt:
                spoil(parameters[0])
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
        opt.step()
        opt.zero_grad()


def spoil(weight: Tensor) -> None:
    """Make the very first number of a gradient infinite, wherever it is."""
    assert weight.grad is not None
    g = local(weight.grad)
    if g.numel() and (local(weight) is weight or dist.get_rank() == 0):
        g.view(-1)[0] = torch.inf


def difference(one: BayesianOptimizer, two: BayesianOptimizer) -> float:
    """The largest difference between two optimizers' states, relative to the largest number of a tensor."""
    a, b = one.state_dict(), two.state_dict()
    worst = 0.0
    for key, row in b["state"].items():
        assert row.keys() == a["state"][key].keys()
        for name, value in row.items():
            found = whole(a["state"][key][name])
            assert found.shape == value.shape, (key, name, found.shape, value.shape)
            largest = max(float(value.abs().max()) if value.numel() else 0.0, 1e-30)
            worst = max(worst, float((found - value).abs().max()) / largest if value.numel() else 0.0)
    counters = [{k: g[k] for k in ("step", "updates", "skipped")} for g in a["param_groups"]]
    assert counters == [{k: g[k] for k in ("step", "updates", "skipped")} for g in b["param_groups"]]
    return worst


def compared(
    network: str, kind: str, how: str, dtype: str = "float64", options: dict[str, Any] | None = None, **more: Any
) -> float:
    """The difference between a sharded run and a whole one."""
    precision = getattr(torch, dtype)
    model, alone = made(network, precision), made(network, precision)
    wrapped, rank, world = spread(model, network, how)
    opt = OPTIMIZERS[kind](model.named_parameters(), 50, **(options or {}))
    reference = OPTIMIZERS[kind](alone.named_parameters(), 50, **(options or {}))
    steps(opt, wrapped, network, precision, (rank, world), **more)
    steps(reference, alone, network, precision, **more)
    return difference(opt, reference)


# -- tasks -----------------------------------------------------------------------------------------------


def equality(cases: list[dict[str, Any]]) -> Any:
    """The difference in every case, or what was raised."""
    found = {}
    for case in cases:
        name = " ".join(str(v) for v in case.values())
        try:
            found[name] = compared(**copy.deepcopy(case))
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        dist.barrier()
    return found


def positions() -> Any:
    """Whether noise is the same number at every position, in both kinds of stream."""
    found = {}
    for kind in ("generator", "counter"):
        noise_of.LARGE_NETWORK, noise_of.LARGE_TENSOR = (10, 4) if kind == "counter" else (10**9, 10**9)
        engine.SMALL = 4
        hows = ["fsdp", "hybrid", "tp", "tp only"] if dist.get_world_size() == 4 else ["fsdp"]
        for how in hows:
            model, alone = made("mlp", torch.float32), made("mlp", torch.float32)
            wrapped, rank, world = spread(model, "mlp", how)
            opt = OPTIMIZERS["proximal"](model.parameters(), 50)
            reference = OPTIMIZERS["proximal"](alone.parameters(), 50)
            steps(opt, wrapped, "mlp", torch.float32, (rank, world), count=1)
            steps(reference, alone, "mlp", torch.float32, count=1)
            rows = [numbers_of(each, m) for each, m in ((opt, model), (reference, alone))]
            found[f"{kind} {how}"] = all(torch.equal(a, b) for a, b in zip(*rows, strict=True))
    return found


def numbers_of(opt: BayesianOptimizer, model: nn.Module) -> list[Tensor]:
    """The noise of draw 0 of step 7, tensor by tensor."""
    found = {}
    for bucket in opt._gathered(list(opt._members())):
        bucket.noise = None
        eps = noise_of.numbers(opt._noise(bucket, 7, 1), bucket.like)
        for member, part in zip(bucket.members, bucket.split(eps), strict=True):
            found[member.number] = whole(sharded_like(part, member.weight))
    return [found[i] for i in sorted(found)]


TASKS: dict[str, Callable[..., Any]] = {"equality": equality, "positions": positions}


# -- processes -------------------------------------------------------------------------------------------


def launch(task: str, folder: Path, processes: int, **arguments: Any) -> Any:
    """Run a task on so many processes; returns what the first one found."""
    folder.mkdir(exist_ok=True)
    (folder / "arguments.json").write_text(json.dumps(arguments))
    command = [sys.executable, str(Path(__file__))]
    tails = [[str(rank), str(processes), str(folder), task] for rank in range(processes)]
    workers = [subprocess.Popen([*command, *tail]) for tail in tails]
    try:
        assert [worker.wait(timeout=900) for worker in workers] == [0] * processes
    finally:
        for worker in workers:
            worker.kill()
    return json.loads((folder / "found.json").read_text())


def main() -> None:
    rank, processes, folder, task = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=processes)
    found = TASKS[task](**json.loads((folder / "arguments.json").read_text()))
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
