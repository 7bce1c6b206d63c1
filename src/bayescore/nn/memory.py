"""How much memory training will take, before anything is allocated.

The network is run forward and backward on tensors without storage, and the optimizer's state is counted on
a small and, for a large network, a large tensor of real weights:
    total = process + weights + state + kept + max(P, gradient + temporaries) + heap                       (1)
where P is the peak of forward and backward (activations, gradients as they arrive, workspace of operators)
and `temporaries` what the update needs in addition to the gradient, in tensors of the size of the largest
parameter. `heap` is memory that the C library's heap cannot return to the system because of fragmentation. If
every buffer has its own pages (MALLOC_MMAP_THRESHOLD_=65536, or a GPU) it is zero, and the rest of (1) was
within 5 % of the peak for ResNet-18, ResNet-50 and ViT-B/16; with glibc's defaults `heap` was 37 to 67 % of P
there.

If `fully_shard` spreads the network over n processes, each holds an n-th of weights, state and gradient, and
    gathered = (weights of no sharded layer) + 2 (weights of the largest sharded layer)                   (2)
for the root, which stays gathered, the layer that runs and the one that is gathered next.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayescore.checks import check_count, unknown_name
from bayescore.optim import ADVI, SGLD, CalibratedScore, PairedBaM, ProximalDescent, ProximalScore
from bayescore.optim.noise import LARGE_NETWORK, LARGE_TENSOR, is_large_network, uses_counter
from bayescore.posteriors.forward import call_with, own_tensors

__all__ = ["MEMORY_METHODS", "MemoryEstimate", "dry_run_peak", "memory_estimate"]

PROBE = 4096  # number of weights of a small tensor for which an optimizer's state is counted
HEAP = 0.4  # share of P, on a CPU: see above
COMPILER = 130_000_000  # bytes of torch's compiler, once it has been imported and used


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of a training step; the parts add up to `total`.

    process: memory of the process without the network (interpreter, libraries); 0 on a GPU.
    weights: parameters and buffers.  state: the optimizer's.  kept: the states that SGLD keeps, at the end.
    gathered: weights that are gathered from other processes (2).
    gradient: the gradient buffer.  activations: what forward and backward hold in addition, at their peak.
    temporaries: what the update needs beyond that.  heap: memory lost to fragmentation; 0 on a GPU.
    """

    method: str
    process: int
    weights: int
    state: int
    kept: int
    gathered: int
    gradient: int
    activations: int
    temporaries: int
    heap: int

    @property
    def total(self) -> int:
        """The peak."""
        return sum(getattr(self, field.name) for field in fields(self) if field.name != "method")

    def __str__(self) -> str:
        parts = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "method"]
        lines = [f"  {name:<12}{_size(value):>10}" for name, value in parts if value]
        return "\n".join([f"{self.method}: about {_size(self.total)} at the peak of a training step", *lines])


@dataclass(frozen=True)
class _Optimizer:
    """How to make an optimizer, its draws per step (0: not Bayesian), and the temporary memory of `step()`.

    largest: in tensors of the size of the largest parameter; whole: in copies of all weights.
    """

    make: Callable[..., Any]
    draws: int = 0
    largest: float = 0.0
    whole: float = 0.0


def _torch(name: str, **options: Any) -> Callable[..., Any]:
    return lambda params, **more: getattr(torch.optim, name)(params, **{**options, **more})


def _ours(kind: type[Any], **options: Any) -> Callable[..., Any]:
    return lambda params, **more: kind(params, num_data=1000, **{**options, **more})


_OPTIMIZERS = {
    "sgd": _Optimizer(_torch("SGD", lr=1e-3)),
    "adamw": _Optimizer(_torch("AdamW"), largest=2),
    "adamw-fused": _Optimizer(_torch("AdamW", fused=True)),
    "proximal": _Optimizer(_ours(ProximalScore), 1),
    "calibrated": _Optimizer(_ours(CalibratedScore), 1, largest=2),
    "descent": _Optimizer(_ours(ProximalDescent), 1, largest=2),
    "advi": _Optimizer(_ours(ADVI), 1, largest=2),
    "bam": _Optimizer(_ours(PairedBaM), 2, largest=2, whole=3),  # its sums over draws
    "sgld": _Optimizer(_ours(SGLD), 1, largest=2),
}
MEMORY_METHODS = tuple(_OPTIMIZERS)


def memory_estimate(
    model: nn.Module,
    method: str,
    batch: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    update_in_backward: bool = False,
    shards: int = 1,
    layers: Iterable[nn.Module] = (),
    **options: Any,
) -> MemoryEstimate:
    """Forecast the peak memory of training `model`.

    Arguments:
        model: any module, also one made under `torch.device("meta")`; it is not run and not changed.
        method: "sgd", "adamw", "adamw-fused", "proximal", "calibrated", "descent", "advi", "bam" or "sgld".
        batch: the module's inputs: a tensor, a tuple of tensors (on any device; only their shapes are read),
            or the shape of one float input, such as (16, 3, 224, 224).
        loss: from the outputs to a scalar; by default a mean of all outputs.
        update_in_backward: the optimizer updates as gradients arrive, so that there is no gradient buffer.
        shards: processes over which `fully_shard` spreads the network; the estimate is for one of them, and
            `batch` is its own.
        layers: the modules that are sharded one by one, before the whole model is; without any, the whole
            network is gathered at once.
        options: further arguments of the optimizer that change its state, such as `momentum` or `keep`.

    >>> print(memory_estimate(nn.Linear(1000, 1000), "adamw", (64, 1000)).state)
    8008000
    """
    if method not in _OPTIMIZERS:
        raise unknown_name("method", method, _OPTIMIZERS)
    how = _OPTIMIZERS[method]
    check_count("shards", shards)
    layers = list(layers)
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the model has no parameter that requires a gradient; there is nothing to train")
    held = {id(t): t for t in [*model.parameters(), *model.buffers()]}.values()
    weights = sum(map(_bytes, held))
    if update_in_backward and how.draws:
        options = {**options, "update_in_backward": True}  # which an optimizer may refuse, by name
    full = sum(p.numel() * max(4, p.element_size()) for p in trained)  # ours keep at least float32
    width = full if how.draws else sum(map(_bytes, trained))
    sizes = [p.numel() for p in trained]
    large = 0.0
    if is_large_network(sum(sizes)):
        large = sum(size for size in sizes if size >= LARGE_TENSOR) / sum(sizes)
    per_weight = kept = 0.0
    for probe, share in ((LARGE_NETWORK, large), (PROBE, 1 - large)):
        if share:
            numbers, states = _state(how, options, probe)
            per_weight, kept = per_weight + share * numbers, kept + share * states
    gradient = 0 if update_in_backward else sum(map(_bytes, trained))
    peak = dry_run_peak(model, batch, loss, update_in_backward)
    largest = max(p.numel() * max(4, p.element_size()) for p in trained)
    gathered = 0
    if shards > 1:
        sizes_of = [sum(map(_bytes, layer.parameters())) for layer in layers]
        inside = {id(p) for layer in layers for p in layer.parameters()}
        rest = sum(_bytes(p) for p in model.parameters() if id(p) not in inside)
        gathered = rest + 2 * max(sizes_of, default=0)
        peak = max(0, peak - gradient) + gradient // shards + max(sizes_of, default=rest)
        largest, width, gradient = largest // shards, width // shards, gradient // shards
    update = gradient + int(how.largest * largest + how.whole * width)
    on_cpu = trained[0].device.type in ("cpu", "meta")
    compiles = bool(how.draws) and uses_counter(sum(sizes), max(sizes))
    return MemoryEstimate(
        method=method + (" with update_in_backward" if update_in_backward else ""),
        process=_process(held) + COMPILER * compiles if on_cpu else 0,
        weights=weights // shards,
        gathered=gathered,
        state=int(per_weight * width),
        kept=int(kept * width),
        gradient=gradient,
        activations=max(0, peak - gradient),
        temporaries=max(0, update - max(peak, gradient)),
        heap=int(HEAP * peak) if on_cpu else 0,
    )


def _state(how: _Optimizer, options: dict[str, Any], size: int) -> tuple[float, float]:
    """Numbers per weight: of optimizer state, counted on a tensor, and of states kept at the end."""
    weight = nn.Parameter(torch.zeros(size))
    optimizer = how.make([weight], **(options | {"compiled": False} if how.draws else options))
    most = 0
    for _ in range(max(1, how.draws)):
        if how.draws:
            with optimizer.sample():
                weight.sum().backward()
                most = max(most, _count(optimizer, size))
        else:
            weight.sum().backward()
    optimizer.step()
    most = max(most, _count(optimizer, size))
    kept = float(optimizer.param_groups[0].get("keep", 0))  # SGLD's room for them is among its state
    return most / size - kept, kept


def _count(optimizer: Any, size: int) -> int:
    """Number of entries of all state tensors with at least `size` of them, however nested.

    A state tensor in the memory of the parameter is not counted: the mean of a large tensor is there.
    """
    pairs = ((p, value) for p, state in optimizer.state.items() for value in tree_leaves(dict(state)))
    apart = [t for p, t in pairs if isinstance(t, Tensor) and t.data_ptr() != p.data_ptr()]
    return sum(t.numel() for t in apart if t.numel() >= size)


def _process(held: Any) -> int:
    """The resident memory of this process without the network."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
    return max(0, resident - sum(_bytes(t) for t in held if t.device.type == "cpu"))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _size(value: int) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.1f} MB"


# -- forward and backward without storage ------------------------------------------------------------------


def dry_run_peak(
    model: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None, update_in_backward: bool
) -> int:
    """P of (1): the bytes that forward and backward hold in addition to the weights, at their peak.

    In torch's FakeTensorMode a tensor has a shape, a type and a device, but no memory. A storage is counted
    from the first operator that returns it until nothing refers to it any more.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: _fake(value) for name, value in own_tensors(model).items()}
        inputs = _inputs(batch)
        meter = _Meter([*fake.values(), *inputs])
        if update_in_backward:
            for value in fake.values():
                if value.requires_grad:
                    value.register_post_accumulate_grad_hook(_drop_gradient)
        with meter, _in_train_mode(model), torch.random.fork_rng(devices=[]):
            outputs = call_with(model, fake, tuple(inputs))
            value = loss(outputs) if loss is not None else _mean(outputs)
            del outputs
            value.backward()
    del mode
    return meter.peak


def _fake(value: Tensor) -> Tensor:
    """A tensor like `value` without storage; on the CPU if `value` is on the meta device."""
    device = "cpu" if value.device.type == "meta" else value.device
    fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return fake.requires_grad_(value.requires_grad)


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
    """A scalar that depends on every output."""
    found = [out for out in tree_leaves(outputs) if isinstance(out, Tensor) and out.is_floating_point()]
    if not found:
        raise TypeError(
            "the model returns no floating point tensor; give loss=, from its outputs to a scalar"
        )
    return torch.stack([out.float().mean() for out in found]).sum()


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


@contextmanager
def _in_train_mode(model: nn.Module) -> Iterator[None]:
    """The module in train mode, for the length of the block."""
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class _Meter(TorchDispatchMode):
    """Counts the bytes of storages while they exist, except for those of the tensors `known`."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet(t.untyped_storage() for t in known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self._add(value.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.now -= size
