"""Gradients: whether they are finite, scaled by a GradScaler, made inside the block, and already used.

With `update_in_backward=True` every large tensor (optim/engine.py) is updated by a hook that autograd calls
when the tensor's gradient is complete, which is after its last use in the backward pass; `step()` updates the
small tensors and counts. Afterwards `.grad` is a `UsedGradient`, which has no memory and raises an error if
code that needs all gradients at once reads it: clipping by the global norm, a GradScaler, a second backward
call. A gradient that is not finite leaves its tensor unchanged.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bayescore.optim.engine import Bucket
from bayescore.posteriors.shards import local

__all__ = [
    "LARGEST",
    "UsedGradient",
    "backward_calls",
    "check_mean_loss",
    "check_update_in_backward",
    "finite",
    "gradient_scale",
    "gradient_version",
    "is_used",
    "updating_in_backward",
    "version",
    "warn_foreign",
]

LARGEST = 1e18  # the square of a larger number may overflow in float32
#: what a used gradient still answers
ALLOWED = {"__get__", "detach", "is_floating_point"}
SUMMED = 2  # torch's number for reduction="sum"
FOREIGN = (
    "gradients that were made outside sample() are thrown away: they do not belong to the weights that are "
    "drawn; make every backward call of a step inside the block, several of them with accumulate="
)


def finite(parts: Sequence[Tensor]) -> bool:
    """Whether every number and its square are finite.

    It is enough to look at the smallest and the largest number of a tensor, which are NaN if any number is.
    That costs a tenth of looking at every number.
    """
    extremes: dict[Any, list[Tensor]] = {}
    for part in parts:
        if part.numel():
            extremes.setdefault((part.dtype, part.device), []).extend(part.aminmax())
    rows = (_as_numbers(found) for found in extremes.values())
    return all(abs(x) < LARGEST for row in rows for x in row)


def _as_numbers(tensors: Sequence[Tensor]) -> list[float]:
    """Tensors of one number each; on a GPU they are waited for once."""
    return [float(x) for x in tensors] if tensors[0].is_cpu else torch.stack(tuple(tensors)).tolist()


def gradient_scale(optimizer: torch.optim.Optimizer, draws: int) -> float | None:
    """The factor by which a GradScaler scaled the gradients; None if it found them not finite."""
    if not hasattr(optimizer, "found_inf"):
        return 1.0
    if bool(optimizer.found_inf):
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None and draws > 1:
        raise RuntimeError(
            "GradScaler.unscale_ reaches the last of several draws only; leave it out, or make one draw"
        )
    return 1.0 if scale is None else float(scale)


@contextmanager
def backward_calls(weights: Iterable[Tensor]) -> Iterator[Counter[int]]:
    """Count how often a gradient arrives at each of the weights, by their numbers."""
    calls: Counter[int] = Counter()

    def counting(number: int) -> Any:
        return lambda _: calls.update((number,))

    hooks = [w.register_post_accumulate_grad_hook(counting(i)) for i, w in enumerate(weights)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def warn_foreign(weights: Iterable[Tensor], used: Mapping[Tensor, tuple[int, int]]) -> None:
    """Warn if a weight has a gradient other than the one that the last step used."""
    if any(w.grad is not None and used.get(w) != gradient_version(w.grad) for w in weights):
        warnings.warn(FOREIGN, RuntimeWarning, stacklevel=4)


def check_mean_loss(loss: Any) -> None:
    """Refuse a loss that torch made with reduction="sum"."""
    made_by = loss.grad_fn if isinstance(loss, torch.Tensor) else None
    if getattr(made_by, "_saved_reduction", None) == SUMMED:
        raise ValueError(
            'the loss is a sum over the batch (reduction="sum"); return the mean instead: the number of data '
            "enters through num_data"
        )


def version(p: Tensor) -> tuple[int, int]:
    """A pair that changes when a tensor is written in place or moved; a write into `.data` is not noticed."""
    part = local(p)
    return part._version, part.data_ptr()


def gradient_version(g: Tensor) -> tuple[int, int]:
    """The version of a gradient; a `UsedGradient` always has the same."""
    return (0, 0) if is_used(g) else version(g)


# -- the update during backward ------------------------------------------------------------------------


class UsedGradient(Tensor):
    """A gradient that has been used: it has the shape of its weight, but no memory and no values."""

    @staticmethod
    def __new__(cls, weight: Tensor) -> UsedGradient:
        nothing = weight.detach().new_zeros(()).expand(weight.shape)
        return torch.Tensor._make_subclass(cls, nothing)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ALLOWED:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise RuntimeError(
            f"{name or 'an operation'} needs a gradient that update_in_backward=True has already used; "
            "clipping by the global norm, GradScaler and gradient accumulation need all gradients at once: "
            "leave update_in_backward out"
        )


def is_used(g: Tensor | None) -> bool:
    """Whether a gradient has been used already."""
    return type(g) is UsedGradient


def check_update_in_backward(group: dict[str, Any], least_draws: int) -> None:
    """Raise unless the options of a group are compatible with the update during backward."""
    if least_draws > 1:
        raise ValueError(
            f"update_in_backward=True cannot go with {group['method']}, which needs several draws"
        )
    for name in ("draws", "accumulate"):
        if group[name] > 1:
            raise ValueError(
                f"update_in_backward=True uses every gradient when it arrives and cannot go with "
                f"{name}={group[name]}; leave one of the two out"
            )


@contextmanager
def updating_in_backward(
    buckets: Sequence[Bucket], update: Callable[[Bucket, Tensor], None]
) -> Iterator[None]:
    """Call `update(bucket, gradient)` for every large tensor when its gradient is complete."""

    def arrived(bucket: Bucket, weight: Tensor) -> None:
        g = weight.grad
        assert g is not None
        with torch.no_grad():
            update(bucket, g)
        weight.grad = UsedGradient(weight)

    def again(weight: Tensor) -> None:
        if is_used(weight.grad):
            raise RuntimeError(
                "a second backward call in one sample() block: update_in_backward=True has used the gradient "
                "of the first; call backward once on the sum of the losses, or leave update_in_backward out"
            )

    handles = []
    for bucket in (b for b in buckets if b.is_large):
        weight = bucket.members[0].weight
        handles.append(weight.register_hook(lambda _, weight=weight: again(weight)))
        handles.append(
            weight.register_post_accumulate_grad_hook(lambda weight, bucket=bucket: arrived(bucket, weight))
        )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
