"""How much memory training will take, before anything is allocated.

The network is run forward and backward on tensors without storage (nn/dry_run.py), and the optimizer's state
is counted on a few thousand real weights:
    total = process + weights + state + kept + max(P, gradient + temporaries) + heap                       (1)
with P the peak of both passes (activations, gradients as they arrive, and what the operators need on the way)
and `temporaries` what the update holds beside the gradient, in tensors of the size of the largest parameter.
`heap` is what a C library's heap cannot give back between buffers that come and go; where every buffer has
pages of its own (MALLOC_MMAP_THRESHOLD_=65536, or a GPU) it is nil, and the rest of (1) was within 5 % of the
peak for ResNet-18, ResNet-50 and ViT-B/16. On glibc with its defaults it was 37 to 67 % of P there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayescore.checks import unknown_name
from bayescore.nn.dry_run import passes

__all__ = ["MEMORY_METHODS", "MemoryEstimate", "memory_estimate"]

TOY = 4096  # weights on which an optimizer's state is counted
HEAP = 0.4  # share of P, on a CPU: see above
COMPILER = 130_000_000  # bytes: torch's compiler, once it has been imported and used


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of a training step; the parts add up to `total`.

    process: what the process holds beside the network (interpreter, libraries); 0 on a GPU.
    weights: parameters and buffers.  state: the optimizer's.  kept: states that SGLD keeps in the end.
    gradient: the gradient buffer.  activations: what both passes hold beside the gradient at their peak.
    temporaries: what the update needs beyond that.  heap: what the heap cannot give back; 0 on a GPU.
    """

    method: str
    process: int
    weights: int
    state: int
    kept: int
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
class _Rule:
    """How to make an optimizer, the draws of a step, and what it holds inside `step()` alone.

    largest: in tensors of the size of the largest parameter; whole: in networks.
    """

    make: Callable[..., Any]
    draws: int = 0
    largest: float = 0.0
    whole: float = 0.0


def _torch(name: str, **options: Any) -> Callable[..., Any]:
    return lambda params, **more: getattr(torch.optim, name)(params, **{**options, **more})


def _ours(name: str, **options: Any) -> Callable[..., Any]:
    def make(params: Any, **more: Any) -> Any:
        from bayescore import optim  # it imports this package

        return getattr(optim, name)(params, num_data=1000, **{**options, **more})

    return make


_RULES = {
    "sgd": _Rule(_torch("SGD", lr=1e-3)),
    "adamw": _Rule(_torch("AdamW"), largest=2),
    "adamw-fused": _Rule(_torch("AdamW", fused=True)),
    "proximal": _Rule(_ours("ProximalScore", solver="exact"), 1, largest=2),
    "proximal-gradient": _Rule(_ours("ProximalScore", solver="gradient"), 1, largest=2),
    "advi": _Rule(_ours("ADVI"), 1, largest=2),
    "bam": _Rule(_ours("BaM"), 2, largest=2, whole=3),  # sums over the last draw
    "sgld": _Rule(_ours("SGLD"), 1, largest=2),
}
MEMORY_METHODS = tuple(_RULES)


def memory_estimate(
    model: nn.Module,
    method: str,
    batch: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    update_in_backward: bool = False,
    **options: Any,
) -> MemoryEstimate:
    """Forecast the peak memory of training `model`.

    Arguments:
        model: any module, also one made under `torch.device("meta")`; it is not run and not changed.
        method: "sgd", "adamw", "adamw-fused", "proximal", "proximal-gradient", "advi", "bam" or "sgld".
        batch: the module's inputs: a tensor, a tuple of tensors (on any device; only their shapes are read),
            or the shape of one float input, such as (16, 3, 224, 224).
        loss: the outputs to a scalar; a mean of all outputs by default.
        update_in_backward: the optimizer updates as gradients arrive, so that there is no gradient buffer.
        options: further arguments of the optimizer that change its state, such as `momentum` or `keep`.

    >>> print(memory_estimate(nn.Linear(1000, 1000), "adamw", (64, 1000)).state)
    8008000
    """
    if method not in _RULES:
        raise unknown_name("method", method, _RULES)
    rule = _RULES[method]
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the model has no parameter that requires a gradient; there is nothing to train")
    held = {id(t): t for t in [*model.parameters(), *model.buffers()]}.values()
    weights = sum(map(_bytes, held))
    if update_in_backward and rule.draws:
        options = {**options, "update_in_backward": True}  # which an optimizer may refuse, by name
    per_weight, kept = _state(rule, options)
    full = sum(p.numel() * max(4, p.element_size()) for p in trained)  # ours keep at least float32
    width = full if rule.draws else sum(map(_bytes, trained))
    gradient = 0 if update_in_backward else sum(map(_bytes, trained))
    both = passes(model, batch, loss, update_in_backward)
    largest = max(p.numel() * max(4, p.element_size()) for p in trained)
    update = gradient + int(rule.largest * largest + rule.whole * width)
    on_cpu = trained[0].device.type in ("cpu", "meta")
    from bayescore.optim.noise import is_hashed  # it imports this package

    sizes = [p.numel() for p in trained]
    compiles = bool(rule.draws) and is_hashed(sum(sizes), max(sizes))
    return MemoryEstimate(
        method=method + (" with update_in_backward" if update_in_backward else ""),
        process=_process(held) + COMPILER * compiles if on_cpu else 0,
        weights=weights,
        state=int(per_weight * width),
        kept=int(kept * width),
        gradient=gradient,
        activations=max(0, both - gradient),
        temporaries=max(0, update - max(both, gradient)),
        heap=int(HEAP * both) if on_cpu else 0,
    )


def _state(rule: _Rule, options: dict[str, Any]) -> tuple[float, float]:
    """Numbers of optimizer state per weight, counted on a small tensor; and those of states kept later."""
    weight = nn.Parameter(torch.zeros(TOY))
    optimizer = rule.make([weight], **options)
    most = 0
    for _ in range(max(1, rule.draws)):
        if rule.draws:
            with optimizer.sample():
                weight.sum().backward()
                most = max(most, _count(optimizer))
        else:
            weight.sum().backward()
    optimizer.step()
    most = max(most, _count(optimizer))
    return most / TOY, float(optimizer.param_groups[0].get("keep", 0))


def _count(optimizer: Any) -> int:
    """Numbers in tensors of a parameter's size, or a multiple of it, whatever holds them."""
    state = optimizer.state.values()
    return sum(t.numel() for t in tree_leaves([dict(s) for s in state]) if _is_large(t))


def _is_large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() >= TOY


def _process(held: Any) -> int:
    """What this process holds beside the network."""
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
