"""Forward and backward without storage: the shapes run through the network, and every buffer is counted.

Under torch's FakeTensorMode a tensor has a shape, a type and a place, but no memory. A storage counts from
the first operator that returns it until nothing refers to it any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayescore.posteriors.swapped import call_with

__all__ = ["passes"]


def passes(
    model: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None, update_in_backward: bool
) -> int:
    """P of (1): the most that forward and backward hold beside the weights."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        fake = {name: _fake(value) for name, value in own.items()}
        inputs = _inputs(batch)
        meter = _Meter([*fake.values(), *inputs])
        if update_in_backward:
            for value in fake.values():
                if value.requires_grad:
                    value.register_post_accumulate_grad_hook(_forget)
        with meter, _training(model), torch.random.fork_rng(devices=[]):
            outputs = call_with(model, fake, tuple(inputs))
            value = loss(outputs) if loss is not None else _mean(outputs)
            del outputs
            value.backward()
    del mode
    return meter.peak


def _fake(value: Tensor) -> Tensor:
    """A tensor of the same kind without storage, on the CPU where the real one has no place."""
    place = "cpu" if value.device.type == "meta" else value.device
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=place)
    return made.requires_grad_(value.requires_grad)


def _inputs(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [_fake(batch.detach())]
    if isinstance(batch, tuple | list) and batch:
        if all(isinstance(part, Tensor) for part in batch):
            return [_fake(part.detach()) for part in batch]
        if all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in batch):
            return [torch.empty(tuple(batch))]
    raise TypeError(
        f"batch must be a tensor, a tuple of tensors, or a shape such as (16, 3, 224, 224); got {batch!r}"
    )


def _mean(outputs: Any) -> Tensor:
    """A scalar that every output enters."""
    found = [out for out in tree_leaves(outputs) if isinstance(out, Tensor) and out.is_floating_point()]
    if not found:
        raise TypeError(
            "the model returns no floating point tensor; give loss=, from its outputs to a scalar"
        )
    return torch.stack([out.float().mean() for out in found]).sum()


def _forget(parameter: Tensor) -> None:
    parameter.grad = None


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """The module in training mode, and as it was afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class _Meter(TorchDispatchMode):
    """Counts the bytes of storages from the first sight to the end, without those that were there before."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet(t.untyped_storage() for t in known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self._meet(value.untyped_storage())
        return out

    def _meet(self, storage: Any) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._leave, size)

    def _leave(self, size: int) -> None:
        self.now -= size
