"""Wrong uses of a block that can be seen: few backward calls, gradients of others, a loss that is a sum."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bayescore.optim.arriving import is_spent

__all__ = ["backward_calls", "check_mean", "stamp", "version", "warn_foreign"]

FOREIGN = (
    "gradients that were made outside sample() are thrown away: they do not belong to the weights that are "
    "drawn; make every backward call of a step inside the block, several of them with accumulate="
)
SUMMED = 2  # torch's number for reduction="sum"


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
    """Warn where a weight has a gradient that is not the one that the last step has used."""
    if any(w.grad is not None and used.get(w) != stamp(w.grad) for w in weights):
        warnings.warn(FOREIGN, RuntimeWarning, stacklevel=4)


def check_mean(loss: Any) -> None:
    """Refuse a loss that torch made with reduction="sum"."""
    made_by = loss.grad_fn if isinstance(loss, torch.Tensor) else None
    if getattr(made_by, "_saved_reduction", None) == SUMMED:
        raise ValueError(
            'the loss is a sum over the batch (reduction="sum"); return the mean instead: the number of data '
            "enters through num_data"
        )


def version(p: Tensor) -> tuple[int, int]:
    """What changes with a tensor's numbers or memory; a write into `.data` goes unseen."""
    return p._version, p.data_ptr()


def stamp(g: Tensor) -> tuple[int, int]:
    """The version of a gradient; one that was used when it arrived has none."""
    return (0, 0) if is_spent(g) else version(g)
