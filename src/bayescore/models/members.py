"""Several multi-layer perceptrons side by side in one module: the members of an ensemble in one pass.

For small networks the time of a step is overhead, so that eight members cost little more than one. Each sees
the same rows with its own weights; a loss that sums over the members trains them independently.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.checks import check_count

__all__ = ["MLPMembers"]


class MLPMembers(nn.Module):
    """Perceptrons with SiLU that share their inputs: (n, inputs) to (n, members, outputs).

    Arguments:
        classes: put the members last, (n, outputs, members), where a categorical likelihood sums over them.

    >>> MLPMembers(3, (8,), 2, members=4)(torch.zeros(5, 3)).shape
    torch.Size([5, 4, 2])
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, members: int, *, classes: bool = False
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden, outputs]
        for width in (*widths, members):
            check_count("width", width)
        self.classes = classes
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in itertools.pairwise(widths):
            bound = 1 / math.sqrt(before)  # torch's own initial weights
            self.weights.append(nn.Parameter(torch.empty(members, before, after).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(members, 1, after).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        h = x.expand(len(self.weights[0]), *x.shape)  # (M, n, D)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, F.silu(h) if i else h, weight)
        return h.permute(1, 2, 0) if self.classes else h.transpose(0, 1)
