"""Gaussians of one family at the places of a search, and the place to begin from.

From the local covariance V = F F^T at x, or a diagonal one:
    full        N(x, V)
    diagonal    N(x, diag(1 / (V^{-1})_ii)), the nearest in KL(q | N(x, V))                              (1)
    low-rank    in units of sqrt V_ii, A = the K leading eigenvectors times sqrt(l_k - 1), where l_k > 1, and
                psi = V_ii - (A A^T)_ii, kept above V_ii / 100                                           (2)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.initial.ascent import Place
from bayescore.targets.counting import Counted

__all__ = ["Normal", "best_start", "default_family", "start_points"]

Normal = FullGaussian | DiagonalGaussian | LowRankGaussian

FULL, LOW_RANK, RANK = 400, 5000, 20  # the largest dimension of each family, and the rank of the second
DRAWS = 32  # per candidate
TRIES = 100  # random points among which finite ones are sought


def default_family(dim: int, scale: float, dtype: torch.dtype, device: torch.device) -> Normal:
    """N(0, scale^2 I) in the family that suits a dimension."""
    if dim <= FULL:
        return FullGaussian.init(dim, scale=scale, dtype=dtype, device=device)
    if dim <= LOW_RANK:
        return LowRankGaussian.init(dim, RANK, scale=scale, dtype=dtype, device=device)
    return DiagonalGaussian.init(dim, scale=scale, dtype=dtype, device=device)


def start_points(counted: Counted, centre: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """The centre and uniform points within 2 of it where the density is finite, (at most count, D)."""
    spread = torch.rand(TRIES, len(centre), generator=rng, dtype=centre.dtype, device=centre.device)
    points = torch.cat([centre.unsqueeze(0), centre + 4 * spread - 2])
    for some in (points[:count], points):
        value, score = counted.both(some)
        fine = value.isfinite() & score.isfinite().all(-1)
        if fine.all():
            return some
    if not fine.any():
        raise ValueError(
            f"the log density or score is not finite at any of {len(points)} points around the start q0; "
            "move q0 to where the target lives (mean=, scale=) or check the target"
        )
    return points[fine][:count]


def best_start(counted: Counted, places: Sequence[Place], q0: Normal, rng: torch.Generator) -> Normal:
    """Of q0 and the local Gaussians the one with the largest ELBO over common noise."""
    x = torch.cat([place.x for place in places])
    finite = torch.cat([place.value for place in places]).isfinite()
    local = _gaussians(x[finite], torch.cat([place.factor for place in places])[finite], q0)
    parameters, first = local.parameters(), q0.parameters()
    candidates = q0.replace({k: torch.cat([first[k].unsqueeze(0), v]) for k, v in parameters.items()})
    noise = torch.randn(DRAWS, q0.noise_dim, generator=rng, dtype=q0.dtype, device=q0.device)
    draws = candidates.transform(noise.expand(*candidates.batch_shape, -1, -1))
    gaps = counted.value(draws) - candidates.log_prob(draws)
    elbo = gaps.mean(-1)
    return candidates[int(torch.where(elbo.isnan(), -torch.inf, elbo).argmax())]


def _gaussians(x: Tensor, factor: Tensor, like: Normal) -> Normal:
    """The local Gaussians in the family of `like`, a batch."""
    flat = factor.dim() == 2
    if isinstance(like, FullGaussian):
        if flat:
            return FullGaussian(x, torch.diag_embed(factor)).in_form(like.form)
        upper = torch.linalg.qr(factor.mT, mode="r").R
        signs = upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        return FullGaussian(x, upper.mT * signs).in_form(like.form)
    if isinstance(like, DiagonalGaussian):
        if flat:
            return DiagonalGaussian(x, factor.log())
        precision = torch.linalg.inv(factor).square().sum(-2)
        return DiagonalGaussian(x, -0.5 * precision.log())  # (1)
    variance = factor.square() if flat else factor.square().sum(-1)
    sd = variance.sqrt().unsqueeze(-1)
    if flat:
        columns = 0.1 * sd * like.columns / like.columns.norm(dim=0)
    else:
        scaled = factor / sd
        l, W = torch.linalg.eigh(scaled @ scaled.mT)
        l, W = l[:, -like.rank :], W[..., -like.rank :]
        columns = sd * W * (l - 1).clamp_min(1e-4).sqrt().unsqueeze(-2)  # (2)
    psi = torch.maximum(variance - columns.square().sum(-1), 0.01 * variance)
    return LowRankGaussian(x, psi.log(), columns)
