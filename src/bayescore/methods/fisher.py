"""Fisher: the Euclidean score divergence (Yang, Martin & Bondell 2019; eq. 4 of the paper).

    loss = E_q |grad log q(theta) - s(theta)|^2                         (1)

It needs reparametrised draws and one Hessian product of log Phi per draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bayescore.families.base import Family
from bayescore.methods.reparametrised import ReparametrisedDivergence

__all__ = ["Fisher"]


@dataclass(frozen=True)
class Fisher(ReparametrisedDivergence):
    """Descent on (1); arguments as in ADVI."""

    name: ClassVar[str] = "fisher"
    serves: ClassVar[tuple[str, ...]] = (
        "FullGaussian",
        "DiagonalGaussian",
        "LowRankGaussian",
        "SpikedGaussian",
        "PlanarFlow",
        "CouplingFlow",
        "ZukoFlow",
    )

    def weigh(self, q: Family, r: Tensor) -> Tensor:  # noqa: ARG002
        return r
