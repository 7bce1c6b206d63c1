"""Hamiltonian moves of draws towards the target, in the coordinates of q.

A family draws x = T(e), e ~ N(0, I) (families/base.py), so that x has the density q. If e has the density
    log p(e) = log Phi(T(e)) - log q(T(e)) - |e|^2/2 + const                                              (1)
then x = T(e) has the density Phi, whether T can be inverted or not: (1) is Phi(x) times the law of e given x
under q. Its gradient is
    g(e) = J' (s(x) - s_q(x)) - e,     J the Jacobian of T at e                                           (2)
and where q agrees with the target, (1) is N(0, I), the easiest of all targets. One move of every draw is a
transition of Hamiltonian Monte Carlo: v ~ N(0, I), then L times
    v <- v + eps/2 g(e),     e <- e + eps v,     v <- v + eps/2 g(e)                                      (3)
and the end is taken with probability
    a = min(1, exp(log p(e') - log p(e) + (|v|^2 - |v'|^2)/2)),                                           (4)
else the draw stays. (3) is reversible whatever g is: it is -e where the score of a point with a finite
density is not finite. eps is drawn anew for every move, uniformly within a fifth of its scale, so that no
orbit closes. The scale begins at D^(-1/4) and, while it is adapted, is multiplied by exp(c (a - 0.8)) with
the mean a of all draws.

Draws to be moved are resampled by w^tau, with the largest tau in [0, 1] that leaves enough effective draws,
    1/sum w^2 >= least       for normalised w^tau:                                                        (5)
copies of a few draws would tell little of how fast moves forget.
That a map to a simple law makes HMC easy is the idea of NeuTra (Hoffman et al. 2019); that draws are
weighted, resampled and then moved, of Gilks and Berzuini (2001).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.targets.base import Target

__all__ = ["LEAPS", "Walkers", "can_move", "tempered"]

LEAPS = 4  # L
ACCEPTANCE = 0.8
GAIN = 0.7  # c of the first move; that of move k is c / sqrt(k)
JITTER = 0.2
BISECTIONS = 30


class _State(NamedTuple):
    """Points e with x = T(e), (1) and (2): (n, noise_dim), (n, D), (n,), (n, noise_dim)."""

    e: Tensor
    x: Tensor
    log_p: Tensor
    g: Tensor

    def where(self, taken: Tensor, other: _State) -> _State:
        """Rows of this state where `taken` (n,), else of the other."""
        column = taken.unsqueeze(-1)
        return _State(
            torch.where(column, self.e, other.e),
            torch.where(column, self.x, other.x),
            torch.where(taken, self.log_p, other.log_p),
            torch.where(column, self.g, other.g),
        )


def can_move(target: Target, family: Family) -> bool:
    """Whether (1) and (2) are there: an exact log density, and a family that transforms noise."""
    return target.has_density and not target.stochastic and family.reparametrised


def tempered(log_weights: Tensor, least: int) -> Tensor:
    """(5): normalised logarithms of w^tau, (n,), by bisection."""
    low, high = 0.0, 1.0
    if _effective(log_weights) >= least:
        return log_weights.log_softmax(0)
    for _ in range(BISECTIONS):
        tau = 0.5 * (low + high)
        low, high = (tau, high) if _effective(tau * log_weights) >= least else (low, tau)
    return (low * log_weights).log_softmax(0)


def _effective(log_weights: Tensor) -> float:
    return float(1 / log_weights.softmax(0).square().sum())


class Walkers:
    """Draws T(noise), noise (n, noise_dim), that are moved together.

    `x` (n, D) is where they are, `acceptance` the mean of (4) in the last move, and `score_calls` what all
    moves have cost. Points where the density is not finite are not taken.
    """

    def __init__(self, target: Target, family: Family, noise: Tensor, rng: torch.Generator) -> None:
        self._target, self._family, self._rng = target, family, rng
        self._now = _at(target, family, noise)
        self.score_calls = len(noise)
        self._scale = family.noise_dim**-0.25
        self._adapted = 0
        self.acceptance = math.nan

    @property
    def x(self) -> Tensor:
        return self._now.x

    def move(self, times: int = 1, *, adapt: bool = False) -> None:
        """Move all draws, and adapt the scale of eps to how many are accepted."""
        for _ in range(times):
            self._now, self.acceptance = _move(self._target, self._family, self._now, self._scale, self._rng)
            self.score_calls += LEAPS * len(self.x)
            if adapt:
                self._adapted += 1
                self._scale *= math.exp(GAIN / math.sqrt(self._adapted) * (self.acceptance - ACCEPTANCE))


def _move(
    target: Target, family: Family, start: _State, scale: float, rng: torch.Generator
) -> tuple[_State, float]:
    """One transition of every draw, and the mean of (4)."""
    dtype, device = start.e.dtype, start.e.device
    eps = scale * (1 + JITTER * (2 * torch.rand((), generator=rng, dtype=dtype, device=device) - 1))
    v = torch.randn(start.e.shape, generator=rng, dtype=dtype, device=device)
    energy = start.log_p - 0.5 * v.square().sum(-1)
    end = start
    for _ in range(LEAPS):  # (3)
        v = v + 0.5 * eps * end.g
        end = _at(target, family, end.e + eps * v)
        v = v + 0.5 * eps * end.g
    gain = end.log_p - 0.5 * v.square().sum(-1) - energy
    a = torch.nan_to_num(gain, nan=-torch.inf).clamp_max(0.0).exp()  # (4)
    return end.where(torch.rand(a.shape, generator=rng, dtype=dtype, device=device) < a, start), float(
        a.mean()
    )


def _at(target: Target, family: Family, e: Tensor) -> _State:
    """(1) and (2) at points e."""
    with torch.enable_grad():
        point = e.detach().requires_grad_()
        drawn = family.transform(point)
    x = drawn.detach()
    log_phi, score = target.log_prob_and_score(x)
    with torch.no_grad():
        log_q, score_q = family.log_prob(x), family.score(x)
    (pulled,) = torch.autograd.grad(drawn, point, score - score_q)
    log_p = log_phi - log_q - 0.5 * e.square().sum(-1)
    known = pulled.isfinite().all(-1, keepdim=True)
    g = torch.where(known, pulled, 0.0) - e
    return _State(e.detach(), x, torch.where(log_p.isfinite(), log_p, -torch.inf), g)
