"""Gaussian with K directions of their own variance on top of a diagonal; no D x D matrix is ever formed.

    x = m + F e,   F = diag(s) (I + U diag(exp(h) - 1) U^T),   U^T U = I, U is D x K               (1)
    V = F F^T = diag(s) (I + U diag(exp(2 h) - 1) U^T) diag(s)                                     (2)
    V^{-1} y = (I + U diag(exp(-2 h) - 1) U^T) (y / s) / s                                         (3)
    log det V = 2 sum log s + 2 sum h                                                              (4)
A direction with h > 0 is wider than the diagonal, one with h < 0 narrower. So this family holds a low-rank
covariance plus a diagonal and a low-rank precision plus a diagonal, the posterior of a regression with many
coefficients; LowRankGaussian holds only the first.

Parameters: m, log s, h and any D x K matrix A; U is its orthonormal basis, by a QR factorisation. Cost O(D K)
per point and O(D K^2) per density.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayescore.checks import check_count, check_shape
from bayescore.families.base import Family, Parameters
from bayescore.families.full import LOG_2PI, initial_mean
from bayescore.rng import generator

__all__ = ["SpikedGaussian"]


class SpikedGaussian(Family):
    """N(m, diag(s) (I + U diag(exp(2 h) - 1) U^T) diag(s)).

    Arguments:
        mean: (D,), or (F, D) for a batch.
        log_sd: log s, of the same shape.
        log_stretch: h, (K,) or (F, K).
        columns: A, (D, K) or (F, D, K), whose columns span the directions U.
    """

    name: ClassVar[str] = "spiked"

    def __init__(self, mean: Tensor, log_sd: Tensor, log_stretch: Tensor, columns: Tensor) -> None:
        check_shape("mean", mean, ("D",))
        check_shape("log_sd", log_sd, (mean.shape[-1],))
        check_shape("log_stretch", log_stretch, ("K",))
        check_shape("columns", columns, (mean.shape[-1], log_stretch.shape[-1]))
        if not mean.shape[:-1] == log_sd.shape[:-1] == log_stretch.shape[:-1] == columns.shape[:-2]:
            shapes = [tuple(value.shape) for value in (mean, log_sd, log_stretch, columns)]
            raise ValueError(
                f"mean, log_sd, log_stretch and columns disagree in their batch; they are {shapes}"
            )
        self.mean, self.log_sd, self.log_stretch, self.columns = mean, log_sd, log_stretch, columns
        self.dim, self.rank = columns.shape[-2:]
        if self.rank > self.dim:
            raise ValueError(f"rank must be at most the dimension {self.dim}; got {self.rank}")

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
        """N(mean, scale^2 I) with random directions; the default rank is 10, or the dimension if smaller."""
        check_count("dim", dim)
        rank = min(10, dim) if rank is None else rank
        check_count("rank", rank)
        if scale <= 0:
            raise ValueError(f"scale must be positive; got {scale}")
        m = initial_mean(dim, mean, seed, dtype, device)
        rng = generator(seed or 0, device, "columns")
        columns = torch.randn(dim, rank, generator=rng, dtype=dtype, device=device)
        return cls(m, torch.full_like(m, scale).log(), torch.zeros_like(columns[0]), columns)

    def parameters(self) -> Parameters:
        return {
            "mean": self.mean,
            "log_sd": self.log_sd,
            "log_stretch": self.log_stretch,
            "columns": self.columns,
        }

    def replace(self, parameters: Parameters) -> Self:
        new = object.__new__(type(self))
        new.mean, new.log_sd = parameters["mean"], parameters["log_sd"]
        new.log_stretch, new.columns = parameters["log_stretch"], parameters["columns"]
        new.dim, new.rank = self.dim, self.rank
        return new

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "rank": self.rank}

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:  # noqa: ARG003
        return cls(**parameters)

    @property
    def batch_shape(self) -> torch.Size:
        return self.mean.shape[:-1]

    @property
    def sd(self) -> Tensor:
        """s, the diagonal (*batch, D); not the standard deviations of coordinates."""
        return self.log_sd.exp()

    @property
    def directions(self) -> Tensor:
        """U, (*batch, D, K)."""
        return torch.linalg.qr(self.columns).Q

    @property
    def covariance(self) -> Tensor:
        """V as a dense matrix, (*batch, D, D): for small dimensions only."""
        F = self.stretched(torch.eye(self.dim, dtype=self.dtype, device=self.device), 1.0)
        F = F * self.sd.unsqueeze(-2)  # F^T
        return F.mT @ F

    def stretched(self, rows: Tensor, power: float) -> Tensor:
        """Rows (*batch, S, D) times (I + U diag(exp(power h) - 1) U^T)."""
        U = self.directions
        return rows + ((rows @ U) * (power * self.log_stretch).expm1().unsqueeze(-2)) @ U.mT

    def transform(self, noise: Tensor) -> Tensor:
        return self.mean.unsqueeze(-2) + self.sd.unsqueeze(-2) * self.stretched(noise, 1.0)  # (1)

    def _scaled(self, x: Tensor) -> Tensor:
        return (x - self.mean.unsqueeze(-2)) * (-self.log_sd).exp().unsqueeze(-2)

    def log_prob(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.log_prob(x.unsqueeze(0)).squeeze(-1)
        noise = self.stretched(self._scaled(x), -1.0)
        return -0.5 * (noise.square().sum(-1) + self.dim * LOG_2PI) - self._half_log_det().unsqueeze(-1)

    def _half_log_det(self) -> Tensor:
        return self.log_sd.sum(-1) + self.log_stretch.sum(-1)  # (4)

    def score(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.score(x.unsqueeze(0)).squeeze(0)
        return -self.stretched(self._scaled(x), -2.0) * (-self.log_sd).exp().unsqueeze(-2)  # (3)

    def entropy(self) -> Tensor:
        return 0.5 * self.dim * (1 + LOG_2PI) + self._half_log_det()

    def _describe(self) -> str:
        return f"dim={self.dim}, rank={self.rank}"
