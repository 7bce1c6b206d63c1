"""Tensors of which this process holds a part: the DTensors of `fully_shard` and of tensor parallelism.

All arithmetic of the library is done on the parts, which are plain tensors. What must not depend on how many
processes hold a tensor, its noise, is a function of the position in the whole tensor. A part is a block
    whole[o_1 : o_1 + n_1, ..., o_d : o_d + n_d]                                                          (1)
whose elements have, in the order of memory, the positions
    start + (l // inner) outer + l % inner,        l = 0, 1, ...                                          (2)
in the whole tensor, if it is cut along one dimension, or along the first and one other.

FSDP2 gathers the weights of a module before its forward pass, and some modules stay gathered after it (the
root, by default). These do not notice that their parts have been written since. `reshard` makes them.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "Part",
    "computing_device",
    "gathered",
    "is_sharded",
    "local",
    "local_gradient",
    "normal_like",
    "part_like",
    "part_of",
    "reshard",
    "sharded_like",
    "sharded_modules",
    "whole",
]


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    return _is_sharded(type(tensor))


@functools.cache
def _is_sharded(kind: type) -> bool:
    return hasattr(kind, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory; of a plain tensor, itself."""
    return tensor._local_tensor if _is_sharded(type(tensor)) else tensor  # type: ignore[attr-defined]


def local_gradient(weight: Tensor) -> Tensor | None:
    """The part of a weight's gradient that belongs to the part of the weight."""
    g: Any = weight.grad
    if g is None or not is_sharded(g):
        return g
    if g.placements != weight.placements:  # type: ignore[attr-defined]
        g = g.redistribute(placements=weight.placements)  # type: ignore[attr-defined]
    part = g._local_tensor
    return part.wait() if hasattr(part, "wait") else part  # of a communication that is under way


class Part(NamedTuple):
    """Where the part of this process lies in a whole tensor: (1) and (2)."""

    shape: tuple[int, ...]  # of the whole
    offset: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int
    inner: int
    outer: int
    counted: bool  # whether this process counts the part, of those that hold the same

    @property
    def contiguous(self) -> bool:
        """Whether the part's positions are consecutive."""
        return self.inner == self.outer or not math.prod(self.sizes)

    def cut(self, value: Tensor, leading: int = 0) -> Tensor:
        """The part of a whole tensor, a view; `leading` dimensions come before the parameter's own."""
        for dim, (offset, size) in enumerate(zip(self.offset, self.sizes, strict=True), leading):
            value = value.narrow(dim, min(offset, value.shape[dim] - size), size)
        return value


def part_of(weight: Tensor) -> Part | None:
    """Where this process's part of a weight lies; None for a plain tensor."""
    if not is_sharded(weight):
        return None
    utils = sys.modules["torch.distributed.tensor._utils"]
    placements, shape = weight.placements, tuple(weight.shape)  # type: ignore[attr-defined]
    mesh = weight.device_mesh  # type: ignore[attr-defined]
    sizes, offset = utils.compute_local_shape_and_global_offset(shape, mesh, placements)
    sizes, offset = tuple(int(n) for n in sizes), tuple(int(n) for n in offset)
    cut = [dim for dim, (n, size) in enumerate(zip(shape, sizes, strict=True)) if n != size]
    if sizes != tuple(local(weight).shape) or any(p.is_partial() for p in placements):
        raise TypeError(
            f"a parameter of the shape {shape} is placed as {placements}, and this process holds "
            f"{tuple(local(weight).shape)} of it; parameters must be sharded or replicated"
        )
    if math.prod(sizes) and len([dim for dim in cut if dim]) > 1:
        raise TypeError(
            f"a parameter of the shape {shape} is cut along dimensions {cut}; cut it along one of them, or "
            "along the first and one other"
        )
    at = max(cut, default=0)
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    start = sum(o * stride for o, stride in zip(offset, strides, strict=True))
    inner, outer = (math.prod(sizes[at:]), math.prod(shape[at:])) if at else (1, 1)
    return Part(shape, offset, sizes, start, inner, outer, _is_counted(mesh, placements))


def _is_counted(mesh: Any, placements: Sequence[Any]) -> bool:
    """Whether the process of rank 0 has this place along the dimensions in which parts are the same."""
    first, here = (mesh.mesh == 0).nonzero(), mesh.get_coordinate()
    if not len(first):
        return False
    triples = zip(placements, first[0].tolist(), here, strict=True)
    return all(a == b for placement, a, b in triples if not hasattr(placement, "dim"))


def part_like(value: Tensor, weight: Tensor, leading: int = 0) -> Tensor:
    """The part of a value that belongs to this process's part of a weight.

    Arguments:
        value: a whole tensor, or one that is sharded, perhaps otherwise than the weight.
        leading: dimensions of the value that come before the weight's own.
    """
    if not is_sharded(weight):
        return whole(value)
    if is_sharded(value):
        placements = _shifted(weight, leading)
        if value.placements != placements:  # type: ignore[attr-defined]
            value = value.redistribute(weight.device_mesh, placements)  # type: ignore[attr-defined]
        return local(value)
    found = part_of(weight)
    assert found is not None
    return found.cut(value, leading)


def sharded_like(part: Tensor, weight: Tensor, leading: int = 0) -> Tensor:
    """A part as a tensor that is sharded like a weight, in the same memory; for a plain weight, the part.

    Arguments:
        leading: dimensions of the part that come before the weight's own; -1: it lacks the weight's first.
    """
    if not is_sharded(weight):
        return part
    shape = torch.Size((*part.shape[: max(leading, 0)], *weight.shape[max(-leading, 0) :]))
    stride = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    found: Tensor = type(weight).from_local(  # type: ignore[attr-defined]
        part,
        weight.device_mesh,  # type: ignore[attr-defined]
        _shifted(weight, leading),
        run_check=False,
        shape=shape,
        stride=tuple(stride),
    )
    return found


def _shifted(weight: Any, leading: int) -> tuple[Any, ...]:
    """The placements of a tensor that is sharded like a weight, with more dimensions in front."""
    if not leading:
        return tuple(weight.placements)
    return tuple(_moved(p, leading) for p in weight.placements)


def _moved(placement: Any, leading: int) -> Any:
    if not hasattr(placement, "dim"):
        return placement
    more = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    return type(placement)(placement.dim + leading, **more)


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all processes if it is sharded: every process has to ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The whole tensors in the memory of the process of rank 0; None on the others, which have to ask too."""
    first = not any(map(is_sharded, tensors.values())) or torch.distributed.get_rank() == 0
    found = {}
    for name, value in tensors.items():
        full = whole(value.detach())
        if first:
            found[name] = full.cpu() if is_sharded(value) else full
    return found if first else None


def normal_like(tensor: Tensor, rng: torch.Generator) -> Tensor:
    """This process's part of standard normal numbers for a tensor, the same as if it were whole.

    The numbers of the whole tensor are made and the others dropped: torch's generators cannot be set to a
    position in the middle.
    """
    part = part_of(tensor)
    if part is None:
        return torch.empty_like(tensor).normal_(generator=rng)
    return part.cut(local(tensor).new_empty(part.shape).normal_(generator=rng))


def computing_device(weight: Tensor) -> torch.device:
    """Where a module computes with a weight: the parts of a sharded one may wait in the memory of the CPU."""
    if not is_sharded(weight):
        return weight.device
    kind = weight.device_mesh.device_type  # type: ignore[attr-defined]
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def sharded_modules(modules: Iterable[nn.Module]) -> list[Any]:
    """Those modules to which `fully_shard` was applied."""
    api = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(api, "FSDPModule", None)
    return [] if kind is None else [module for module in modules if isinstance(module, kind)]


def reshard(model: nn.Module) -> None:
    """Let every FSDP2 module hold its part only, so that its next forward pass gathers the weights anew."""
    for module in sharded_modules(model.modules()):
        module.reshard()
