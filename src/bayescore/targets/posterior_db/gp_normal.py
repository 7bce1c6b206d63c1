"""A Gaussian process observed with normal noise: gp_regr.

    rho ~ Gamma(25, 4),  alpha ~ N(0, 2^2),  sigma ~ N(0, 1), both on the half line, not renormalised    (1)
    K = alpha^2 exp(-|x_i - x_j|^2 / (2 rho^2)) + sigma I = L L^T,  y ~ N(0, K)                          (2)
    u = (log rho, log alpha, log sigma); sigma is the variance of the noise.
With a = K^-1 y the score in K is B = (a a^T - K^-1) / 2:
    dlog p = <B, dK>                                                                                     (3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from bayescore.checks import check_memory
from bayescore.rng import Streams
from bayescore.targets.constraints import Positive
from bayescore.targets.model import ConstrainedModel
from bayescore.targets.posterior_db.named_arrays import arrays

__all__ = ["GaussianProcessNormal"]


class GaussianProcessNormal(ConstrainedModel):
    """A regression by a Gaussian process (2); D = 3.

    Arguments:
        x: places (N,).
        y: observations (N,).
        propto: drop the constants of the priors and of the likelihood, as Stan does.
    """

    name = "gp_regr"

    def __init__(self, x: Tensor, y: Tensor, *, propto: bool = False) -> None:
        check_memory(
            f"a process at {len(x)} places", 32 * len(x) ** 2, torch.device("cpu"), "take fewer places"
        )
        super().__init__({"rho": Positive(), "alpha": Positive(), "sigma": Positive()})
        self._y = y.unsqueeze(-1)  # (N, 1)
        self._squares = (x[:, None] - x).square()  # (N, N)
        self._eye = torch.eye(len(x), dtype=torch.float64)
        gamma = 25 * math.log(4) - math.lgamma(25)
        normals = -0.5 * (len(x) + 2) * math.log(2 * math.pi) - math.log(2)
        self._constant = 0.0 if propto else gamma + normals

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        x, y = arrays(data, {"x": 1, "y": 1})
        return cls(x, y, propto=propto)

    def _factor(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rho, alpha, sigma (..., 3), the kernel without noise and L, (..., N, N) each."""
        scales = x.exp()
        rho, alpha, sigma = (scale[..., None, None] for scale in scales.unbind(-1))
        kernel = alpha.square() * (self._squares / (-2 * rho.square())).exp()
        L, info = torch.linalg.cholesky_ex(kernel + sigma * self._eye)
        return scales, kernel, torch.where(info[..., None, None] == 0, L, torch.nan)

    def log_prob(self, x: Tensor) -> Tensor:
        scales, _, L = self._factor(x)
        rho, alpha, sigma = scales.unbind(-1)
        whitened = torch.linalg.solve_triangular(L, self._y.expand(*L.shape[:-1], 1), upper=False)
        data = -0.5 * whitened.square().sum((-2, -1)) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        priors = 24 * x[..., 0] - 4 * rho - alpha.square() / 8 - sigma.square() / 2
        value = self._constant + data + priors + x.sum(-1)
        return torch.where(value.isnan(), -torch.inf, value)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        scales, kernel, L = self._factor(x)
        rho, alpha, sigma = scales.unbind(-1)
        inverse = torch.cholesky_inverse(L)
        a = inverse @ self._y
        B = 0.5 * (a @ a.mT - inverse)
        d_rho = (B * kernel * self._squares).sum((-2, -1)) / rho.square() + 25 - 4 * rho  # (3)
        d_alpha = 2 * (B * kernel).sum((-2, -1)) + 1 - alpha.square() / 4
        d_sigma = sigma * B.diagonal(dim1=-2, dim2=-1).sum(-1) + 1 - sigma.square()
        return torch.stack([d_rho, d_alpha, d_sigma], -1)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x), self.score(x)
