"""The ascent: climbs of a log density towards a mode, from several points at once, with its curvature.

At a point x with score s the curvature A comes from central differences of the score, one pair per
coordinate. In coordinates in which its diagonal is +-1, its eigenvalues are made positive:
    A e_i = (s(x - h_i e_i) - s(x + h_i e_i)) / (2 h_i)                                                   (1)
    S A S = W diag(l) W^T,   S = diag(1/sqrt|A_ii|);   F = S W diag(1/sqrt|l|);   q = N(x, F F^T)          (2)
    x <- x + a F F^T s,   a the best of 2, 1, 1/2, 1/4, ...        a Newton step that avoids saddles       (3)
    |F^T s|^2 / 2                                                  predicted gain of the step, in nats     (4)
A mode is a point where all l > 0 and (4) is below a thousandth. Where D is too large for (1), L-BFGS climbs,
and at its end the curvature along each coordinate is estimated from random signs v:
    A_ii = E [ v_i (A v)_i ],   A v = (s(x - h v) - s(x + h v)) / (2 h)                                   (5)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayescore.targets.counting import CountedDensity

__all__ = ["Iterate", "lbfgs", "newton"]

MODE_GAP = 1e-3  # largest predicted gain (4) at a mode, in nats
MIN_CURVATURE = 1e-6  # along a coordinate; it limits standard deviations to 1000
LBFGS_MIN_GAIN = 1e-3  # nats: an iteration of L-BFGS that gains less is the last
LBFGS_MEMORY = 8  # steps that L-BFGS keeps
LINE_SEARCH_TRIALS = 12  # evaluations of one line search
PROBES = 32  # vectors of random signs in (5)


@dataclass(frozen=True)
class Iterate:
    """The points of S climbs after the same number of iterations, with values and local Gaussians there."""

    x: Tensor  # (S, D)
    value: Tensor  # (S,), the log density
    factor: Tensor  # (S, D, D), F of the local Gaussian N(x, F F^T), or (S, D) of a diagonal one
    at_mode: Tensor  # (S,)


def newton(density: CountedDensity, x: Tensor, iterations: int = 25) -> list[Iterate]:
    """Newton climbs (3) from finite points x (S, D) until the first one is at a mode; all iterates."""
    lengths = 0.5 ** torch.arange(-1, 9, dtype=x.dtype, device=x.device)
    iterates = []
    for iteration in range(iterations + 1):
        here, step = _newton_step(density, x)
        iterates.append(here)
        if here.at_mode.any() or iteration == iterations:
            break
        far = (step.abs() / (10 * (1 + x.abs()))).amax(-1, keepdim=True).clamp_min(1.0)
        trial = x.unsqueeze(1) + lengths[:, None] * (step / far).unsqueeze(1)  # (S, 10, D)
        best, which = density.log_prob(trial).max(-1)
        rises = best > here.value
        if not rises.any():
            break
        x = torch.where(rises.unsqueeze(-1), trial[torch.arange(len(x)), which], x)
    return iterates


def _newton_step(density: CountedDensity, x: Tensor) -> tuple[Iterate, Tensor]:
    """(1), (2) and (4) at points (S, D), and the steps of (3), of length a = 1."""
    S, D = x.shape
    h = torch.finfo(x.dtype).eps ** (1 / 3) * (1 + x.abs())  # (S, D)
    shift = torch.diag_embed(h)
    around = torch.cat([x.unsqueeze(1) + shift, x.unsqueeze(1) - shift, x.unsqueeze(1)], 1)  # (S, 2 D + 1, D)
    value, score = density.log_prob_and_score(around.reshape(-1, D))
    score = score.reshape(S, 2 * D + 1, D)
    A = (score[:, D : 2 * D] - score[:, :D]) / (2 * h.unsqueeze(-1))
    A = 0.5 * (A + A.mT)
    size = A.diagonal(dim1=-2, dim2=-1).abs()
    scale = torch.maximum(size, 1e-10 * size.amax(-1, keepdim=True)).clamp_min(MIN_CURVATURE).rsqrt()
    l, W = torch.linalg.eigh(scale.unsqueeze(-1) * A * scale.unsqueeze(-2))
    positive = torch.maximum(l.abs(), 1e-9 * l.abs().amax(-1, keepdim=True)).clamp_min(1e-9)
    factor = scale.unsqueeze(-1) * W * positive.rsqrt().unsqueeze(-2)
    inner = (factor.mT @ score[:, -1].unsqueeze(-1)).squeeze(-1)
    at_mode = (l > 0).all(-1) & (0.5 * inner.square().sum(-1) < MODE_GAP)
    step = (factor @ inner.unsqueeze(-1)).squeeze(-1)
    return Iterate(x, value.reshape(S, -1)[:, -1], factor, at_mode), step


def lbfgs(density: CountedDensity, x: Tensor, rng: torch.Generator, iterations: int = 100) -> list[Iterate]:
    """L-BFGS climbs from finite points x (S, D); the first iterate and the last."""
    value, score = density.log_prob_and_score(x)
    first = Iterate(x, value, torch.ones_like(x), torch.zeros_like(value, dtype=torch.bool))
    pairs: list[tuple[Tensor, Tensor]] = []
    active = torch.ones_like(value, dtype=torch.bool)
    for _ in range(iterations):
        p = _direction(score, pairs)
        p = torch.where(((score * p).sum(-1) > 0).unsqueeze(-1), p, score)
        far = (p.abs() / (10 * (1 + x.abs()))).amax(-1).clamp_min(1.0)
        length = 1 / far if pairs else 1 / score.norm(dim=-1).clamp_min(1.0)
        new_x, new_value, new_score = _line_search(density, (x, value, score), p, length, active)
        pairs = [*pairs, (new_x - x, score - new_score)][-LBFGS_MEMORY:]
        active = active & (new_value - value > LBFGS_MIN_GAIN)
        x, value, score = new_x, new_value, new_score
        if not active.any():
            break
    return [first, Iterate(x, value, _diagonal_curvature(density, x, rng).rsqrt(), ~active)]


def _diagonal_curvature(density: CountedDensity, x: Tensor, rng: torch.Generator) -> Tensor:
    """(5) at points (S, D), two standard errors up: a start that is too narrow is safe, a wide one is not.

    Entries that are not clearly positive are replaced by the mean absolute entry.
    """
    S, D = x.shape
    v = torch.randint(0, 2, (PROBES, 1, D), generator=rng, device=x.device).to(x.dtype) * 2 - 1
    h = torch.finfo(x.dtype).eps ** (1 / 3) * (1 + x.abs().amax(-1, keepdim=True))  # (S, 1)
    around = torch.cat([x + h * v, x - h * v])  # (2 PROBES, S, D)
    up, down = density.log_prob_and_score(around.reshape(-1, D))[1].reshape(2, PROBES, S, D)
    products = v * (down - up) / (2 * h)
    A = products.mean(0) + 2 * products.std(0) / PROBES**0.5
    typical = A.abs().mean(-1, keepdim=True).clamp_min(MIN_CURVATURE)
    return torch.where(A / typical > 0.01, A, typical)


def _direction(score: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The inverse curvature times the score (S, D), by the two-loop recursion of L-BFGS.

    A pair (step, change of score) along which the curvature is not positive is left out, climb by climb.
    """
    q, known = score, []
    scale = torch.ones_like(score[:, :1])
    for d, y in pairs:
        dy = (d * y).sum(-1, keepdim=True)
        usable = dy > 1e-10 * d.norm(dim=-1, keepdim=True) * y.norm(dim=-1, keepdim=True)
        known.append((d, y, torch.where(usable, 1 / torch.where(usable, dy, 1.0), 0.0)))
        scale = torch.where(usable, dy / y.square().sum(-1, keepdim=True).clamp_min(1e-300), scale)
    alphas = []
    for d, y, rho in reversed(known):
        alphas.append(rho * (d * q).sum(-1, keepdim=True))
        q = q - alphas[-1] * y
    q = q * scale
    for (d, y, rho), a in zip(known, reversed(alphas), strict=True):
        q = q + (a - rho * (y * q).sum(-1, keepdim=True)) * d
    return q


def _line_search(
    density: CountedDensity, here: tuple[Tensor, Tensor, Tensor], p: Tensor, a: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A step along p, by bracketing, that satisfies the Wolfe conditions; else the best point tried."""
    x, value, score = here
    slope = (score * p).sum(-1)
    low, high, active = torch.zeros_like(a), torch.full_like(a, torch.inf), active.clone()
    best = x.clone(), value.clone(), score.clone()
    for _ in range(LINE_SEARCH_TRIALS):
        rows = active.nonzero().flatten()
        if not len(rows):
            break
        trial = x[rows] + a[rows].unsqueeze(-1) * p[rows]
        v, s = density.log_prob_and_score(trial)
        enough = v >= value[rows] + 1e-4 * a[rows] * slope[rows]
        steep = enough & ((s * p[rows]).sum(-1) > 0.9 * slope[rows])
        better = enough & (v >= best[1][rows])
        for kept, new in zip(best, (trial, v, s), strict=True):
            kept[rows[better]] = new[better]
        low[rows] = torch.where(steep, a[rows], low[rows])
        high[rows] = torch.where(enough, high[rows], a[rows])
        active[rows[enough & ~steep]] = False
        a = torch.where(high.isinf(), 2 * a, torch.where(low > 0, 0.5 * (low + high), 0.3 * high))
    return best
