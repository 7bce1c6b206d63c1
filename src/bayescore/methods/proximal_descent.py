"""Proximal score matching by descent: Algorithm 1 of Kim, "Large-scale Score-based Variational Posterior
Inference for Bayesian Deep Neural Networks" (arXiv 2602.05873).

    Input: T iterations, N steps per iteration, S draws, alpha_t = t/T, initial q_0.
    For t = 0, ..., T-1:
        draw theta_i ~ q_t, i = 1..S
        compute the noisy mini-batch scores s_i at theta_i
        for step = 0, ..., N-1:
            lambda <- lambda - eta d loss/d lambda                                                     (1)
        q_{t+1} = q_lambda
with the loss and its gradient as in methods/inner_loop.py, by Adam or SGD. `step` below is one iteration. For
a diagonal Gaussian the inner loop is elementwise: the rule of the network optimizer of the same name,
rules/inner.py. Full Gaussians and mixtures are parametrised by the Cholesky factor of the precision, in which
the score is bilinear; with the factor of the covariance the same algorithm diverges on real posteriors.

Two safeguards, neither in the paper:
    floor    under Adam's divisor, methods/inner_loop.py (3), a share kappa of the size that the gradient has
             for the score of q_t itself; for a diagonal Gaussian its expectation, rules/inner.py.     (2)
    clip     s_i is replaced by g_t + r min(1, c med/|r|), r = s_i - g_t, med a running median of |r|,
             moved by a factor exp(+-0.05) per iteration.                                              (3)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count, check_number
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.matching import Matching
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.methods.gradient_step import GradientStep, Schedule, check_schedule, schedule_value
from bayescore.methods.inner_loop import adam_floor, run_inner_loop
from bayescore.rng import Streams
from bayescore.rules.draws import Draws
from bayescore.rules.inner import InnerOptions, inner_corrections, inner_steps

__all__ = ["ProximalDescent", "ProximalDescentInfo", "ProximalDescentState"]

Moments = tuple[Tensor, Tensor, Tensor]  # first, second, scale


@dataclass(frozen=True)
class ProximalDescentState(State):
    first: Tensor  # (F, P) first moment
    second: Tensor  # (F, P) second moment; (F, 0) with SGD
    scale: Tensor  # (F, P) running mean square of J^T 2 g_t, for the floor; (F, 0) where it is not needed
    median: Tensor  # (F,) running median of |r|; 0 before the first step


@dataclass(frozen=True)
class ProximalDescentInfo(Info):
    """loss is the score mismatch (1/S) sum |g_t - s|^2 before the step."""

    clipped: Tensor  # (F,) share of the S residuals that were clipped


@dataclass(frozen=True)
class ProximalDescent(Method):
    """Algorithm 1.

    Arguments:
        inner_steps: N, descent steps per iteration; they cost no score calls.
        draws: S, draws and score calls per iteration.
        alpha: weight of the proximal term: "linear" t/T, "reverse" 1-t/T, a number, or f(t, T).
        lr: learning rate eta; None means the family's default, 0.01 (zuko flows: 0.001).
        schedule: how lr changes: "cosine", "constant", "reverse" or f(t, T).
        optimizer: "adam" or "sgd" (with `momentum`).
        reset: forget the optimizer's moments at every iteration.
        floor: kappa of (2); 0 gives plain Adam.
        clip: c of (3), e.g. 2 for noisy scores; None: no clipping.

    >>> ProximalDescent(inner_steps=2, lr=0.03)
    ProximalDescent(inner_steps=2, draws=1, alpha='linear', lr=0.03, ...)
    """

    name: ClassVar[str] = "descent"
    form: ClassVar[str] = "precision"
    serves: ClassVar[tuple[str, ...]] = (
        "FullGaussian",
        "DiagonalGaussian",
        "LowRankGaussian",
        "SpikedGaussian",
        "GaussianMixture",
        "PlanarFlow",
        "CouplingFlow",
        "ZukoFlow",
    )

    inner_steps: int = 20
    draws: int = 1
    alpha: Schedule = "linear"
    lr: float | None = None
    schedule: Schedule = "cosine"
    optimizer: str = "adam"
    momentum: float = 0.0
    reset: bool = False
    floor: float = 0.1
    clip: float | None = None

    def step(
        self, state: ProximalDescentState, oracle: Oracle, streams: Streams
    ) -> tuple[ProximalDescentState, ProximalDescentInfo]:
        q, t, T = state.family, state.step, state.horizon
        noise = q.noise(streams, self.draws)
        theta = q.transform(noise)  # theta_i ~ q_t, (F, S, D)
        s = oracle.score(theta)  # noisy scores, once per iteration
        g_t = q.score(theta)
        mismatch = (g_t - s).square().sum(-1)  # (F, S)
        s, median, clipped = self._clip(state, s, g_t, mismatch.sqrt())
        alpha, eta = schedule_value(self.alpha, t, T), self._descent(q.lr).rate(t, T)
        new: Family
        if isinstance(q, DiagonalGaussian):
            new, moments = self._diagonal(state, q, noise, s, alpha, eta)
        else:
            new, moments = self._inner_loop(state, theta, s, alpha, eta)
        info = ProximalDescentInfo(loss=mismatch.mean(-1), clipped=clipped)
        return ProximalDescentState(new, t + 1, T, *moments, median), info

    def _inner_loop(
        self, state: ProximalDescentState, theta: Tensor, s: Tensor, alpha: float, eta: float
    ) -> tuple[Family, Moments]:
        """N steps of (1) for any family."""
        descent, flat = self._descent(state.family.lr), state.family.flat()
        before, (first, second) = self._before(state)
        scale, floor = state.scale, None

        def prepare(matching: Matching, g_t: Tensor) -> None:
            nonlocal scale, floor
            if state.scale.numel():
                scale, floor = adam_floor(matching, g_t, state.scale, self.floor, state.step)

        def descend(n: int, gradient: Tensor) -> None:
            nonlocal first, second
            first, second = descent.apply_(flat, gradient, first, second, before + n + 1, eta, floor)

        q = run_inner_loop(state.family, flat, theta, s, alpha, self.inner_steps, descend, prepare)
        return q, (first, second, scale)

    def _diagonal(
        self,
        state: ProximalDescentState,
        q: DiagonalGaussian,
        eps: Tensor,
        s: Tensor,
        alpha: float,
        eta: float,
    ) -> tuple[Family, Moments]:
        """The same for a diagonal Gaussian, by the elementwise rule."""
        before, (first, second) = self._before(state)
        o = InnerOptions(
            1.0, 0.0, alpha, eta, eta, self.momentum, self.floor, inner_corrections(before, self.inner_steps)
        )
        adam, draws = second.numel() > 0, Draws.of_scores(eps, s)
        (first_m, first_r), seconds = first.chunk(2, -1), second.chunk(2, -1) if adam else (None, None)
        (mean, sd, *moments), _ = inner_steps(
            q.mean, q.sd, first_m, first_r, seconds[0], seconds[1], 0.0, draws, o
        )
        tensors = [m for m in moments if m is not None]
        first = torch.cat(tensors[:2], -1)
        second = torch.cat(tensors[2:], -1) if adam else second
        assert mean is not None
        assert sd is not None
        return q.replace({"mean": mean, "log_sd": sd.log()}), (first, second, state.scale)

    def _before(self, state: ProximalDescentState) -> tuple[int, tuple[Tensor, Tensor]]:
        """How many inner steps the moments have accumulated, and the moments."""
        if self.reset:
            return 0, (torch.zeros_like(state.first), torch.zeros_like(state.second))
        return state.step * self.inner_steps, (state.first, state.second)

    def _clip(
        self, state: ProximalDescentState, s: Tensor, g: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(3): residuals longer than c times their running median are shortened to that length."""
        if self.clip is None:
            return s, state.median, torch.zeros_like(state.median)
        typical = norm.median(-1).values  # (F,)
        median = torch.where(state.median > 0, state.median, typical)
        limit = (self.clip * median).unsqueeze(-1)  # (F, 1)
        shrink = (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
        new_median = median * torch.exp(0.05 * torch.sign(typical - median))
        return g + (s - g) * shrink.unsqueeze(-1), new_median, (shrink < 1).to(norm.dtype).mean(-1)

    def init(self, family: Family, steps: int) -> ProximalDescentState:
        zeros = torch.zeros_like(family.flat())
        empty, adam = zeros[:, :0], self.optimizer == "adam"
        needs_scale = adam and self.floor > 0 and not isinstance(family, DiagonalGaussian)
        return ProximalDescentState(
            family=family,
            step=0,
            horizon=steps,
            first=zeros,
            second=zeros if adam else empty,
            scale=zeros if needs_scale else empty,
            median=zeros.new_zeros(len(zeros)),
        )

    def __post_init__(self) -> None:
        check_count("inner_steps", self.inner_steps)
        check_count("draws", self.draws)
        check_schedule("alpha", self.alpha)
        check_number("floor", self.floor, "not be negative", zero=True)
        if self.clip is not None:
            check_number("clip", self.clip, "be positive or None")
        _ = self._descent(0.01)

    def _descent(self, default: float) -> GradientStep:
        lr = default if self.lr is None else self.lr
        return GradientStep(self.optimizer, lr, self.momentum, self.schedule)
