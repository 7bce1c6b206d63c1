"""Batches of rows, made of tensors in memory: an index and a function instead of a worker per row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bayescore.checks import check_count

__all__ = ["Batches"]


class Batches:
    """Pairs (inputs, labels), in the order of the rows, or in a new order every time if there is a seed.

    Arguments:
        inputs: from the numbers of rows, and the generator or None, to the inputs of a network.
        y: labels of all rows.
        seed: of the order of the rows and of what `inputs` draws.
    """

    def __init__(
        self,
        inputs: Callable[[Tensor, torch.Generator | None], Any],
        y: Tensor,
        batch_size: int,
        seed: int | None = None,
    ) -> None:
        check_count("batch_size", batch_size)
        self.inputs, self.dataset, self.batch_size = inputs, y, batch_size
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        count = len(self.dataset)
        rng = self.generator
        order = torch.arange(count) if rng is None else torch.randperm(count, generator=rng)
        for rows in order.split(self.batch_size):
            yield self.inputs(rows, rng), self.dataset[rows]
