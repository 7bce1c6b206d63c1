"""Gaussian with a diagonal covariance.

Parameters: mean m and log standard deviation rho. With sigma = exp(rho) and d = x - m,

    x = m + sigma e                                                  (1)
    g(x) = -d / sigma^2                                              (2)
    pullback of e:  m: sum_s e_s / sigma^2,  rho: -2 sum_s e_s g_s   (3)
    gradient of sum_s c_s log q(x_s):  m: -sum c g,  rho: sum c (d^2/sigma^2 - 1)   (4)
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from bayescore.checks import check_shape
from bayescore.families.base import Family, Parameters, Pullback
from bayescore.families.full import LOG_2PI, Jet, initial_mean

__all__ = ["DiagonalGaussian"]


class DiagonalGaussian(Family):
    """N(m, diag(sigma^2)).

    Arguments:
        mean: (D,), or (F, D) for a batch.
        log_sd: log sigma, of the same shape.
    """

    name = "diagonal"
    closed_form = True

    def __init__(self, mean: Tensor, log_sd: Tensor) -> None:
        check_shape("mean", mean, ("D",))
        check_shape("log_sd", log_sd, (mean.shape[-1],))
        if log_sd.shape != mean.shape:
            raise ValueError(f"mean {tuple(mean.shape)} and log_sd {tuple(log_sd.shape)} must have one shape")
        self.mean, self.log_sd, self.dim = mean, log_sd, mean.shape[-1]

    @classmethod
    def init(
        cls,
        dim: int,
        *,
        scale: float = 1.0,
        mean: Tensor | None = None,
        seed: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """N(mean, scale^2 I); without a mean it is zero, or drawn from N(0, I) if a seed is given."""
        if scale <= 0:
            raise ValueError(f"scale must be positive; got {scale}")
        m = initial_mean(dim, mean, seed, dtype, device)
        return cls(m, torch.full_like(m, scale).log())

    def parameters(self) -> Parameters:
        return {"mean": self.mean, "log_sd": self.log_sd}

    def replace(self, parameters: Parameters) -> Self:
        new = object.__new__(type(self))
        new.mean, new.log_sd, new.dim = parameters["mean"], parameters["log_sd"], self.dim
        return new

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:  # noqa: ARG003
        return cls(parameters["mean"], parameters["log_sd"])

    @property
    def batch_shape(self) -> torch.Size:
        return self.mean.shape[:-1]

    @property
    def sd(self) -> Tensor:
        """sigma, (*batch, D)."""
        return self.log_sd.exp()

    @property
    def covariance(self) -> Tensor:
        """V, (*batch, D, D)."""
        return torch.diag_embed(self.sd.square())

    def transform(self, noise: Tensor) -> Tensor:
        return self.mean.unsqueeze(-2) + self.sd.unsqueeze(-2) * noise  # (1)

    def log_prob(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.log_prob(x.unsqueeze(0)).squeeze(-1)
        u = (x - self.mean.unsqueeze(-2)) / self.sd.unsqueeze(-2)
        return -self.log_sd.sum(-1, keepdim=True) - 0.5 * (u.square().sum(-1) + self.dim * LOG_2PI)

    def score(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.score(x.unsqueeze(0)).squeeze(0)
        return (self.mean.unsqueeze(-2) - x) * (-2 * self.log_sd).exp().unsqueeze(-2)  # (2)

    def score_and_pullback(self, x: Tensor) -> tuple[Tensor, Pullback]:
        _, g, pull = self.jet(x)
        return g, lambda e: pull(e, None)

    def jet(self, x: Tensor) -> tuple[Tensor, Tensor, Jet]:
        """-d/sigma, the score, and the gradient of sum_s e_s . g(x_s) + c_s log q(x_s)."""
        scale = (-self.log_sd).exp().unsqueeze(-2)
        u = (self.mean.unsqueeze(-2) - x) * scale
        g = u * scale

        def pull(e: Tensor, c: Tensor | None) -> Parameters:
            mean, log_sd = e * scale.square(), -2 * e * g  # (3)
            if c is not None:  # (4)
                c = c.unsqueeze(-1)
                mean, log_sd = mean - c * g, log_sd + c * (u.square() - 1)
            return {"mean": mean.sum(-2), "log_sd": log_sd.sum(-2)}

        return u, g, pull

    def standardise(self, score: Tensor) -> Tensor:
        """Scores of another density in the coordinates in which this one is N(0, I)."""
        return score * self.sd.unsqueeze(-2)

    def compose(self, inner: Self) -> Self:
        """The density of this family's draws if their noise comes from `inner` instead of N(0, I)."""
        mean = self.mean + self.sd * inner.mean
        return self.replace({"mean": mean, "log_sd": self.log_sd + inner.log_sd})

    def entropy(self) -> Tensor:
        return self.log_sd.sum(-1) + 0.5 * self.dim * (1 + LOG_2PI)
