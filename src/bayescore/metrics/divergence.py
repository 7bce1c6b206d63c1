"""Divergences between a target and a family.

KL(N(m, V) | N(m', V')) = (tr(V'^{-1} V) + |m' - m|^2_{V'^{-1}} - D + log det V' - log det V) / 2    (1)
KL(pi | q) = E_pi [ log pi - log q ]     forward; over exact draws, or (1) for two Gaussians          (2)
ELBO(q)    = E_q [ log Phi - log q ]                                                                  (3)
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.targets.base import Target
from bayescore.targets.gaussians import Gaussian, Known

__all__ = ["ELBO", "ForwardKL", "gaussian_kl", "parameter_errors"]

Normal = FullGaussian | DiagonalGaussian | LowRankGaussian


def gaussian_kl(p: Normal, q: Normal) -> Tensor:
    """KL(p | q), (1), batched; q enters through its score and entropy, so that no matrix of q is inverted."""
    dense = p if isinstance(p, FullGaussian) else FullGaussian.from_moments(p.mean, p.covariance)
    columns = dense.in_form("covariance").factor.mT  # rows are the columns of V^{1/2}
    shift = (p.mean - q.mean).unsqueeze(-2)
    rows = torch.cat([columns.expand(*shift.shape[:-2], *columns.shape[-2:]), shift], -2)  # (*batch, D+1, D)
    squares = -(rows * q.score(q.mean.unsqueeze(-2) + rows)).sum((-2, -1))  # -score(m' + y) = V'^{-1} y
    return 0.5 * (squares - p.dim) + q.entropy() - p.entropy()


class ForwardKL:
    """KL(pi | q), (2): closed form for two Gaussians, else over one fixed set of exact draws.

    Arguments:
        target: a target with exact draws, or a batch of them.
        draws: the number of draws; None requires the closed form.
        seed: of the draws.
    """

    def __init__(self, target: Target, draws: int | None = 100_000, seed: int = 0) -> None:
        if draws is not None:
            check_count("draws", draws)
        elif not isinstance(target, Gaussian):
            raise ValueError(f"{type(target).__name__} has no closed-form KL; give a number of draws")
        self.target, self.draws, self.seed = target, draws, seed
        if isinstance(target, Gaussian):
            assert isinstance(target.density, FullGaussian)
            self._gaussian = target.density.in_form("covariance")
        self._points: Tensor | None = None
        self._log_pi: Tensor | None = None

    def __call__(self, family: Family, target: Target | None = None) -> Tensor:  # noqa: ARG002
        if isinstance(self.target, Gaussian) and isinstance(family, Normal):
            return gaussian_kl(self._gaussian, family)
        if self._points is None or self._log_pi is None:
            if self.draws is None:
                raise ValueError(f"a {type(family).__name__} has no closed-form KL; give a number of draws")
            self._points = self._draw(self.draws)
            self._log_pi = self.target.log_prob(self._points).mean(-1)
        points = self._points
        if family.batch_shape and points.dim() == 2:  # one target for all families
            points = points.expand(*family.batch_shape, *points.shape)
        return self._log_pi - family.log_prob(points).mean(-1)

    def _draw(self, n: int) -> Tensor:
        """Draws (n, D), or (F, n, D) in which no member depends on the others."""
        if not isinstance(self.target, Known) or not self.target.batch_shape:
            return self.target.sample(n, self.seed)
        members = range(self.target.batch_shape[0])
        return torch.stack([self.target[i].sample(n, self.seed) for i in members])


class ELBO:
    """ELBO of a family (3) over one fixed set of noise, which makes differences between steps precise."""

    def __init__(self, draws: int = 64, seed: int = 0) -> None:
        check_count("draws", draws)
        self.draws, self.seed = draws, seed

    def __call__(self, family: Family, target: Target) -> Tensor:
        shape = (1,) * len(family.batch_shape) + (self.draws, family.noise_dim)
        rng = torch.Generator(device=family.device).manual_seed(self.seed)
        noise = torch.randn(shape, generator=rng, dtype=family.dtype, device=family.device)
        x = family.transform(noise.expand(*family.batch_shape, -1, -1))
        return (target.log_prob(x) - family.log_prob(x)).mean(-1)


def parameter_errors(target: Gaussian, family: Normal) -> tuple[Tensor, Tensor]:
    """|m - m*|_2 and |V - V*|_Frobenius, as in Fig. 1 of the paper."""
    mean = (family.mean - target.mean).norm(dim=-1)
    return mean, torch.linalg.matrix_norm(family.covariance - target.covariance)
