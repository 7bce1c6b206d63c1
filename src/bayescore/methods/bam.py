"""BaM: batch and match (Cai et al. 2024) for full, diagonal and low-rank Gaussians.

From B draws z_b ~ q_t with scores g_b, their means zbar, gbar and covariances C, Gamma (divided by B):
    U = lam Gamma + lam/(1+lam) gbar gbar^T = Q Q^T                                            (1)
    V = Sigma_t + lam C + lam/(1+lam) (mu_t - zbar)(mu_t - zbar)^T = R R^T                     (2)
    Sigma U Sigma + Sigma = V                                                                  (3)
    mu = mu_t/(1+lam) + lam/(1+lam) (Sigma gbar + zbar)                                        (4)

Positive definite by construction: with K = R^T Q and K^T K = W diag(l) W^T, x = sqrt(1/2 + sqrt(l + 1/4)),
    Sigma = F F^T,   F = R (I - K W diag(1/(x^3 (1+x))) W^T K^T)                               (5)
R = [Sigma_t^{1/2}, ...] need not be square; the triangular factor of Sigma comes from a QR factorisation of
F^T, without forming F F^T. (5) costs O(B D^2) on top of that QR. It is used while B + 1 < D; otherwise R is
made square and R^T U R is eigen-decomposed.

Diagonal family: a quadratic per coordinate (rules/bam.py), as in the network optimizer of the same name.
Low-rank family: the new covariance is kept in factors and projected (methods/bam_low_rank.py).

lam_t: "plateau" B D until the score mismatch stops changing, then B D/(1 + steps since); "constant" B D;
"decay" B D/(t+1); a number; or f(t, B, D).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count, check_memory, check_number
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.factor import raw_from_factor
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.methods.bam_low_rank import bam_low_rank_step, eigen
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.rng import Streams
from bayescore.rules.bam import bam_step
from bayescore.targets.base import Target

__all__ = ["BaM", "BaMState", "bam_diagonal", "bam_full"]

PLATEAU_STEPS = 25  # steps without a move that count as a plateau
MOVE = 0.5  # change of the running mean of log(mismatch) that counts as a move
MEMORY = 0.9  # of the running mean of the log mismatch


@dataclass(frozen=True)
class BaMState(State):
    level: Tensor  # (F,) running mean of log(mismatch)
    anchor: Tensor  # (F,) its value after its last move
    drift: Tensor  # (F, D) running mean of v, the mean whitened residual
    push: Tensor  # (F,) running mean of |v|^2
    waited: Tensor  # (F,) steps since the fit last moved
    since: Tensor  # (F,) steps since the plateau; 0 before it


@dataclass(frozen=True)
class BaM(Method):
    """Batch and match.

    Arguments:
        draws: B, draws and score calls per step; at least 2.
        regularisation: lam_t, see above; the larger, the weaker the pull towards q_t.
    """

    name: ClassVar[str] = "bam"
    serves: ClassVar[tuple[str, ...]] = ("FullGaussian", "DiagonalGaussian", "LowRankGaussian")

    draws: int = 2
    regularisation: str | float | Callable[[int, int, int], float] = "plateau"

    def __post_init__(self) -> None:
        check_count("draws", self.draws, 2)
        lam = self.regularisation
        if isinstance(lam, str):
            if lam not in ("plateau", "constant", "decay"):
                raise ValueError(
                    "regularisation must be 'plateau', 'constant', 'decay', a number or f(t, B, D); "
                    f"got {lam!r}"
                )
        elif not callable(lam):
            check_number("regularisation", lam)

    def check(self, family: Family, target: Target) -> None:
        super().check(family, target)
        if isinstance(family, FullGaussian):
            need = (
                8 * family.dim**2 * torch.finfo(family.dtype).bits // 8 * max(1, family.batch_shape.numel())
            )
            check_memory(
                f"BaM with a full Gaussian in {family.dim} dimensions",
                need,
                family.device,
                "use a low-rank or diagonal family",
            )

    def init(self, family: Family, steps: int) -> BaMState:
        zeros = family.flat().new_zeros(family.batch_shape)
        infinite = torch.full_like(zeros, torch.inf)
        drift = zeros.unsqueeze(-1).repeat(1, family.dim)
        return BaMState(
            family=family,
            step=0,
            horizon=steps,
            level=infinite,
            anchor=infinite,
            drift=drift,
            push=zeros,
            waited=zeros,
            since=zeros,
        )

    def step(self, state: BaMState, oracle: Oracle, streams: Streams) -> tuple[BaMState, Info]:
        q = state.family
        z = q.transform(q.noise(streams, self.draws))  # (F, B, D)
        g = oracle.score(z)
        residual = self._whitened(q, g - q.score(z))  # (F, B, D)
        mismatch = residual.square().mean((-2, -1))
        state = self._watch(state, mismatch, residual.mean(-2))
        lam = self._lam(state, q.dim)  # (F, 1)
        if isinstance(q, FullGaussian):
            mean, factor = bam_full(q.mean, q.factor, z, g, lam)
            new: Family = q.replace({"mean": mean, "raw": raw_from_factor(factor)})
        elif isinstance(q, DiagonalGaussian):
            mean, sd = bam_diagonal(q.mean, q.sd, z, g, lam)
            new = q.replace({"mean": mean, "log_sd": sd.log()})
        else:
            assert isinstance(q, LowRankGaussian)
            mean, log_diagonal, columns = bam_low_rank_step(q.mean, q.log_diagonal, q.columns, z, g, lam)
            new = q.replace({"mean": mean, "log_diagonal": log_diagonal, "columns": columns})
        return dataclasses.replace(state, family=new, step=state.step + 1), Info(mismatch)

    @staticmethod
    def _whitened(q: Family, r: Tensor) -> Tensor:
        """W^T r with W W^T = Cov(q_t) (low rank: its diagonal)."""
        if isinstance(q, FullGaussian):
            return r @ q.factor
        if isinstance(q, DiagonalGaussian):
            return r * q.sd.unsqueeze(-2)
        assert isinstance(q, LowRankGaussian)
        return r * (q.log_diagonal.exp() + q.columns.square().sum(-1)).sqrt().unsqueeze(-2)

    @staticmethod
    def _watch(state: BaMState, mismatch: Tensor, v: Tensor) -> BaMState:
        """Count the steps in which the mismatch hardly changes and the residuals have no common direction.

        At a plateau the residuals v of successive steps average out: |mean v|^2 is about a twentieth of the
        mean of |v|^2. On the way to a distant target they point the same way.
        """
        now = mismatch.clamp_min(torch.finfo(mismatch.dtype).tiny).log()
        level = torch.where(state.level.isinf(), now, MEMORY * state.level + (1 - MEMORY) * now)
        drift = MEMORY * state.drift + (1 - MEMORY) * v
        push = MEMORY * state.push + (1 - MEMORY) * v.square().sum(-1)
        # The initial anchor is infinite, so the first step counts as a move. A mismatch above 1 means that q
        # is off by more than its own width, which is no plateau.
        moved = ~((level - state.anchor).abs() <= MOVE) | (level > 0)
        moved |= drift.square().sum(-1) > 0.3 * push
        waited = torch.where(moved, torch.zeros_like(level), state.waited + 1)
        plateau = (state.since > 0) | (waited >= PLATEAU_STEPS)
        return dataclasses.replace(
            state,
            level=level,
            anchor=torch.where(moved, level, state.anchor),
            drift=drift,
            push=push,
            waited=waited,
            since=torch.where(plateau, state.since + 1, state.since),
        )

    def _lam(self, state: BaMState, dim: int) -> Tensor:
        full = float(self.draws * dim)
        ones = torch.ones_like(state.since).unsqueeze(-1)
        if self.regularisation == "plateau":
            return full / (1 + state.since).unsqueeze(-1)
        if self.regularisation == "constant":
            return full * ones
        if self.regularisation == "decay":
            return full / (state.step + 1) * ones
        if callable(self.regularisation):
            value = float(self.regularisation(state.step, self.draws, dim))
            check_number(f"regularisation at step {state.step}", value)
            return value * ones
        return float(self.regularisation) * ones


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (F, D), and the centred rows divided by sqrt(B): their Gram matrix is the covariance."""
    mean = x.mean(-2)
    return mean, (x - mean.unsqueeze(-2)) / x.shape[-2] ** 0.5


def bam_full(mu: Tensor, L: Tensor, z: Tensor, g: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """One step for a full Gaussian.

    Arguments:
        mu: (F, D).  L: factor of the covariance (F, D, D).  z, g: draws and scores (F, B, D).  lam: (F, 1).

    Returns:
        the new mean and lower triangular factor of the new covariance.
    """
    zbar, zc = spread(z)
    gbar, gc = spread(g)
    a, b = lam.sqrt().unsqueeze(-1), (lam / (1 + lam)).sqrt()
    Q = torch.cat([a * gc, (b * gbar).unsqueeze(-2)], -2).mT  # (F, D, B+1), (1)
    R = torch.cat([L.mT, a * zc, (b * (mu - zbar)).unsqueeze(-2)], -2).mT  # (F, D, D+B+1), (2)
    if Q.shape[-1] >= Q.shape[-2]:
        R = triangular(R)
        l, W = eigen(R.mT @ (Q @ (Q.mT @ R)))
        F = R @ (W * (0.5 + (l.clamp_min(0) + 0.25).sqrt()).rsqrt().unsqueeze(-2))
    else:
        K = R.mT @ Q
        l, W = eigen(K.mT @ K)
        x = (0.5 + (l.clamp_min(0) + 0.25).sqrt()).sqrt()
        KW = K @ W
        F = R - (R @ KW / (x.pow(3) * (1 + x)).unsqueeze(-2)) @ KW.mT  # (5)
    factor = triangular(F)
    sigma_gbar = (factor @ (factor.mT @ gbar.unsqueeze(-1))).squeeze(-1)
    return (mu + lam * (sigma_gbar + zbar)) / (1 + lam), factor  # (4)


def triangular(F: Tensor) -> Tensor:
    """The lower triangular L with a positive diagonal and L L^T = F F^T."""
    upper = torch.linalg.qr(F.mT, mode="r").R
    return upper.mT * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def bam_diagonal(mu: Tensor, sd: Tensor, z: Tensor, g: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """One step for a diagonal Gaussian, O(D): the new mean and standard deviation.

    Arguments:
        mu, sd: (F, D).  z, g: draws and scores (F, B, D).  lam: (F, 1).
    """
    eps, whitened = (z - mu.unsqueeze(-2)) / sd.unsqueeze(-2), sd.unsqueeze(-2) * g
    (zbar, zc), (gbar, gc) = spread(eps), spread(whitened)
    return bam_step(mu, sd, zbar, zc.square().sum(-2), gbar, gc.square().sum(-2), lam)
