"""One of several processes that train a sharded network, beside the same network held whole.

    python sharded_worker.py RANK PROCESSES FOLDER MEETING_FILE

Every process also trains the whole network with the joined batch, so that each can compare its part.
`launch` starts the processes and returns what the first of them found.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from small_networks import OPTIMIZERS

import bayescore.optim.engine as engine
import bayescore.optim.noise as noise_of
from bayescore.families import FullGaussian
from bayescore.methods import ADVI
from bayescore.nn import fit
from bayescore.optim import FamilyOptimizer
from bayescore.optim.base import BayesianOptimizer
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.shards import local, sharded_like, whole

PATIENCE = 1800  # seconds after which processes are taken to wait for each other
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
    """A transformer block between tied embeddings.

    It has no biases: the gradient of a key's bias is zero but for rounding, and Adam's step has its sign.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, bias=False)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(x))).flatten(0, 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def one_number() -> nn.Module:
    """With a parameter of one number, of which all processes but the first hold an empty part."""
    return nn.Sequential(nn.Linear(5, 6), nn.PReLU(), nn.Linear(6, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], list[str]]] = {
    # how it is made, the layers that are tensor parallel, the layers that are sharded by themselves
    "mlp": (mlp, {"0": ColwiseParallel(), "2": RowwiseParallel()}, ["0"]),
    "one number": (one_number, {}, []),
    "conv": (Convolutional, {"head": ColwiseParallel(output_layouts=Replicate())}, ["conv"]),
    "conv training": (Convolutional, {}, []),
    "language": (
        Language,
        {"block.linear1": ColwiseParallel(), "block.linear2": RowwiseParallel()},
        ["block"],
    ),
}


def made(network: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = NETWORKS[network][0]().to(dtype)
    if network == "conv":  # frozen in every respect, as `fit` does it
        model.norm.eval()  # type: ignore[operator]
    return model


def batch(network: str, dtype: torch.dtype, step: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(step)
    if network == "language":
        x = torch.randint(0, 11, (ROWS, 3), generator=rng)
        return x, torch.randint(0, 11, (ROWS, 3), generator=rng)
    shape = (ROWS, 1, 5, 5) if "conv" in network else (ROWS, 5)
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
    evaluating: bool = False,
    late_sync: bool = False,
    meshes: bool = False,
) -> None:
    """Train; the batch of step `spoilt` gives an infinite gradient in one position.

    Arguments:
        parts: backward calls per block.
        clip: largest norm of the gradient.
        apart: parts of a batch whose losses are computed apart and averaged, as several processes do.
        evaluating: run the network after every step too, which leaves FSDP2's root gathered.
        late_sync: let FSDP2 reduce gradients in the last backward call of a block only.
        meshes: clip as docs/distributed.md says for parameters on several meshes.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    for step in range(first, first + count):
        x, y = batch(network, dtype, step)
        x, y = x.chunk(part[1])[part[0]], y.chunk(part[1])[part[0]]
        for _ in range(opt.least_draws):
            with opt.sample():
                for number, (xs, ys) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
                    if late_sync and hasattr(model, "set_requires_gradient_sync"):
                        model.set_requires_gradient_sync(number == parts - 1)
                    pieces = zip(xs.chunk(apart), ys.chunk(apart), strict=True)
                    losses = [loss_of(model, a, b) for a, b in pieces]
                    (torch.stack(losses).mean() if apart > 1 else losses[0]).backward()
            if step == spoilt:
                spoil(parameters[0])
            if clip is not None and meshes:
                squares = [p.grad.square().sum() for p in parameters if p.grad is not None]
                norm = torch.stack([whole(square) for square in squares]).sum().sqrt()
                nn.utils.clip_grads_with_norm_(parameters, clip, norm, foreach=False)
            elif clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
        opt.step()
        opt.zero_grad()
        if evaluating:
            with torch.no_grad():
                model(x)


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


@contextmanager
def large_tensors(noise: str | None) -> Iterator[None]:
    """Let tensors of 4 weights be large ones, whose mean is in the module alone (optim/recovery.py).

    Arguments:
        noise: "generator" or "counter", the stream from which these have their noise; None: nothing changes.
    """
    before = (noise_of.LARGE_NETWORK, noise_of.LARGE_TENSOR, engine.SMALL)
    if noise is not None:
        engine.SMALL, noise_of.LARGE_NETWORK = 4, 10
    if noise == "counter":
        noise_of.LARGE_TENSOR = 4
    try:
        yield
    finally:
        noise_of.LARGE_NETWORK, noise_of.LARGE_TENSOR, engine.SMALL = before


def compared(
    network: str,
    kind: str,
    how: str,
    dtype: str = "float64",
    options: dict[str, Any] | None = None,
    large: str | None = None,
    **more: Any,
) -> float:
    """The difference between a sharded run and a whole one."""
    precision = getattr(torch, dtype)
    model, alone = made(network, precision), made(network, precision)
    wrapped, rank, world = spread(model, network, how)
    given = {**(options or {}), **({"compiled": False} if large else {})}
    opt = OPTIMIZERS[kind](model.named_parameters(), 50, **given)
    reference = OPTIMIZERS[kind](alone.named_parameters(), 50, **given)
    with large_tensors(large):
        steps(opt, wrapped, network, precision, (rank, world), **more)
        steps(reference, alone, network, precision, **{**more, "apart": world if more.get("apart") else 1})
        assert opt.param_groups[0]["quanta"] == reference.param_groups[0]["quanta"]
        return difference(opt, reference)


# -- tasks -----------------------------------------------------------------------------------------------


def equality(cases: list[dict[str, Any]]) -> Any:
    """The difference in every case, or what was raised."""
    found: list[Any] = []
    for case in cases:
        try:
            found.append(compared(**copy.deepcopy(case)))
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            found.append(f"{type(error).__name__}: {error}")
        dist.barrier()
    return found


def positions() -> Any:
    """Whether noise is the same number at every position, in both kinds of stream."""
    found = {}
    for kind in ("generator", "counter"):
        hows = ["fsdp", "hybrid", "tp", "tp only"] if dist.get_world_size() == 4 else ["fsdp"]
        for how in hows:
            model, alone = made("mlp", torch.float32), made("mlp", torch.float32)
            wrapped, rank, world = spread(model, "mlp", how)
            opt = OPTIMIZERS["proximal"](model.parameters(), 50, compiled=False)
            reference = OPTIMIZERS["proximal"](alone.parameters(), 50, compiled=False)
            with large_tensors(kind):
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
            found[member.number] = sharded_like(part, member.weight)
    return [whole(found[i]) for i in sorted(found)]  # the processes may have other buckets


def predictions(folder: str, kind: str = "proximal", how: str = "fsdp") -> Any:
    """Predictions of a sharded posterior beside those of the whole one, and of its file."""
    network, dtype = "mlp", torch.float64
    model, alone = made(network, dtype), made(network, dtype)
    wrapped, rank, world = spread(model, network, how)
    opt = OPTIMIZERS[kind](model.parameters(), 50)
    reference = OPTIMIZERS[kind](alone.parameters(), 50)
    steps(opt, wrapped, network, dtype, (rank, world), count=4, evaluating=True)
    steps(reference, alone, network, dtype, count=4)
    x, _ = batch(network, dtype, 99)
    expected = reference.posterior(alone).predict(x, draws=5).probs
    found: dict[str, Any] = {}

    def off(posterior: Posterior) -> float:
        return float((posterior.predict(x, draws=5).probs - expected).abs().max())

    posterior = opt.posterior(wrapped)
    full, DTensor.full_tensor = DTensor.full_tensor, None
    found["prediction"] = off(posterior)
    DTensor.full_tensor = full
    with torch.no_grad():
        found["mean afterwards"] = float((wrapped(x) - alone(x)).abs().max())
        with posterior.sample_(3) as drawn, reference.posterior(alone).sample_(3) as other:
            found["one draw"] = float((drawn(x) - other(x)).abs().max())
    path = Path(folder) / f"{how} {kind}.safetensors"
    posterior.save(path)
    dist.barrier()
    found["file, whole"] = off(Posterior.load(path, made(network, dtype)))
    again = spread(made(network, dtype), network, how)[0]
    found["file, sharded"] = off(Posterior.load(path, again))
    found["sharded state"] = all(
        value.placements == p.placements
        for p, row in zip(model.parameters(), opt.state_dict()["state"].values(), strict=True)
        for name, value in row.items()
        if name not in ("statistics", "path")
    )
    return found


def low_precision() -> Any:
    """The state's precision under a mixed precision policy, and the difference from the whole network."""
    model = made("mlp", torch.float32)
    wrapped, rank, world = spread(model, "mlp", "bfloat16")
    opt = OPTIMIZERS["proximal"](model.parameters(), 50)
    steps(opt, wrapped, "mlp", torch.float32, (rank, world))
    rows = opt.state_dict()["state"].values()
    kinds = sorted({str(v.dtype) for row in rows for name, v in row.items() if name != "statistics"})
    return {"kinds": kinds, "difference": compared("mlp", "proximal", "bfloat16", "float32")}


def mistakes() -> Any:
    """What each of two processes is told."""
    found = {}
    cases: dict[str, Any] = {
        "seeds": {"seed": dist.get_rank()},
        "options": {"temperature": 1.0 + dist.get_rank()},
    }
    for name, options in cases.items():
        model = made("mlp", torch.float32)
        wrapped, rank, world = spread(model, "mlp", "fsdp")
        opt = OPTIMIZERS["proximal"](model.parameters(), 50, **options)
        try:
            steps(opt, wrapped, "mlp", torch.float32, (rank, world), count=1)
        except ValueError as error:
            found[name] = str(error)
    model = made("mlp", torch.float32)
    wrapped, rank, world = spread(model, "mlp", "fsdp")
    opt = OPTIMIZERS["proximal"](model.parameters(), 50)
    steps(opt, wrapped, "mlp", torch.float32, (rank, world), count=1)
    damaged = opt.state_dict()
    if rank:
        local(damaged["state"][0]["second"]).fill_(-1.0)
    try:
        opt.load_state_dict(damaged)
    except (ValueError, RuntimeError) as error:
        found["damage"] = str(error)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    return everyone


def refused() -> Any:
    """What every process is told about networks and options that cannot be sharded."""
    rank, found = dist.get_rank(), {}

    def family() -> None:
        model = spread(made("mlp", torch.float32), "mlp", "fsdp")[0]
        FamilyOptimizer(model.parameters(), 50, FullGaussian.init(57), ADVI())

    def plain() -> None:
        data = [batch("mlp", torch.float32, 0)]
        fit(spread(made("mlp", torch.float32), "mlp", "fsdp")[0], data, method="plain", num_data=12)

    def in_backward() -> None:
        model = spread(made("mlp", torch.float32), "mlp", "fsdp")[0]
        opt = OPTIMIZERS["proximal"](model.parameters(), 50, update_in_backward=True)
        steps(opt, model, "mlp", torch.float32, (rank, dist.get_world_size()), count=1)

    def pipeline() -> None:
        layer = nn.Linear(5, 6) if rank else nn.Linear(6, 3)
        with OPTIMIZERS["proximal"](layer.parameters(), 50).sample():
            layer(torch.ones(2, layer.in_features)).sum().backward()

    def blocks() -> None:
        """A weight that is cut along its second and third dimension."""
        mesh = init_device_mesh("cpu", (2, 2))
        weight = nn.Parameter(distribute_tensor(torch.ones(2, 4, 4), mesh, [Shard(1), Shard(2)]))
        with OPTIMIZERS["proximal"]([weight], 50).sample():
            weight.square().sum().backward()

    cases = (family, plain, in_backward, pipeline) if dist.get_world_size() < 4 else (blocks,)
    for case in cases:
        try:
            case()
        except (RuntimeError, TypeError, ValueError) as error:
            found[case.__name__] = str(error)
        dist.barrier()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    return everyone


def replaced() -> float:
    """The difference where sharded weights take the place of whole ones in an optimizer that has state.

    That is what accelerate does, which refuses FSDP2 on a CPU.
    """
    model, alone = made("mlp", torch.float64), made("mlp", torch.float64)
    opt = OPTIMIZERS["proximal"](model.parameters(), 50)
    reference = OPTIMIZERS["proximal"](alone.parameters(), 50)
    for each in (opt, reference):
        each.load_state_dict(each.state_dict())
    wrapped, rank, world = spread(model, "mlp", "fsdp")
    opt.param_groups[0]["params"] = list(wrapped.parameters())
    steps(opt, wrapped, "mlp", torch.float64, (rank, world), count=3)
    steps(reference, alone, "mlp", torch.float64, count=3)
    assert len(opt.state) == len(reference.state)
    return difference(opt, reference)


def messages() -> Any:
    """What is sent in a step beyond what FSDP2 sends for AdamW: the calls and the bytes."""
    sent: list[int] = []
    reduce = dist.all_reduce

    def counting(values: Tensor, *args: Any, **named: Any) -> Any:
        sent.append(values.numel() * values.element_size())
        return reduce(values, *args, **named)

    found = {}
    for kind in OPTIMIZERS:
        model = made("language", torch.float32)
        wrapped, rank, world = spread(model, "language", "fsdp")
        more = {} if kind in ("proximal", "psgld") else {"lr": 1e-3}  # no watch for steep losses
        opt = OPTIMIZERS[kind](model.parameters(), 50, compiled=False, **more)
        with large_tensors("generator"):
            steps(opt, wrapped, "language", torch.float32, (rank, world), count=12)
            sent.clear()
            dist.all_reduce = counting
            steps(opt, wrapped, "language", torch.float32, (rank, world), first=12, count=8)
            dist.all_reduce = reduce
        found[kind] = [len(sent) / 8, max(sent)]
    return found


def fitting(folder: str) -> Any:
    """`fit` on whole and on sharded weights, beside one process with the joined batches."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(24, 5, generator=rng, dtype=torch.float64)
    data = TensorDataset(x, x[:, :3] + 0.1 * torch.randn(24, 3, generator=rng, dtype=torch.float64))
    rank, world = dist.get_rank(), dist.get_world_size()
    sampler: Any = DistributedSampler(data, world, rank, shuffle=False)
    shared = DataLoader(data, batch_size=12 // world, sampler=sampler)
    joined = [data[i : i + 12] for i in (0, 12)]
    options = {"epochs": 3, "num_data": 24, "validation": joined}
    alone = fit(made("mlp", torch.float64), joined, "gaussian", **options)
    found = {}
    for how in ("ddp", "fsdp"):
        for times in ("first", "again, from its checkpoint"):
            model = spread(made("mlp", torch.float64), "mlp", how)[0]
            run = fit(model, shared, "gaussian", checkpoint=f"{folder}/{how}.safetensors", **options)
            rows = zip(run.history, alone.history, strict=True)
            names = ("loss", "validation_nll")
            off = [abs(a[name] - b[name]) for a, b in rows for name in names]
            means = zip(run.posterior.mean.values(), alone.posterior.mean.values(), strict=True)
            found[f"{how} {times}"] = max(*off, *(float((whole(a) - b).abs().max()) for a, b in means))
    try:
        fit(made("mlp", torch.float64), DataLoader(data, batch_size=6), "gaussian")
    except ValueError as error:
        found["same batches"] = str(error)
    return found


# -- checkpoints -----------------------------------------------------------------------------------------


def trained(kind: str, how: str, seed: int = 0) -> tuple[nn.Module, BayesianOptimizer, tuple[int, int]]:
    model = made("mlp", torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(seed)
    wrapped, rank, world = (model, 0, 1) if how == "whole" else spread(model, "mlp", how)
    return wrapped, OPTIMIZERS[kind](model.named_parameters(), 50, compiled=False), (rank, world)


def everything(opt: BayesianOptimizer) -> dict[str, Any]:
    """An optimizer's state, whole."""
    found = opt.state_dict()
    state = {k: {n: whole(v).clone() for n, v in row.items()} for k, row in found["state"].items()}
    apart = ("losses", "params", "param_names")
    return {
        "state": state,
        "groups": [{k: v for k, v in g.items() if k not in apart} for g in found["param_groups"]],
    }


def save(folder: str, kinds: list[str], how: str, later: bool = False, large: str | None = None) -> Any:
    """Train, save with torch.distributed.checkpoint, and write what was saved for comparison."""
    with large_tensors(large):
        _save(folder, kinds, how, later)


def _save(folder: str, kinds: list[str], how: str, later: bool) -> None:
    for kind in kinds:
        model, opt, part = trained(kind, how)
        steps(opt, model, "mlp", torch.float32, part, count=5)
        weights, state = get_state_dict(model, opt)
        at = Path(folder) / kind
        if later:
            own = dist.new_group(backend="gloo")  # it sends messages while training goes on
            saving = dcp.async_save({"weights": weights, "state": state}, checkpoint_id=at, process_group=own)
            expected = everything(opt)
            steps(opt, model, "mlp", torch.float32, part, first=5, count=2)
            saving.result()
        else:
            dcp.save({"weights": weights, "state": state}, checkpoint_id=at)
            expected = everything(opt)
        if dist.get_rank() == 0:
            torch.save(expected, Path(folder) / f"{kind}.pt")


def load(folder: str, kinds: list[str], how: str, large: str | None = None) -> Any:
    """Load into a fresh optimizer of another network: whether it is what was saved, bitwise."""
    with large_tensors(large):
        return _load(folder, kinds, how)


def _load(folder: str, kinds: list[str], how: str) -> dict[str, bool]:
    found = {}
    for kind in kinds:
        model, opt, part = trained(kind, how, seed=1)
        weights, state = get_state_dict(model, opt)
        box = {"weights": weights, "state": state}
        dcp.load(box, checkpoint_id=Path(folder) / kind)
        set_state_dict(model, opt, model_state_dict=box["weights"], optim_state_dict=box["state"])
        expected, here = torch.load(Path(folder) / f"{kind}.pt", weights_only=True), everything(opt)
        same = [
            torch.equal(here["state"][k][n], v)
            for k, row in expected["state"].items()
            for n, v in row.items()
        ]
        steps(opt, model, "mlp", torch.float32, part, first=5, count=1)
        found[kind] = all(same) and expected["groups"] == here["groups"]
    return found


def full(kinds: list[str]) -> Any:
    """Give whole state dicts of the first process to fresh optimizers: whether both go on alike, bitwise."""
    first = StateDictOptions(full_state_dict=True, cpu_offload=True)
    giving = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
    found = {}
    for kind in kinds:
        model, opt, part = trained(kind, "fsdp")
        steps(opt, model, "mlp", torch.float32, part, count=3)
        weights, state = get_state_dict(model, opt, options=first)
        again, other, _ = trained(kind, "fsdp", seed=1)
        set_model_state_dict(again, weights, options=giving)
        set_optimizer_state_dict(again, other, state, options=giving)
        for each, module in ((opt, model), (other, again)):
            steps(each, module, "mlp", torch.float32, part, first=3, count=2)
        one, two = everything(opt), everything(other)
        same = [torch.equal(v, two["state"][k][n]) for k, row in one["state"].items() for n, v in row.items()]
        found[kind] = all(same) and one["groups"] == two["groups"]
    return found


def resumed(folder: str, killed_at: int | None, while_saving: bool = False) -> Any:
    """Train 8 steps with a checkpoint after every second, from the last that is complete.

    Arguments:
        killed_at: after so many steps the process of rank 1 is killed: before their checkpoint, or
        while_saving: when it has written its part of it.
    """
    at = Path(folder)
    model, opt, part = trained("proximal", "fsdp")
    done = max((int(p.parent.name) for p in at.glob("*/.metadata")), default=0)
    if done:
        weights, state = get_state_dict(model, opt)
        box = {"weights": weights, "state": state}
        dcp.load(box, checkpoint_id=at / str(done))
        set_state_dict(model, opt, model_state_dict=box["weights"], optim_state_dict=box["state"])
    dist.barrier()  # nobody writes before all have looked
    for step in range(done, 8):
        steps(opt, model, "mlp", torch.float32, part, first=step, count=1)
        if step + 1 == killed_at and part[0] == 1:
            if while_saving:
                dcp.FileSystemWriter.write_data = partialmethod(
                    write_and_die, dcp.FileSystemWriter.write_data
                )
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        if step % 2:
            weights, state = get_state_dict(model, opt)
            dcp.save({"weights": weights, "state": state}, checkpoint_id=at / str(step + 1))
    result = everything(opt)
    if dist.get_rank() == 0:
        torch.save(result, at / "result.pt")
    return done


def write_and_die(writer: Any, write: Callable[..., Any], *given: Any) -> None:
    """Write this process's part of a checkpoint, and do not live to say so."""
    write(writer, *given).wait()
    os.kill(os.getpid(), signal.SIGKILL)


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task
    for task in (
        equality,
        positions,
        predictions,
        low_precision,
        mistakes,
        refused,
        replaced,
        messages,
        fitting,
        save,
        load,
        full,
        resumed,
    )
}


# -- processes -------------------------------------------------------------------------------------------


def launch(
    folder: Path, processes: int, *tasks: tuple[str, dict[str, Any]], killed: bool = False
) -> list[Any]:
    """Run tasks on so many processes; returns what the first of these found in each.

    Arguments:
        killed: one of the processes will be killed; then the others are, and nothing is found.
    """
    folder.mkdir(exist_ok=True)
    meet = folder / f"meet{len(list(folder.glob('meet*')))}"
    (folder / "tasks.json").write_text(json.dumps(tasks))
    command = [sys.executable, str(Path(__file__))]
    tails = [[str(rank), str(processes), str(folder), str(meet)] for rank in range(processes)]
    workers = [
        subprocess.Popen([*command, *tail], stderr=subprocess.DEVNULL if killed else None) for tail in tails
    ]
    end = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < end:
            codes = [worker.poll() for worker in workers]
            if any(codes) or None not in codes:
                break
            time.sleep(0.1)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert killed == any(codes), codes
    return [] if killed else json.loads((folder / "found.json").read_text())


def main() -> None:
    rank, processes, folder, meet = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=processes)
    found = [TASKS[task](**named) for task, named in json.loads((folder / "tasks.json").read_text())]
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
