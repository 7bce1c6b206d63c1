"""The update during backward: a gradient is used when it arrives, and its memory is free again.

With `update_in_backward=True` every large tensor (optim/buckets.py) is updated by a hook that autograd calls
when the tensor's gradient is complete, which is after its last use in the backward pass; `step()` updates the
small ones and counts. What stands in `.grad` afterwards is a `Spent` tensor without memory, so that code that
needs all gradients at once says so instead of passing over them: clipping by the global norm, a GradScaler,
a second backward call. A gradient that is not finite leaves its tensor as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bayescore.optim.buckets import Bucket

__all__ = ["Spent", "check_arriving", "hooked", "is_spent"]

ALLOWED = {"__get__", "detach", "is_floating_point"}


class Spent(Tensor):
    """A gradient that has been used: it has the shape of its weight, no memory, and no numbers."""

    @staticmethod
    def __new__(cls, weight: Tensor) -> Spent:
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


def is_spent(g: Tensor | None) -> bool:
    """Whether a gradient has been used already."""
    return type(g) is Spent


def check_arriving(group: dict[str, Any], least_draws: int) -> None:
    """Raise unless the options of a group can go with the update during backward."""
    for name, value in (("samples", group["samples"]), ("accumulate", group["accumulate"])):
        if value > 1:
            raise ValueError(
                f"update_in_backward=True uses every gradient when it arrives and cannot go with "
                f"{name}={value}; leave one of the two out"
            )
    if least_draws > 1:
        raise ValueError(
            f"update_in_backward=True cannot go with {group['method']}, which needs several draws"
        )


@contextmanager
def hooked(buckets: Sequence[Bucket], update: Callable[[Bucket, Tensor], None]) -> Iterator[None]:
    """Call `update(bucket, gradient)` for every large tensor when its gradient is there."""

    def arrived(bucket: Bucket, weight: Tensor) -> None:
        g = weight.grad
        assert g is not None
        with torch.no_grad():
            update(bucket, g)
        weight.grad = Spent(weight)

    def again(weight: Tensor) -> None:
        if is_spent(weight.grad):
            raise RuntimeError(
                "a second backward call in one sample() block: update_in_backward=True has used the gradient "
                "of the first; call backward once on the sum of the losses, or leave update_in_backward out"
            )

    handles = []
    for bucket in (b for b in buckets if b.alone):
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
