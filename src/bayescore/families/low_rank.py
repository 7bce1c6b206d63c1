"""Gaussian whose covariance is low-rank plus diagonal; no D x D matrix is ever formed.

    V = diag(psi) + A A^T,  A is D x K                                              (1)
    x = m + sqrt(psi) e_1 + A e_2,  e_1 in R^D, e_2 in R^K                          (2)
    V^{-1} y = y/psi - A' M^{-1} (A'^T y),  A' = A / psi,  M = I + A^T A'           (3)
    log det V = sum log psi + log det M                                             (4)

Pullback of e (g the score, h = V^{-1} e, rows are points):
    m: sum h,   log psi: -psi sum h g,   A: -(h (g^T A) + g (h^T A)) summed         (5)
Parameters: m, log psi and A. Cost O(D K^2) per evaluation.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from bayescore.checks import check_count, check_shape
from bayescore.families.base import Family, Parameters, Pullback
from bayescore.families.full import LOG_2PI, initial_mean
from bayescore.rng import generator

__all__ = ["LowRankGaussian"]


class LowRankGaussian(Family):
    """N(m, diag(psi) + A A^T).

    Arguments:
        mean: (D,), or (F, D) for a batch.
        log_diagonal: log psi, of the same shape.
        columns: A, (D, K) or (F, D, K).
    """

    name = "low-rank"
    closed_form = True

    def __init__(self, mean: Tensor, log_diagonal: Tensor, columns: Tensor) -> None:
        check_shape("mean", mean, ("D",))
        check_shape("log_diagonal", log_diagonal, (mean.shape[-1],))
        check_shape("columns", columns, (mean.shape[-1], "K"))
        if not mean.shape[:-1] == log_diagonal.shape[:-1] == columns.shape[:-2]:
            raise ValueError(
                f"mean {tuple(mean.shape)}, log_diagonal {tuple(log_diagonal.shape)} and "
                f"columns {tuple(columns.shape)} disagree in their batch"
            )
        self.mean, self.log_diagonal, self.columns = mean, log_diagonal, columns
        self.dim, self.rank = columns.shape[-2:]

    @classmethod
    def init(
        cls,
        dim: int,
        rank: int | None = None,
        *,
        scale: float = 1.0,
        mean: Tensor | None = None,
        seed: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Covariance close to scale^2 I with small random columns (A = 0 would be a saddle point).

        The default rank is 10, or the dimension if that is smaller.
        """
        check_count("dim", dim)
        rank = min(10, dim) if rank is None else rank
        check_count("rank", rank)
        if rank > dim:
            raise ValueError(f"rank must be at most the dimension {dim}; got {rank}")
        if scale <= 0:
            raise ValueError(f"scale must be positive; got {scale}")
        m = initial_mean(dim, mean, seed, dtype, device)
        rng = generator(seed or 0, device, "columns")
        columns = torch.randn(dim, rank, generator=rng, dtype=dtype, device=device)
        return cls(m, 2 * torch.full_like(m, scale).log(), 0.1 * scale / rank**0.5 * columns)

    def parameters(self) -> Parameters:
        return {"mean": self.mean, "log_diagonal": self.log_diagonal, "columns": self.columns}

    def replace(self, parameters: Parameters) -> Self:
        new = object.__new__(type(self))
        new.mean, new.log_diagonal = parameters["mean"], parameters["log_diagonal"]
        new.columns, new.dim, new.rank = parameters["columns"], self.dim, self.rank
        return new

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "rank": self.rank}

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:  # noqa: ARG003
        return cls(parameters["mean"], parameters["log_diagonal"], parameters["columns"])

    @property
    def batch_shape(self) -> torch.Size:
        return self.mean.shape[:-1]

    @property
    def noise_dim(self) -> int:
        return self.dim + self.rank

    @property
    def covariance(self) -> Tensor:
        """V as a dense matrix, (*batch, D, D): for small dimensions only."""
        return torch.diag_embed(self.log_diagonal.exp()) + self.columns @ self.columns.mT

    def transform(self, noise: Tensor) -> Tensor:
        first, second = noise[..., : self.dim], noise[..., self.dim :]
        sd = (0.5 * self.log_diagonal).exp().unsqueeze(-2)
        return self.mean.unsqueeze(-2) + sd * first + second @ self.columns.mT  # (2)

    def _inner(self) -> tuple[Tensor, Tensor, Tensor]:
        """1/psi (*batch, 1, D), A' (*batch, D, K) and the Cholesky factor of M (*batch, K, K)."""
        precision = (-self.log_diagonal).exp()
        scaled = self.columns * precision.unsqueeze(-1)
        eye = torch.eye(self.rank, dtype=self.dtype, device=self.device)
        C, info = torch.linalg.cholesky_ex(eye + self.columns.mT @ scaled)
        # M is positive definite: this fails only if parameters overflow; with NaN the loop skips the step
        return precision.unsqueeze(-2), scaled, torch.where((info == 0)[..., None, None], C, torch.nan)

    @staticmethod
    def _solve(y: Tensor, inner: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        precision, scaled, C = inner
        half = torch.linalg.solve_triangular(C.mT, y @ scaled, upper=True, left=False)
        return (
            y * precision - torch.linalg.solve_triangular(C, half, upper=False, left=False) @ scaled.mT
        )  # (3)

    def log_prob(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.log_prob(x.unsqueeze(0)).squeeze(-1)
        d = x - self.mean.unsqueeze(-2)
        inner = self._inner()
        log_det = self._log_det(inner[2]).unsqueeze(-1)
        return -0.5 * ((d * self._solve(d, inner)).sum(-1) + log_det + self.dim * LOG_2PI)

    def _log_det(self, C: Tensor) -> Tensor:
        return self.log_diagonal.sum(-1) + 2 * C.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (4)

    def score(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.score(x.unsqueeze(0)).squeeze(0)
        return -self._solve(x - self.mean.unsqueeze(-2), self._inner())

    def score_and_pullback(self, x: Tensor) -> tuple[Tensor, Pullback]:
        inner = self._inner()
        g = -self._solve(x - self.mean.unsqueeze(-2), inner)

        def pullback(e: Tensor) -> Parameters:  # (5)
            h = self._solve(e, inner)
            return {
                "mean": h.sum(-2),
                "log_diagonal": -self.log_diagonal.exp() * (h * g).sum(-2),
                "columns": -(h.mT @ (g @ self.columns) + g.mT @ (h @ self.columns)),
            }

        return g, pullback

    def entropy(self) -> Tensor:
        return 0.5 * (self._log_det(self._inner()[2]) + self.dim * (1 + LOG_2PI))

    def _describe(self) -> str:
        return f"dim={self.dim}, rank={self.rank}"
