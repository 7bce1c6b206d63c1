"""Batches of rows, made of tensors in memory: an index and a function instead of a worker per row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
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
        weights: of the rows, or None: a row of weight 2 stands for two. An epoch has as many rows as there
            are, and row i is in it N w_i / sum(w) times on average, a whole number next to that.
    """

    def __init__(
        self,
        inputs: Callable[[Tensor, torch.Generator | None], Any],
        y: Tensor,
        batch_size: int,
        seed: int | None = None,
        weights: Tensor | None = None,
    ) -> None:
        check_count("batch_size", batch_size)
        self.inputs, self.y, self.batch_size, self.weights = inputs, y, batch_size, weights
        #: what has as many entries as there are data
        self.dataset: Sized = y if weights is None else range(max(1, round(float(weights.sum()))))
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        count = len(self.y)
        rng = self.generator
        order = torch.arange(count)
        if self.weights is not None:
            begin = 0.5 if rng is None else float(torch.rand((), generator=rng, dtype=torch.float64))
            ends = begin + self.weights.double().cumsum(0) * (count / float(self.weights.sum()))
            order = order.repeat_interleave(ends.floor().long().diff(prepend=torch.zeros(1).long()))
        if rng is not None:
            order = order[torch.randperm(len(order), generator=rng)]
        for rows in order.split(self.batch_size):
            yield self.inputs(rows, rng), self.y[rows]
