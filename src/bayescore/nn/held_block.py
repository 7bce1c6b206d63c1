"""A block of an optimizer that stays open over several batches: gradient accumulation in trainers.

Trainers that accumulate gradients run k batches and then call `step()`. All k losses belong to one draw of
the weights, so the block opens before the first batch and closes after the last:
    g = (1/k) sum_i grad l_i(theta),   theta one draw                                                  (1)
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from bayescore.optim.base import BayesianOptimizer

__all__ = ["HeldBlock", "check_accumulating"]


class HeldBlock:
    """`with opt.sample():` in two halves."""

    def __init__(self) -> None:
        self._block: AbstractContextManager[None] | None = None
        self.batches = 0  # since the block was opened

    @property
    def is_open(self) -> bool:
        return self._block is not None

    def begin_batch(self, optimizer: BayesianOptimizer) -> None:
        """Open the block, unless it is open, and count the batch."""
        if self._block is None:
            block = optimizer.sample()
            block.__enter__()
            self._block, self.batches = block, 0
        self.batches += 1

    def close(self, error: BaseException | None = None) -> None:
        """Close the block, if it is open; after an error the module has its mean and no gradient."""
        block, self._block = self._block, None
        if block is None:
            return
        if error is None:
            block.__exit__(None, None, None)
        else:
            block.__exit__(type(error), error, error.__traceback__)


def check_accumulating(optimizer: BayesianOptimizer, name: str) -> None:
    """Raise if options of an optimizer would count accumulated batches twice, or need a batch again."""
    head = optimizer.param_groups[0]
    if head["accumulate"] > 1:
        raise ValueError(f"{name} accumulates already; leave out accumulate={head['accumulate']}")
    if head["draws"] > 1:
        raise ValueError(
            f"{name} runs every batch once, and draws={head['draws']} needs it again; "
            f"set {name}=1, or draws=1"
        )
