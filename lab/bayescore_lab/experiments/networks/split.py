"""The images of the MNIST experiment, read once per process, and mini-batches of nearly equal size."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from bayescore.data import Images, Split, images, split

__all__ = ["batches", "mnist_split", "pictures"]


@cache
def pictures(name: str, part: str) -> Images:
    """A part of a data set in the pixel scale of MNIST."""
    return images(name, part, like="mnist")


@cache
def mnist_split(percent: float, seed: int) -> Split:
    """`percent` of the 60,000 training images; of the rest, 5,000 (or all, if fewer) to choose by."""
    data = pictures("mnist", "train")
    return split(data, round(len(data) * percent / 100), seed)


def batches(count: int, size: int, rng: torch.Generator) -> list[Tensor]:
    """All of `count` in random order, in batches of nearly equal size, at most `size`."""
    return list(torch.randperm(count, generator=rng).tensor_split(-(-count // size)))
