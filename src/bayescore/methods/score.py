"""Score: the score divergence in the norm of Cov(q) (Cai et al. 2024; eq. 4 of the paper).

    loss = E_q [ r^T V r ],   r = grad log q(theta) - s(theta),   V = Cov(q)          (1)

It is affine invariant and needs reparametrised draws and one Hessian product of log Phi per draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.methods.reparametrised import ReparametrisedDivergence

__all__ = ["Score"]


@dataclass(frozen=True)
class Score(ReparametrisedDivergence):
    """Descent on (1); arguments as in ADVI."""

    name: ClassVar[str] = "score"
    serves: ClassVar[tuple[str, ...]] = ("FullGaussian", "DiagonalGaussian", "LowRankGaussian")

    def weigh(self, q: Family, r: Tensor) -> Tensor:
        """W^T r with W W^T = V."""
        if isinstance(q, FullGaussian):
            return r @ q.factor
        if isinstance(q, DiagonalGaussian):
            return r * q.sd.unsqueeze(-2)
        assert isinstance(q, LowRankGaussian)
        return torch.cat([r * (0.5 * q.log_diagonal).exp().unsqueeze(-2), r @ q.columns], -1)
