"""A multi-layer perceptron with ReLU, as in the paper's MNIST experiment (Sec. 5.2, App. C)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from bayescore.checks import check_count

__all__ = ["mlp"]


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Flatten, then linear layers with ReLU between them, PyTorch's own initial weights.

    >>> sum(p.numel() for p in mlp(784, (1000, 1000, 1000), 10).parameters())
    2797010
    """
    widths = [inputs, *hidden, outputs]
    for width in widths:
        check_count("width", width)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
