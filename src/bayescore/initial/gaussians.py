"""Local Gaussians at the iterates of an ascent, in the family of q0, and the choice of the best.

From the covariance V = F F^T at an iterate x, full or diagonal:
    full        N(x, V)
    diagonal    N(x, diag(1 / (V^{-1})_ii)), the nearest in KL(q | N(x, V))                              (1)
    low-rank    in units of sqrt V_ii, A = the K leading eigenvectors times sqrt(l_k - 1), where l_k > 1, and
                psi = V_ii - (A A^T)_ii, kept above V_ii / 100                                           (2)
    spiked      in units of s_i = 1 / sqrt((V^{-1})_ii), the K eigenvectors U whose eigenvalue differs most
                from 1, and h half its logarithm                                                         (3)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.families.spiked import SpikedGaussian
from bayescore.initial.ascent import Iterate
from bayescore.targets.counting import CountedDensity

__all__ = ["GaussianFamily", "best_gaussian", "largest_elbo", "local_gaussians"]

GaussianFamily = FullGaussian | DiagonalGaussian | LowRankGaussian | SpikedGaussian

DRAWS = 32  # per candidate


def best_gaussian(
    density: CountedDensity, iterates: Sequence[Iterate], q0: GaussianFamily, rng: torch.Generator
) -> GaussianFamily:
    """Of q0 and the local Gaussians the one with the largest ELBO over common noise."""
    x = torch.cat([iterate.x for iterate in iterates])  # (n, D)
    factor = torch.cat([iterate.factor for iterate in iterates])
    finite = torch.cat([iterate.value for iterate in iterates]).isfinite()
    return largest_elbo(density, local_gaussians(x[finite], factor[finite], q0), q0, rng)


def largest_elbo(
    density: CountedDensity, others: GaussianFamily, q0: GaussianFamily, rng: torch.Generator
) -> GaussianFamily:
    """Of q0 and a batch of others the one with the largest ELBO over common noise."""
    parameters, first = others.parameters(), q0.parameters()
    candidates = q0.replace({k: torch.cat([first[k].unsqueeze(0), v]) for k, v in parameters.items()})
    noise = torch.randn(DRAWS, q0.noise_dim, generator=rng, dtype=q0.dtype, device=q0.device)
    draws = candidates.transform(noise.expand(*candidates.batch_shape, -1, -1))  # (1 + n, DRAWS, D)
    elbo = (density.log_prob(draws) - candidates.log_prob(draws)).mean(-1)
    return candidates[int(torch.where(elbo.isnan(), -torch.inf, elbo).argmax())]


def local_gaussians(x: Tensor, factor: Tensor, like: GaussianFamily) -> GaussianFamily:
    """The local Gaussians N(x, F F^T) as a batch of the family of `like`."""
    diagonal = factor.dim() == 2
    if isinstance(like, FullGaussian):
        if diagonal:
            return FullGaussian(x, torch.diag_embed(factor)).in_form(like.form)
        upper = torch.linalg.qr(factor.mT, mode="r").R
        signs = upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        return FullGaussian(x, upper.mT * signs).in_form(like.form)
    if isinstance(like, DiagonalGaussian):
        if diagonal:
            return DiagonalGaussian(x, factor.log())
        precision = torch.linalg.inv(factor).square().sum(-2)
        return DiagonalGaussian(x, -0.5 * precision.log())  # (1)
    if isinstance(like, SpikedGaussian):
        return _spiked(x, factor, like)
    variance = factor.square() if diagonal else factor.square().sum(-1)
    sd = variance.sqrt().unsqueeze(-1)
    if diagonal:
        columns = 0.1 * sd * like.columns / like.columns.norm(dim=0)
    else:
        scaled = factor / sd
        l, W = torch.linalg.eigh(scaled @ scaled.mT)
        l, W = l[:, -like.rank :], W[..., -like.rank :]
        columns = sd * W * (l - 1).clamp_min(1e-4).sqrt().unsqueeze(-2)  # (2)
    psi = torch.maximum(variance - columns.square().sum(-1), 0.01 * variance)
    return LowRankGaussian(x, psi.log(), columns)


def _spiked(x: Tensor, factor: Tensor, like: SpikedGaussian) -> SpikedGaussian:
    """(3), or the diagonal alone with the directions of `like`."""
    n = len(x)
    if factor.dim() == 2:
        columns, zero = like.columns.expand(n, -1, -1), torch.zeros_like(like.log_stretch).expand(n, -1)
        return SpikedGaussian(x, factor.log(), zero, columns)
    log_sd = -0.5 * torch.linalg.inv(factor).square().sum(-2).log()
    scaled = factor * (-log_sd).exp().unsqueeze(-1)
    l, W = torch.linalg.eigh(scaled @ scaled.mT)
    h = 0.5 * l.clamp_min(torch.finfo(l.dtype).tiny).log()
    kept = h.abs().argsort(-1, descending=True)[:, : like.rank]
    columns = W.gather(-1, kept.unsqueeze(-2).expand(-1, like.dim, -1))
    return SpikedGaussian(x, log_sd, h.gather(-1, kept), columns)
