"""Low-rank adapters (LoRA, Hu et al. 2022): a frozen matrix plus a product of two thin ones that are trained.

    W = W0 + (1/r) B A,      A (r, inputs),  B (outputs, r),  B = 0 at the start                          (1)

A convolution's kernel counts as the matrix (outputs, inputs x height x width). Adapters are parametrizations
of torch: they work in every module that has the weight, also where a function uses it (attention).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bayescore.checks import check_count

__all__ = ["add_adapters"]


class LowRank(nn.Module):
    """The sum (1).

    Arguments:
        weight: W0.
        rank: r.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = len(weight), weight[0].numel()
        a = torch.empty(rank, inputs, dtype=weight.dtype, device=weight.device)
        self.a = nn.Parameter(nn.init.kaiming_uniform_(a, math.sqrt(5)))
        self.b = nn.Parameter(torch.zeros(outputs, rank, dtype=weight.dtype, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.b @ self.a).view_as(weight) / len(self.a)


def add_adapters(module: nn.Module, rank: int, head: str, include: str | Iterable[str] = "*") -> list[str]:
    """Freeze all weights but the head's and add adapters to the matrices; returns the names of these.

    Draws from torch's global stream, which the caller has seeded.

    Arguments:
        rank: r, at most half of the smaller side of a matrix; smaller matrices stay frozen.
        include: patterns of the names of matrices, such as "encoder.*".
    """
    check_count("rank", rank)
    patterns = [include] if isinstance(include, str) else list(include)
    chosen = []
    for owner, layer in module.named_modules():
        if owner == head or owner.startswith(f"{head}."):
            continue
        for name, p in layer.named_parameters(recurse=False):
            full = f"{owner}.{name}".lstrip(".")
            p.requires_grad_(False)
            wide = p.dim() > 1 and min(len(p), p[0].numel()) >= 2 * rank
            embeds = isinstance(layer, nn.Embedding) or "embed" in name or "token" in name
            if wide and not embeds and any(fnmatchcase(full, pattern) for pattern in patterns):
                chosen.append((layer, name, full))
    if not chosen:
        raise ValueError(f"no matrix is large enough for adapters of rank {rank}; give a smaller one")
    for layer, name, _ in chosen:
        weight = getattr(layer, name)
        parametrize.register_parametrization(layer, name, LowRank(weight, rank))
    return [full for *_, full in chosen]
