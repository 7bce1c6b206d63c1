"""A few images to learn from, others to choose by: one permutation per seed, so that they never overlap."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayescore.checks import check_count
from bayescore.data.labelled_images import Images
from bayescore.rng import generator

__all__ = ["Split", "split"]

STRATIFIED_BELOW = 100  # with fewer images than this every class is there equally often


@dataclass(frozen=True)
class Split:
    """Disjoint images to learn from and to choose by."""

    train: Images
    validation: Images


def split(data: Images, count: int, seed: int, validation: int = 5000) -> Split:
    """`count` images at random to learn from; of the rest, `validation` (or all, if fewer) to choose by.

    Fewer than 100 images are drawn class by class, as many of each, so that none is missing.
    """
    check_count("count", count)
    check_count("validation", validation)
    if count >= len(data):
        raise ValueError(f"count must leave images to choose by: at most {len(data) - 1}; got {count}")
    order = torch.randperm(len(data), generator=generator(seed, purpose="split"))
    chosen, rest = order[:count], order[count:]
    if count < STRATIFIED_BELOW:
        labels = data.y[order]
        classes = labels.unique()
        # the n-th image of its class, for every image in order: the first rounds through the classes
        rank = torch.empty_like(labels)
        for k in classes:
            rank[labels == k] = torch.arange(int((labels == k).sum()))
        taken = torch.argsort(rank, stable=True)[:count]
        mask = torch.ones(len(order), dtype=torch.bool)
        mask[taken] = False
        chosen, rest = order[taken], order[mask]
    return Split(data[chosen], data[rest[:validation]])
