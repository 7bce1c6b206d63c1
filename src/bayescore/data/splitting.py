"""Training and validation images: two parts of one permutation per seed, so that they never overlap."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayescore.checks import check_count
from bayescore.data.labelled_images import Images
from bayescore.rng import generator

__all__ = ["Split", "split"]

STRATIFIED_BELOW = 100  # with fewer images than this, every class is drawn equally often


@dataclass(frozen=True)
class Split:
    """Disjoint images to train on and to validate with."""

    train: Images
    validation: Images


def split(data: Images, count: int, seed: int, validation: int = 5000) -> Split:
    """`count` random images to train on; of the rest, `validation` (or all, if fewer) to validate with.

    Fewer than 100 images are drawn class by class, equally many of each, so that no class is missing.
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
        # the rank of an image is its number within its class: low ranks hold equally many of each class
        rank = torch.empty_like(labels)
        for k in classes:
            rank[labels == k] = torch.arange(int((labels == k).sum()))
        taken = torch.argsort(rank, stable=True)[:count]
        mask = torch.ones(len(order), dtype=torch.bool)
        mask[taken] = False
        chosen, rest = order[taken], order[mask]
    return Split(data[chosen], data[rest[:validation]])
