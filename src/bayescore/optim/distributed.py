"""Where the weights are, and what the processes of a distributed run must agree on.

**Whole weights** (DistributedDataParallel). Every process holds all weights, draws the same noise and makes
the same update from the same mean gradient. Nothing of the posterior is ever sent; it stays equal because it
starts equal. What makes it differ is therefore refused, compared once before the first draw: another seed,
other options, other parameters or another number of updates.

**Sharded weights** (`fully_shard`, tensor parallel: DTensors). Every process draws and updates its own parts;
noise belongs to positions in whole tensors (posteriors/shards.py). One small message is sent in a step, a sum
over all processes, before the update: whether any part of the gradient is not finite, one number; the totals
of a rule's terms, a few numbers per tensor; and now and then whether the grids of large tensors suit, two
numbers per tensor (optim/recovery.py). The terms are therefore computed in a pass of their own, which writes
nothing: an update that some process must leave out cannot be taken back by the others. A second message is
sent where largest values are wanted (ADVI, ProximalDescent; a tensor that outgrew its grid), by the watch for
steep losses (optim/steep.py), and when the state is checked, in the first ten updates and every hundredth. If
several processes hold the same part, one of them is counted. Before the first draw the sizes of the counted
parts are added up: they must give the whole.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.optim.losses import LOSSES
from bayescore.optim.recovery import Look
from bayescore.posteriors.shards import computing_device, is_sharded, local, part_of

__all__ = ["Processes", "check_here", "check_processes_agree", "check_whole", "data_parallel_size", "norms"]

#: what the processes compare, and how a user makes it equal
COMPARED = {
    "parameters": "give every process the same network (pipelines of different layers are not supported)",
    "seeds": "pass the same seed= to the optimizer of every process",
    "options": "give every process the same options, and make the optimizer after DistributedDataParallel",
    "numbers of updates": "load the same checkpoint on every process",
}


def check_here(weights: Iterable[Tensor]) -> None:
    """Raise unless this process holds the weights, or its parts of them as DTensors."""
    with_deepspeed = "deepspeed" in sys.modules
    for weight in weights:
        if hasattr(weight, "_fsdp_flattened"):  # of a flat parameter, and of the views into it
            what = "a part of FullyShardedDataParallel (FSDP1)"
        elif hasattr(weight, "ds_id"):  # stage 3 empties the weights between their uses
            what = "partitioned by DeepSpeed (ZeRO stage 3)"
        elif with_deepspeed and not isinstance(weight, nn.Parameter):
            # stages 1 and 2 put one flat float32 copy of all weights in the place of the module's
            what = "no weight of a module but a flat partition (DeepSpeed, ZeRO stage 1 or 2)"
        elif weight.is_meta:
            raise ValueError(
                f"a parameter of the shape {tuple(weight.shape)} is on the meta device and has no numbers; "
                "make the weights first (model.to_empty(device=...), then load or initialise them)"
            )
        else:
            continue
        raise TypeError(
            "weights are whole (DistributedDataParallel) or DTensors (fully_shard, tensor parallel), and a "
            f"parameter of the shape {tuple(weight.shape)} is {what}; use one of these"
        )


def check_whole(weights: Sequence[Tensor], who: str) -> None:
    """Raise unless this process holds the whole weights, which `who` needs."""
    check_here(weights)
    if any(map(is_sharded, weights)):
        raise TypeError(
            f"{who} whole weights, and a parameter is sharded; use DistributedDataParallel, or one of the "
            "Bayesian methods"
        )


class Processes:
    """The processes that hold a sharded network together; None takes its place if no weight is sharded.

    Arguments:
        weights: all parameters.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        #: where messages are made
        self.device = computing_device(next(weight for weight in weights if is_sharded(weight)))

    @classmethod
    def of(cls, weights: Iterable[Tensor]) -> Processes | None:
        """The processes, if any weight is sharded."""
        found = list(weights)
        return cls(found) if any(map(is_sharded, found)) else None

    def sum(self, values: Tensor) -> Tensor:
        """The sums of all processes' values, in float64."""
        return self._reduced(values, torch.distributed.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        """The largest of all processes' values, in float64."""
        return self._reduced(values, torch.distributed.ReduceOp.MAX)

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        sent = values.detach().to(self.device, torch.float64, copy=True)
        torch.distributed.all_reduce(sent, how)
        return sent.to(values.device)

    def any(self, here: bool) -> bool:
        """Whether it is so on any process."""
        return bool(self.largest(torch.tensor([float(here)])))

    def agree(
        self,
        wrong: bool,
        rows: Sequence[tuple[int, bool, Tensor]],
        largest: Sequence[int],
        looks: Sequence[Look],
    ) -> tuple[bool, list[Tensor], list[Look]]:
        """What the processes must know of each other in a step, in one message.

        Arguments:
            wrong: whether a gradient is not finite here; returned is whether it is so on any process.
            rows: for every tensor its number, whether this process's part of it is counted, and the totals of
                a rule's terms over the part; returned are the totals over whole tensors, in the same order.
                The processes may have them in another order.
            largest: which of the terms are largest values, not sums: these take a second message.
            looks: at the grids of this process's parts; returned are those at whole tensors. If a tensor has
                outgrown its grid, there is a second message too.
        """
        order = sorted(range(len(rows)), key=lambda i: rows[i][0])
        device = rows[0][2].device if rows else self.device
        table = torch.empty(0, 0, dtype=torch.float64, device=device)
        if rows:
            table = torch.stack([rows[i][2].to(device, torch.float64) for i in order])
        counted = torch.tensor([rows[i][1] for i in order], dtype=torch.bool, device=device)
        flags = [float(wrong), *(float(flag) for look in looks for flag in (look.outgrown, look.needed))]
        first = torch.tensor(flags, dtype=torch.float64, device=device)
        found = self.sum(torch.cat([first, torch.where(counted[:, None], table, 0.0).flatten()]))
        wrong, *seen = found[: len(flags)].gt(0).tolist()
        totals = found[len(flags) :].view_as(table)
        pairs = zip(seen[::2], seen[1::2], strict=True)
        agreed = [look._replace(outgrown=a, needed=b) for look, (a, b) in zip(looks, pairs, strict=True)]
        levels = [look.level for look in looks] if any(look.outgrown for look in agreed) else []
        columns = list(largest) if rows else []
        if levels or columns:
            here = torch.tensor(levels, dtype=torch.float64, device=device)
            found = self.largest(torch.cat([here, table[:, columns].flatten()]))
            levels, extremes = found[: len(levels)].tolist(), found[len(levels) :]
            totals[:, columns] = extremes.view(len(table), len(columns))
            if levels:
                agreed = [look._replace(level=level) for look, level in zip(agreed, levels, strict=True)]
        places = {i: row for row, i in enumerate(order)}
        return wrong, [totals[places[i]].to(rows[i][2]) for i in range(len(rows))], agreed

    @contextmanager
    def raising_together(self) -> Iterator[None]:
        """If the block raises on any process, it raises on all: none waits for an answer in vain."""
        try:
            yield
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            self.any(True)
            raise
        if self.any(False):
            raise RuntimeError("another process of this run has failed here; its message says why")

    def check_parts(self, weights: Sequence[Tensor]) -> None:
        """Raise unless the counted parts of all processes add up to the whole weights."""
        sizes = [float(local(w).numel()) if is_counted(w) else 0.0 for w in weights]
        found = self.sum(torch.tensor(sizes)).tolist()
        for weight, size in zip(weights, found, strict=True):
            if size != weight.numel():
                raise TypeError(
                    f"the parts of a parameter of the shape {tuple(weight.shape)} have {size:.0f} weights in "
                    f"all, and not {weight.numel()}; shard every parameter over a device mesh that contains "
                    "the process of rank 0, and train on all processes of the default group"
                )


def is_counted(weight: Tensor) -> bool:
    """Whether this process's part of a weight is the one that is counted, of those that are the same."""
    part = part_of(weight)
    return torch.distributed.get_rank() == 0 if part is None else part.counted


def norms(weights: Sequence[Tensor], parts: Sequence[Tensor] | None = None) -> list[float]:
    """The norm of each of the whole weights, or of other tensors of which these are the parts."""
    here = [local(w) for w in weights] if parts is None else list(parts)
    wide = [torch.promote_types(part.dtype, torch.float32) for part in here]
    pairs = zip(here, wide, strict=True)
    found = [float(torch.linalg.vector_norm(part, dtype=kind)) for part, kind in pairs]
    processes = Processes.of(weights)
    if processes is None:
        return found
    squares = [norm**2 if is_counted(w) else 0.0 for w, norm in zip(weights, found, strict=True)]
    return [math.sqrt(total) for total in processes.sum(torch.tensor(squares, dtype=torch.float64)).tolist()]


def check_processes_agree(groups: list[dict[str, Any]]) -> None:
    """Raise on every process of a distributed run unless all have the same parameters, seed and options."""
    if not _is_running() or torch.distributed.get_world_size() < 2:
        return
    weights = [p for group in groups for p in group["params"]]
    apart = ("seed", "step", "updates", "params", "param_names", "prior_mean", *LOSSES)
    shapes = [(tuple(p.shape), p.dtype, p.requires_grad) for p in weights]
    options = [{name: v for name, v in sorted(group.items()) if name not in apart} for group in groups]
    updates = [(g["step"], g["updates"]) for g in groups]
    rows = (shapes, [g["seed"] for g in groups], options, updates)
    processes = Processes.of(weights)
    device = weights[0].device if processes is None else processes.device
    here = torch.tensor([_checksum(row) for row in rows], device=device)
    found = [torch.empty_like(here) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, here)
    equal = (torch.stack(found) == here).all(0).tolist()
    for (what, remedy), same in zip(COMPARED.items(), equal, strict=True):
        if not same:
            raise ValueError(
                f"the processes of this distributed run have different {what}, and their posteriors would "
                f"drift apart; {remedy}"
            )
    if processes is not None:
        processes.check_parts(weights)


def data_parallel_size(weights: Iterable[Tensor]) -> int | None:
    """The number of processes that see different data; None if the weights do not tell."""
    if not _is_running():
        return 1
    meshes = (weight.device_mesh for weight in weights if is_sharded(weight))  # type: ignore[attr-defined]
    flat = all(mesh.ndim == 1 for mesh in meshes)
    return torch.distributed.get_world_size() if flat else None


def _is_running() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _checksum(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "big", signed=True)
