"""Counts with a Gaussian process for their log rate: gp_pois_regr.

    rho ~ Gamma(25, 4),  alpha ~ N(0, 2^2) on the half line, not renormalised,  z ~ N(0, I)               (1)
    K = alpha^2 exp(-|x_i - x_j|^2 / (2 rho^2)) + 1e-10 I = L L^T,  f = L z,  k ~ Poisson(exp f)          (2)
    u = (log rho, log alpha, z)
With g = k - exp f and h = L^T g, the score in z is h - z. In K it is B, from the differential of the Cholesky
factor, dL = L low(L^-1 dK L^-T), low keeping the lower triangle and half of the diagonal:
    dlog p = h^T low(L^-1 dK L^-T) z = <B, dK>,   B = L^-T low(h z^T) L^-1                                (3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from bayescore.checks import check_memory
from bayescore.rng import Streams
from bayescore.targets.constraints import Positive, Real
from bayescore.targets.model import ConstrainedModel, Values
from bayescore.targets.posterior_db.named_arrays import arrays

__all__ = ["GaussianProcessCounts"]

JITTER = 1e-10


class GaussianProcessCounts(ConstrainedModel):
    """Poisson counts at N places (2); D = N + 2.

    Arguments:
        x: places (N,).
        k: counts (N,).
        propto: drop the constants of the priors and of the likelihood, as Stan does.
    """

    name = "gp_pois_regr"

    def __init__(self, x: Tensor, k: Tensor, *, propto: bool = False) -> None:
        N = len(x)
        check_memory(f"a process at {N} places", 32 * N**2, torch.device("cpu"), "take fewer places")
        super().__init__({"rho": Positive(), "alpha": Positive(), "f_tilde": Real(N)})
        self._counts = k
        self._squares = (x[:, None] - x).square()  # (N, N)
        self._low = torch.ones(N, N, dtype=torch.float64).tril() - 0.5 * torch.eye(N, dtype=torch.float64)
        self._jitter = JITTER * torch.eye(N, dtype=torch.float64)
        gamma = 25 * math.log(4) - math.lgamma(25)
        normals = -0.5 * (N + 1) * math.log(2 * math.pi) - math.log(2)
        self._constant = 0.0 if propto else gamma + normals - float(torch.lgamma(k + 1).sum())

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        places, counts = arrays(data, {"x": 1, "k": 1})
        if (counts < 0).any() or (counts != counts.round()).any():
            raise ValueError(f"'k' must be whole numbers of at least 0; got {counts[:5].tolist()}, ...")
        return cls(places, counts, propto=propto)

    def _factor(self, rho: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel without jitter and L, (..., N, N) each; L is NaN where K is not positive definite."""
        kernel = (
            alpha[..., None, None].square() * (self._squares / (-2 * rho[..., None, None].square())).exp()
        )
        L, info = torch.linalg.cholesky_ex(kernel + self._jitter)
        return kernel, L if not info.any() else torch.where(info[..., None, None] == 0, L, torch.nan)

    def log_prob(self, x: Tensor) -> Tensor:
        rho, alpha, z = x[..., 0].exp(), x[..., 1].exp(), x[..., 2:]
        _, L = self._factor(rho, alpha)
        f = (L @ z.unsqueeze(-1)).squeeze(-1)
        rates = (self._counts * f - f.exp()).sum(-1)
        scales = 25 * x[..., 0] - 4 * rho + x[..., 1] - alpha.square() / 8  # (1) with the log-Jacobian
        value = self._constant + rates + scales - 0.5 * z.square().sum(-1)
        return torch.where(value.isnan(), -torch.inf, value)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        rho, alpha, z = x[..., 0].exp(), x[..., 1].exp(), x[..., 2:].unsqueeze(-1)
        kernel, L = self._factor(rho, alpha)
        h = L.mT @ (self._counts.unsqueeze(-1) - (L @ z).exp())  # (..., N, 1)
        W = self._low * (h * z.mT)
        B = torch.linalg.solve_triangular(L.mT, W, upper=True)
        B = torch.linalg.solve_triangular(L, B, upper=False, left=False)  # (3)
        d_rho = (B * kernel * self._squares).sum((-2, -1)) / rho.square()
        d_alpha = (2 * B * kernel).sum((-2, -1))
        first = torch.stack([d_rho + 25 - 4 * rho, d_alpha + 1 - alpha.square() / 4], -1)
        return torch.cat([first, (h - z).squeeze(-1)], -1)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x), self.score(x)

    def unconstrain(self, values: Mapping[str, Any]) -> Tensor:
        """As for every model; if f_tilde is missing it is computed from f, as L^-1 f."""
        names = ("rho", "alpha", "f")
        if "f_tilde" in values or not all(name in values for name in names):
            return super().unconstrain(values)
        rho, alpha, f = (torch.as_tensor(values[name], dtype=self.dtype) for name in names)
        if f.shape != (*rho.shape, len(self._counts)):
            raise ValueError(f"f must have the shape (..., {len(self._counts)}); got {tuple(f.shape)}")
        _, L = self._factor(rho, alpha)
        f_tilde = torch.linalg.solve_triangular(L, f.unsqueeze(-1), upper=False).squeeze(-1)
        return super().unconstrain({**values, "f_tilde": f_tilde})

    def _generate(self, values: Values, rng: torch.Generator) -> Values:  # noqa: ARG002
        _, L = self._factor(values["rho"], values["alpha"])
        return {"f": (L @ values["f_tilde"].unsqueeze(-1)).squeeze(-1)}
