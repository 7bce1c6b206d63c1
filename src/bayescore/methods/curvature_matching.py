"""CurvatureMatching: Newton steps on the ELBO of a spiked Gaussian, with curvature from pairs of scores.

The ELBO of q = N(m, V) is stationary where E_q s = 0 and V^{-1} = E_q[-H], as far as the family can; H is the
Hessian of log Phi. In the coordinates in which q_t = N(m, F F^T) is N(0, I) the curvature M = F^T E_q[-H] F
would be I. A pair of scores on opposite sides of a point is one product with it:
    x = m +- F e_r,   y_r = F^T (s_- - s_+)/2 = M e_r,   g = mean of F^T (s_+ + s_-)/2                   (1)
exactly if log Phi is quadratic, else with the curvature averaged along the pair. R such products show where M
differs from I, and R + 1 further pairs, along a basis Q of what they show, measure it there:
    Q = orth[y_r - e_r, g],   Q^T M Q = Z diag(l) Z^T,   W = Q Z                                         (2)
    F' = F S,   S = I + W diag(l^{-rho/2} - 1) W^T                                                       (3)
The K directions in which F' differs most from its diagonal, those with the largest |h|, are kept as U and h.
The others, W_j with the stretches exp(h_j), and what no direction holds are left to the diagonal:
    t_i = sum_r e_ri (S M S e_r)_i / sum_r e_ri^2 + sum_j (exp(-2 h_j) - 1) W_ij^2                       (4)
    s_i <- s_i t_i^{-c_i rho'/2},   c_i = (t_i - 1)^2/((t_i - 1)^2 + 4 n_i)
where n_i is the variance of t_i, from its noise over r. U and h follow s, so that the covariance of wide
directions and the precision of narrow ones stay what they are: noise in t would be magnified by their ratio
otherwise. The mean moves by a Newton step, shortened by the largest curvature that was not kept:
    m <- m + eta F' F'^T E_q s,   eta = rho / max(1, exp(-2 h_j))                                        (5)

rho = trust min(1, 40/(t+1)): the schedule averages what is not Gaussian; rho' = trust min(1, 20/(t+1)), since
the diagonal is noisy even for a Gaussian, until all directions are found. Where there is a density, a q whose
ELBO over its own draws is smaller than the last one's by two standard errors is taken back, and trust falls
to a quarter; it doubles with every q that is not. No variance grows more than fourfold in a step, and a pair
counts as five medians at most.

At a Gaussian target inside the family all pairs say M = I, and the step is zero whatever the draws are. Cost:
4 R + 2 scores and O(D (K + R)^2) per step. This is ours: natural-gradient variational inference (Khan and Rue
2023) with the curvature of a randomised range finder (Halko, Martinsson and Tropp 2011).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.families.spiked import SpikedGaussian
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.rng import Streams

__all__ = ["CurvatureMatching", "CurvatureState"]

LEAST, MOST = 0.25, 1e4  # values of l and t that a step takes as they are
SMALLEST = 1e-7  # exp(h) of the narrowest direction
OUTLIER = 5.0  # medians
FULL_STEPS, DIAGONAL_STEPS = 40, 20  # with the full rho and rho'
FARTHEST = 1.0  # the longest step of the mean, in units of sqrt(D) standard deviations


@dataclass(frozen=True)
class CurvatureState(State):
    anchor: Tensor  # (F, P) the parameters of the last q that was not taken back
    value: Tensor  # (F,) its ELBO
    error: Tensor  # (F,) the standard error of that
    trust: Tensor  # (F,)


@dataclass(frozen=True)
class CurvatureMatching(Method):
    """Newton steps on the ELBO of a spiked Gaussian.

    Arguments:
        pairs: R, pairs of draws per step; a step takes 4 R + 2 score calls.
    """

    name: ClassVar[str] = "curvature"
    serves: ClassVar[tuple[str, ...]] = ("SpikedGaussian",)

    pairs: int = 16

    def __post_init__(self) -> None:
        check_count("pairs", self.pairs, 2)

    def init(self, family: Family, steps: int) -> CurvatureState:
        flat = family.flat()
        one = torch.ones_like(flat[..., 0])
        return CurvatureState(
            family=family,
            step=0,
            horizon=steps,
            anchor=flat,
            value=-torch.inf * one,
            error=0 * one,
            trust=one,
        )

    def step(self, state: CurvatureState, oracle: Oracle, streams: Streams) -> tuple[CurvatureState, Info]:
        q = state.family
        assert isinstance(q, SpikedGaussian)
        e = q.noise(streams, self.pairs)  # (F, R, D)
        y, g, values = _pairs(q, oracle, q.mean.unsqueeze(-2), e)  # (1)
        value, error = state.value, state.error
        if oracle.has_density:
            ratios = values - q.log_prob(q.transform(torch.cat([e, -e], -2)))
            value, error = ratios.mean(-1), ratios.std(-1) / ratios.shape[-1] ** 0.5
        worse = value < state.value - 2 * (error.square() + state.error.square()).sqrt()
        trust = torch.where(worse, state.trust / 4, (2 * state.trust).clamp_max(1.0))
        rho, slow = (
            trust[..., None, None] * min(1.0, count / (state.step + 1))
            for count in (FULL_STEPS, DIAGONAL_STEPS)
        )
        moved = self._moved(q, oracle, streams, e, y, g.mean(-2, keepdim=True), rho, slow).flat()
        kept = worse.unsqueeze(-1)
        new = CurvatureState(
            family=q.from_flat(torch.where(kept, state.anchor, moved)),
            step=state.step + 1,
            horizon=state.horizon,
            anchor=torch.where(kept, state.anchor, q.flat()),
            value=torch.where(worse, state.value, value),
            error=torch.where(worse, state.error, error),
            trust=trust,
        )
        return new, Info((y - e).square().mean((-2, -1)) + g.mean(-2).square().mean(-1))

    def _moved(
        self,
        q: SpikedGaussian,
        oracle: Oracle,
        streams: Streams,
        e: Tensor,
        y: Tensor,
        gradient: Tensor,
        rho: Tensor,
        slow: Tensor,
    ) -> SpikedGaussian:
        """q after (2) to (5)."""
        Q = torch.linalg.qr(torch.nan_to_num(torch.cat([y - e, gradient], -2)).mT).Q  # (F, D, R + 1)
        MQ, _, _ = _pairs(q, oracle, q.transform(q.noise(streams, Q.shape[-1])), Q.mT)  # (F, R + 1, D)
        T = MQ @ Q
        l, Z = torch.linalg.eigh(torch.nan_to_num(0.5 * (T + T.mT)))
        l, W = l.clamp(LEAST, MOST), Q @ Z  # (2)
        directions, log_stretch, left, extra = _kept(q, W, l.pow(-0.5 * rho.squeeze(-1)))  # (3)
        new = q.replace({**q.parameters(), "log_stretch": log_stretch, "columns": directions})
        stretch = (l.rsqrt() - 1).unsqueeze(-2)
        z = y + (e @ W * stretch) @ (Z.mT @ MQ)
        z = z + (z @ W * stretch) @ W.mT  # S M S e
        new = _rescaled(new, -0.5 * slow.squeeze(-1) * _diagonal(e, z, extra))  # (4)
        ahead = new.stretched(q.stretched(gradient, -1.0) * (new.sd / q.sd).unsqueeze(-2), 1.0)  # F'^T E s
        far = ahead.norm(dim=-1, keepdim=True) / (FARTHEST * q.dim**0.5)
        eta = rho / torch.maximum(left[..., None, None], far).clamp_min(1.0)
        mean = new.transform(eta * ahead).squeeze(-2)  # (5)
        return new.replace({**new.parameters(), "mean": mean})


def _pairs(q: SpikedGaussian, oracle: Oracle, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """F^T (s_- - s_+)/2 and F^T (s_+ + s_-)/2 at x +- F e, for rows e (F, R, D), and log Phi there."""
    shift, sd = q.stretched(e, 1.0) * q.sd.unsqueeze(-2), q.sd.unsqueeze(-2)
    points = torch.cat([x + shift, x - shift], -2)
    if oracle.has_density:
        values, s = oracle.log_prob_and_score(points)
    else:
        s = oracle.score(points)
        values = torch.zeros_like(s[..., 0])
    up, down = q.stretched(s * sd, 1.0).chunk(2, -2)  # I + U diag U^T is symmetric
    return _limited(0.5 * (down - up)), _limited(0.5 * (up + down)), values


def _limited(rows: Tensor) -> Tensor:
    """Rows (F, R, D), none of them longer than OUTLIER times the median."""
    size = rows.norm(dim=-1, keepdim=True)
    most = OUTLIER * size.median(-2, keepdim=True).values
    return rows * (most / size.clamp_min(torch.finfo(rows.dtype).tiny)).clamp_max(1.0)


def _kept(q: SpikedGaussian, W: Tensor, stretch: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U and h of the K directions that are kept; of the others the largest exp(-2 h) and their part of t.

    In K dimensions there are no others. All is done in the span B of the old U and of W, outside of which F
    is the diagonal.
    """
    U = q.directions
    B = torch.linalg.qr(torch.cat([U, W], -1)).Q  # (F, D, K + R + 1)
    u, w = B.mT @ U, B.mT @ W
    eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
    old = eye + (u * q.log_stretch.expm1().unsqueeze(-2)) @ u.mT
    factor = old @ (eye + (w * (stretch - 1).unsqueeze(-2)) @ w.mT)
    Z, c, _ = torch.linalg.svd(torch.nan_to_num(factor))
    h = c.clamp_min(SMALLEST).log()
    order = h.abs().argsort(-1, descending=True)
    kept, dropped = order[..., : q.rank], order[..., q.rank :]
    chosen = Z.gather(-1, kept.unsqueeze(-2).expand(*Z.shape[:-1], -1))
    rest = Z.gather(-1, dropped.unsqueeze(-2).expand(*Z.shape[:-1], -1))
    left = (-2 * h.gather(-1, dropped)).exp()  # (F, R + 1)
    extra = (B @ rest).square() @ (left - 1).unsqueeze(-1)
    largest = left.amax(-1) if left.shape[-1] else torch.zeros_like(h[..., 0])
    return B @ chosen, h.gather(-1, kept), largest, extra.squeeze(-1)


def _diagonal(e: Tensor, z: Tensor, extra: Tensor) -> Tensor:
    """c log t of (4), from R rows e and z = S M S e."""
    weight = e.square().mean(-2)
    excess = (e * (z - e)).mean(-2) / weight
    residual = e * (z - e) - excess.unsqueeze(-2) * e.square()
    noise = residual.square().mean(-2) / (e.shape[-2] * weight.square())
    excess = excess + extra
    size = excess.square()
    trusted = size / (size + 4 * noise).clamp_min(torch.finfo(e.dtype).tiny)
    return trusted * (1 + excess).clamp(LEAST, MOST).log()


def _rescaled(q: SpikedGaussian, log_ratio: Tensor) -> SpikedGaussian:
    """q with s exp(log_ratio) on its diagonal, and with the same wide and narrow directions outside of it."""
    ratio, U, h = log_ratio.exp().unsqueeze(-1), q.directions, q.log_stretch.unsqueeze(-2)
    narrow = ratio * U * (-2 * h).expm1().clamp_min(0).sqrt()  # what they add to the precision
    wide = U / ratio * (2 * h).expm1().clamp_min(0).sqrt()  # to the covariance
    B = torch.linalg.qr(narrow + wide).Q  # (F, D, K): a direction is wide or narrow
    n, w = B.mT @ narrow, B.mT @ wide
    eye = torch.eye(q.rank, dtype=q.dtype, device=q.device)
    inner = torch.linalg.inv_ex(eye + n @ n.mT).inverse + w @ w.mT
    c, Z = torch.linalg.eigh(torch.nan_to_num(inner))
    log_stretch = 0.5 * c.clamp_min(SMALLEST**2).log()
    changed = {"log_sd": q.log_sd + log_ratio, "log_stretch": log_stretch, "columns": B @ Z}
    return q.replace({**q.parameters(), **changed})
