"""Gaussian with a full covariance, stored as a triangular factor of its covariance or its precision.

L is lower triangular with a positive diagonal; the parameters are the mean m and the matrix R that equals
L off the diagonal and log L on it. With d = x - m and e ~ N(0, I):

    form      matrix           draw                  score g(x)
    covariance    V = L L^T        x = m + L e           -L^{-T} L^{-1} d                      (1)
    precision     P = L L^T        x = m + L^{-T} e      -L L^T d                              (2)

    log q(x) = -D/2 log 2 pi -+ sum log L_ii - |u|^2 / 2,   u = L^{-1} d  or  L^T d            (3)
    entropy  =  D/2 (1 + log 2 pi) +- sum log L_ii                                             (4)

Pullback, the gradient of sum_s e_s . g(x_s) for fixed e:
    covariance: h = V^{-1} e;  m: sum h;  L: -tril((h g^T + g h^T) L)                          (5)
    precision:  u = L^T d, w = L^T e;  m: sum L w;  L: -tril(e u^T + d w^T)                    (6)
Gradient of sum_s c_s log q(x_s) for fixed c:
    covariance: m: -sum c g;  L: -tril(g (c u)^T) - diag(sum c / L_ii)                         (7)
    precision:  m: -sum c g;  L: -tril(d (c u)^T) + diag(sum c / L_ii)                         (8)
The diagonal of a gradient in R is that in L times L_ii. Points are rows, so that L^T d reads d @ L.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bayescore.checks import check_count, check_memory, check_shape
from bayescore.families.base import Family, Parameters, Pullback
from bayescore.families.factor import derivative, factor_from_raw, lower_triangle, raw_from_factor
from bayescore.families.matching import Matching, PrecisionMatching
from bayescore.rng import generator

__all__ = ["Form", "FullGaussian", "Jet", "initial_mean"]

Form = Literal["covariance", "precision"]
Jet = Callable[[Tensor, Tensor | None], Parameters]
LOG_2PI = math.log(2 * math.pi)


def initial_mean(
    dim: int, mean: Tensor | None, seed: int | None, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """The mean of a new family: the given one, else zero, or a draw of N(0, I) if there is a seed."""
    check_count("dim", dim)
    if mean is not None:
        mean = torch.as_tensor(mean, dtype=dtype, device=device)
        check_shape("mean", mean, (dim,))
        return mean
    if seed is None:
        return torch.zeros(dim, dtype=dtype, device=device)
    return torch.randn(dim, generator=generator(seed, device, "family"), dtype=dtype, device=device)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, without the overhead of broadcasting if both are batches of matrices."""
    return torch.bmm(a, b) if a.dim() == 3 == b.dim() and a.shape[0] == b.shape[0] else a @ b


class FullGaussian(Family):
    """N(m, V) with a full covariance matrix.

    Arguments:
        mean: (D,), or (F, D) for a batch.
        factor: lower triangular L (D, D) with a positive diagonal, or (F, D, D).
        form: what L L^T is, "covariance" or "precision".

    >>> FullGaussian.init(3).log_prob(torch.zeros(3, dtype=torch.float64))
    tensor(-2.7568, dtype=torch.float64)
    """

    name = "full"
    closed_form = True

    def __init__(self, mean: Tensor, factor: Tensor, form: Form = "covariance") -> None:
        check_shape("mean", mean, ("D",))
        dim = mean.shape[-1]
        check_shape("factor", factor, (dim, dim))
        if factor.dtype != mean.dtype or factor.device != mean.device:
            raise TypeError(
                f"mean ({mean.dtype}, {mean.device}) and factor ({factor.dtype}, {factor.device}) must agree"
            )
        if not torch.equal(factor, factor.tril()):
            raise ValueError("factor must be lower triangular; FullGaussian.from_moments takes a covariance")
        if factor.shape[:-2] != mean.shape[:-1]:
            raise ValueError(
                f"mean {tuple(mean.shape)} and factor {tuple(factor.shape)} disagree in their batch"
            )
        if form not in ("covariance", "precision"):
            raise ValueError(f"form must be 'covariance' or 'precision'; got {form!r}")
        if not (factor.diagonal(dim1=-2, dim2=-1) > 0).all():
            raise ValueError(
                "factor must have a positive diagonal; use FullGaussian.from_moments for a covariance"
            )
        self.mean, self.raw, self.form, self.dim = mean, raw_from_factor(factor), form, dim

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
        m = initial_mean(dim, mean, seed, dtype, device)
        if scale <= 0:
            raise ValueError(f"scale must be positive; got {scale}")
        need = 3 * dim * dim * torch.finfo(dtype).bits // 8
        check_memory(
            f"a full Gaussian in {dim} dimensions", need, m.device, "use a diagonal or low-rank family"
        )
        return cls(m, scale * torch.eye(dim, dtype=dtype, device=device))

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> Self:
        """The Gaussian with the given mean (..., D) and covariance (..., D, D)."""
        check_shape("covariance", covariance, (mean.shape[-1], mean.shape[-1]))
        if not torch.allclose(covariance, covariance.mT, rtol=1e-5, atol=0.0):
            raise ValueError("covariance must be symmetric positive definite; it is not symmetric")
        factor, info = torch.linalg.cholesky_ex(covariance)
        if info.any():
            raise ValueError("covariance must be symmetric positive definite; its factorisation failed")
        return cls(mean, factor)

    def parameters(self) -> Parameters:
        return {"mean": self.mean, "raw": self.raw}

    def replace(self, parameters: Parameters) -> Self:
        new = object.__new__(type(self))
        new.mean, new.raw, new.form, new.dim = parameters["mean"], parameters["raw"], self.form, self.dim
        return new

    def config(self) -> dict[str, Any]:
        return {"form": self.form, "dim": self.dim}

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:
        return cls(parameters["mean"], factor_from_raw(parameters["raw"]), config["form"])

    @property
    def batch_shape(self) -> torch.Size:
        return self.mean.shape[:-1]

    @property
    def factor(self) -> Tensor:
        """L, (*batch, D, D)."""
        return factor_from_raw(self.raw)

    @property
    def covariance(self) -> Tensor:
        """V, (*batch, D, D)."""
        if self.form == "covariance":
            return self.factor @ self.factor.mT
        return torch.cholesky_inverse(self.factor)

    def in_form(self, form: str) -> Self:
        if form not in ("covariance", "precision"):
            raise ValueError(f"form must be 'covariance' or 'precision'; got {form!r}")
        if form == self.form:
            return self
        # The other matrix is A^T A with A = L^{-1}; A = Q R gives it as R^T R without squaring A.
        eye = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        inverse = torch.linalg.solve_triangular(self.factor, eye.expand_as(self.raw), upper=False)
        upper = torch.linalg.qr(inverse, mode="r").R
        signs = upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        return type(self)(self.mean, upper.mT * signs, "precision" if form == "precision" else "covariance")

    def transform(self, noise: Tensor) -> Tensor:
        L, m = self.factor, self.mean.unsqueeze(-2)
        if self.form == "covariance":
            return m + noise @ L.mT  # (1)
        return m + torch.linalg.solve_triangular(L, noise, upper=False, left=False)  # (2)

    def _whiten(self, x: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
        """m - x and -u, (..., S, D): with these signs no product below needs a minus."""
        d = self.mean.unsqueeze(-2) - x
        if self.form == "covariance":
            return d, torch.linalg.solve_triangular(L.mT, d, upper=True, left=False)
        return d, product(d, L)

    def _unwhiten(self, u: Tensor, L: Tensor) -> Tensor:
        """The score from -u."""
        if self.form == "covariance":
            return torch.linalg.solve_triangular(L, u, upper=False, left=False)
        return product(u, L.mT)

    def log_prob(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.log_prob(x.unsqueeze(0)).squeeze(-1)
        _, u = self._whiten(x, self.factor)
        sign = -1.0 if self.form == "covariance" else 1.0
        log_det = self.raw.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        return sign * log_det - 0.5 * (u.square().sum(-1) + self.dim * LOG_2PI)  # (3)

    def score(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.score(x.unsqueeze(0)).squeeze(0)
        L = self.factor
        return self._unwhiten(self._whiten(x, L)[1], L)

    def score_and_pullback(self, x: Tensor) -> tuple[Tensor, Pullback]:
        _, g, pull = self.jet(x)
        return g, lambda e: pull(e, None)

    def matching(self, x: Tensor) -> Matching:
        if self.form == "covariance":
            return super().matching(x)
        return PrecisionMatching(self.mean, self.raw, x, lower_triangle(self.raw))

    def jet(self, x: Tensor) -> tuple[Tensor, Tensor, Jet]:
        """-u, the score, and the gradient of sum_s e_s . g(x_s) + c_s log q(x_s) in the parameters."""
        L = self.factor
        d, u = self._whiten(x, L)
        g = self._unwhiten(u, L)

        def pull(e: Tensor, c: Tensor | None) -> Parameters:
            if self.form == "covariance":
                h = torch.linalg.solve_triangular(L.mT, e, upper=True, left=False)
                h = torch.linalg.solve_triangular(L, h, upper=False, left=False)
                hg = product(h.mT, g)
                mean, factor, sign = h, -product(hg + hg.mT, L), -1.0  # (5)
                if c is not None:
                    factor = factor + product(g.mT, c.unsqueeze(-1) * u)  # (7)
            else:
                w = product(e, L)
                mean, sign = product(w, L.mT), 1.0
                if c is not None:
                    w = torch.addcmul(w, c.unsqueeze(-1), u, value=-1.0)  # (8)
                factor = product(e.mT, u) + product(d.mT, w)  # (6)
            raw = factor * derivative(L)
            if c is not None:
                mean = torch.addcmul(mean, c.unsqueeze(-1), g, value=-1.0)
                raw.diagonal(dim1=-2, dim2=-1).add_(sign * c.sum(-1, keepdim=True))
            return {"mean": mean.squeeze(-2) if mean.shape[-2] == 1 else mean.sum(-2), "raw": raw}

        return u, g, pull

    def standardise(self, score: Tensor) -> Tensor:
        """Scores of another density in the coordinates in which this one is N(0, I)."""
        L = self.factor
        if self.form == "covariance":
            return product(score, L)
        return torch.linalg.solve_triangular(L.mT, score, upper=True, left=False)

    def compose(self, inner: Self) -> Self:
        """The density of this family's draws if their noise comes from `inner` instead of N(0, I)."""
        L = self.factor
        if self.form == "covariance":
            shift = product(inner.mean.unsqueeze(-2), L.mT)
        else:
            shift = torch.linalg.solve_triangular(L, inner.mean.unsqueeze(-2), upper=False, left=False)
        raw = raw_from_factor(product(L, inner.factor))
        return self.replace({"mean": self.mean + shift.squeeze(-2), "raw": raw})

    def entropy(self) -> Tensor:
        sign = 1.0 if self.form == "covariance" else -1.0
        return 0.5 * self.dim * (1 + LOG_2PI) + sign * self.raw.diagonal(dim1=-2, dim2=-1).sum(-1)  # (4)

    def _describe(self) -> str:
        return f"dim={self.dim}, form={self.form!r}"
