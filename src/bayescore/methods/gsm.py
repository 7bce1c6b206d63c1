"""GSM: Gaussian score matching (Modi et al. 2023), averaged over several draws per step.

For one draw z ~ q_t with score g, the Gaussian nearest to q_t in KL(q_t | q) whose score at z is g:
    d = mu - z,   eps = Sigma g - d,   c = d . g
    rho = (sqrt(1 + 4 (g^T Sigma g + c^2)) - 1) / 2                                     (1)
    dmu = (eps - d (g . eps) / (1 + rho + c)) / (1 + rho)                               (2)
    dSigma = d d^T - d' d'^T,   d' = mu + dmu - z                                       (3)
With B draws per step, dmu and dSigma are averaged, all of them from the same (mu, Sigma). The new covariance
need not be positive definite: if its Cholesky factorisation fails, the whole step is dropped.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count, check_memory
from bayescore.families.base import Family
from bayescore.families.factor import raw_from_factor
from bayescore.families.full import FullGaussian
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.rng import Streams
from bayescore.targets.base import Target

__all__ = ["GSM", "GSMInfo", "gsm_update"]


@dataclass(frozen=True)
class GSMInfo(Info):
    """loss is the mean squared score mismatch in the norm of Cov(q_t)."""

    rejected: Tensor  # (F,) whether the step was dropped


@dataclass(frozen=True)
class GSM(Method):
    """Gaussian score matching.

    Arguments:
        draws: B, draws and score calls per step.
    """

    name: ClassVar[str] = "gsm"
    serves: ClassVar[tuple[str, ...]] = ("FullGaussian",)

    draws: int = 2

    def __post_init__(self) -> None:
        check_count("draws", self.draws)

    def check(self, family: Family, target: Target) -> None:
        super().check(family, target)
        need = 6 * family.dim**2 * torch.finfo(family.dtype).bits // 8 * max(1, family.batch_shape.numel())
        check_memory(
            f"GSM in {family.dim} dimensions",
            need,
            family.device,
            "use BaM or ProximalDescent with a low-rank family",
        )

    def init(self, family: Family, steps: int) -> State:
        return State(family=family, step=0, horizon=steps)

    def step(self, state: State, oracle: Oracle, streams: Streams) -> tuple[State, GSMInfo]:
        q = state.family
        assert isinstance(q, FullGaussian)
        z = q.transform(q.noise(streams, self.draws))  # (F, B, D)
        g = oracle.score(z)
        L = q.factor
        mean, covariance = gsm_update(q.mean, L @ L.mT, z, g)
        factor, info = torch.linalg.cholesky_ex(covariance)
        ok = (info == 0) & factor.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)
        new = q.replace(
            {
                "mean": torch.where(ok[:, None], mean, q.mean),
                "raw": torch.where(ok[:, None, None], raw_from_factor(factor), q.raw),
            }
        )
        loss = ((g - q.score(z)) @ L).square().sum(-1).mean(-1)
        return dataclasses.replace(state, family=new, step=state.step + 1), GSMInfo(loss, ~ok)


def gsm_update(mu: Tensor, sigma: Tensor, z: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """(1)-(3) averaged over the draws.

    Arguments:
        mu: (F, D).  sigma: (F, D, D).  z, g: draws and scores (F, B, D).

    Returns:
        the new mean and covariance, which may be indefinite.
    """
    d = mu.unsqueeze(-2) - z
    sg = g @ sigma
    eps = sg - d
    c = (d * g).sum(-1, keepdim=True)
    rho = 0.5 * ((1 + 4 * ((g * sg).sum(-1, keepdim=True) + c.square())).sqrt() - 1)  # (1)
    dmu = (eps - d * (g * eps).sum(-1, keepdim=True) / (1 + rho + c)) / (1 + rho)  # (2)
    after = d + dmu
    B = z.shape[-2]
    return mu + dmu.mean(-2), sigma + (d.mT @ d - after.mT @ after) / B  # (3)
