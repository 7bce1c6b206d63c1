"""Proximal score matching: Algorithm 1 of Kim, "Large-scale Score-based Variational Posterior Inference
for Bayesian Deep Neural Networks" (arXiv 2602.05873), and its closed form for the diagonal Gaussian.

At iteration t draw theta_i ~ q_t, i = 1..S, take the scores s_i once, and make N steps of descent on
    loss(lambda) = (1/S) sum_i  alpha_t |g(theta_i) - g_t(theta_i)|^2 + |g(theta_i) - s_i|^2        (1)
with g = grad log q_lambda and theta_i fixed, so that no draw is differentiated:
    d loss / d lambda = J^T e,   e_i = (2/S) ((1 + alpha_t) g - alpha_t g_t - s_i)                  (2)
where J^T is the pullback of the score in lambda (families/base.py). At the first inner step g = g_t: the
gradient is then (2/S) J^T (g_t - s), unbiased for noisy scores, and alpha_t plays no part.

Two safeguards, neither in the paper:
    floor    Adam divides by sqrt(b) + kappa rms(J^T 2 g_t): a score residual much below a share kappa of
             the score itself no longer counts as signal, and the converged fit stays converged.       (3)
    clip     s_i is replaced by g_t + r min(1, c med/|r|), r = s_i - g_t, med a running median of |r|,
             moved by a factor exp(+-0.05) per iteration.                                              (4)

solver="exact" solves (1) for the diagonal Gaussian in closed form (methods/ridge.py). Its dampings are both
raised by max(10, sqrt(D)/2) rms(sigma r), r the residual: far from the target one score says little, and
sqrt(D) rms(sigma r) bounds the largest eigenvalue of the whitened Hessian, so the mean cannot overshoot.  (5)

metric="covariance" measures (1) in the norm of Cov(q_t), which q cannot change within the iteration: the
descent runs in the coordinates in which q_t = N(0, I), with its moments kept there. The method is then
indifferent to the scale of the problem, and a start that is far too narrow is no longer fatal.        (6)

optimizer="normalised", the default for Gaussians in that norm, is gradient descent with steps that suit (1)
there. With x the standardised draws, the curvature of (1) in the factor is about 1 + |x|^2, by which its rate
is divided; and a coordinate of the residual counts for no more than is usual in the score of q_t itself:
    s <- g_t + clamp(s - g_t, -1, 1),   m <- m - eta/2 d/dm,   L <- L - eta/2 d/dL / (1 + mean |x|^2 / S)  (7)
(a diagonal q has a factor per coordinate, so |x|^2 is that of the coordinate). Where the score is exact the
residual dies away by itself and nothing needs a floor; where it is noisy no draw can throw q far.

Full Gaussians and mixtures are worked in the Cholesky factor of the precision, where the score is bilinear:
in that of the covariance the same algorithm diverges on real posteriors.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count, check_number
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.matching import Matching
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.methods.descent import Descent, Schedule, check_schedule, normalised_rates, schedule
from bayescore.methods.ridge import proximal_ridge
from bayescore.rng import Streams
from bayescore.targets.base import Target

__all__ = ["ProximalInfo", "ProximalScore", "ProximalState"]

RATE = 0.1  # eta of (7)
Moments = tuple[Tensor, Tensor, Tensor]  # first, second, scale


@dataclass(frozen=True)
class ProximalState(State):
    first: Tensor  # (F, P) first moment; (F, 0) where there is none
    second: Tensor  # (F, P) second moment
    scale: Tensor  # (F, P) running mean square of J^T 2 g_t, for the floor
    median: Tensor  # (F,) running median of |r|; 0 before the first step


@dataclass(frozen=True)
class ProximalInfo(Info):
    """loss is the score mismatch (1/S) sum |g_t - s|^2 before the step."""

    clipped: Tensor  # (F,) share of the S residuals that were clipped


@dataclass(frozen=True)
class ProximalScore(Method):
    """Proximal score matching (Algorithm 1).

    Arguments:
        inner_steps: N, descent steps per iteration; they cost no score calls. None: 2 if normalised, else 20.
        samples: S, draws and score calls per iteration.
        alpha: weight of the proximal term: "linear" t/T, "reverse" 1-t/T, a number, or f(t, T).
        learning_rate: step size eta; None means 0.1 in normalised descent, else the family's own, 0.01 (zuko
            flows: 0.001).
        decay: its schedule: "cosine", "constant", "reverse" or f(t, T).
        optimizer: "normalised" (7), "adam" or "sgd" (with `momentum`). None means "normalised" for full and
            diagonal Gaussians in the norm of Cov(q_t) and "adam" otherwise.
        reset: forget the optimizer's moments at every iteration.
        floor: kappa of (3); 0 gives plain Adam.
        clip: c of (4), say 2 for noisy scores in the Euclidean norm; None does not clip.
        metric: norm of (1): "euclidean" as in the paper, or "covariance", that of Cov(q_t) (6). None means
            "covariance" for full and diagonal Gaussians and "euclidean" for every other family.
        solver: "gradient" for Algorithm 1, "exact" for the closed form (diagonal Gaussian only).
        damping: of the precision in the exact solver, a number or f(t, T), at least 100/S; None: (100 + t)/S.
        mean_damping: of the mean in the exact solver; None: (10/S) T/(T - t), so that it settles.

    >>> ProximalScore(inner_steps=2, learning_rate=0.03)
    ProximalScore(inner_steps=2, samples=1, alpha='linear', learning_rate=0.03, ...)
    """

    name: ClassVar[str] = "proximal"
    form: ClassVar[str] = "precision"
    serves: ClassVar[tuple[str, ...]] = (
        "FullGaussian",
        "DiagonalGaussian",
        "LowRankGaussian",
        "GaussianMixture",
        "PlanarFlow",
        "ZukoFlow",
    )

    inner_steps: int | None = None
    samples: int = 1
    alpha: Schedule = "linear"
    learning_rate: float | None = None
    decay: Schedule = "cosine"
    optimizer: str | None = None
    momentum: float = 0.0
    reset: bool = False
    floor: float = 0.1
    clip: float | None = None
    metric: str | None = None
    solver: str = "gradient"
    damping: Schedule | None = None
    mean_damping: Schedule | None = None

    def __post_init__(self) -> None:
        if self.inner_steps is not None:
            check_count("inner_steps", self.inner_steps)
        check_count("samples", self.samples)
        check_schedule("alpha", self.alpha)
        check_number("floor", self.floor, "not be negative", zero=True)
        if self.clip is not None:
            check_number("clip", self.clip, "be positive or None")
        if self.solver not in ("gradient", "exact"):
            raise ValueError(f"solver must be 'gradient' or 'exact'; got {self.solver!r}")
        if self.optimizer not in (None, "normalised", "adam", "sgd"):
            raise ValueError(f"optimizer must be 'normalised', 'adam' or 'sgd'; got {self.optimizer!r}")
        if self.optimizer == "normalised" and self.metric == "euclidean":
            raise ValueError("optimizer='normalised' needs the norm of Cov(q_t); drop metric='euclidean'")
        if self.metric not in (None, "euclidean", "covariance"):
            raise ValueError(f"metric must be 'euclidean' or 'covariance'; got {self.metric!r}")
        if self.solver == "exact" and self.metric is not None:
            raise ValueError(
                "metric belongs to solver='gradient'; the exact solver is the same in every metric"
            )
        for name, rule in (("damping", self.damping), ("mean_damping", self.mean_damping)):
            if rule is not None:
                check_schedule(name, rule)
                if self.solver == "gradient":
                    raise ValueError(
                        f"{name} belongs to solver='exact'; the inner loop has alpha and learning_rate"
                    )
        if self.damping is not None:
            least = 100 / self.samples
            if not callable(self.damping) and schedule(self.damping, 0, 1) < least:
                raise ValueError(
                    f"damping must be at least {least:g} at {self.samples} samples; got {self.damping}"
                )
        _ = self._descent(0.01)

    def _descent(self, otherwise: float) -> Descent:
        rate = otherwise if self.learning_rate is None else self.learning_rate
        return Descent("sgd" if self.optimizer == "sgd" else "adam", rate, self.momentum, self.decay)

    def _standardises(self, family: Family) -> bool:
        """Whether (1) is measured in the norm of Cov(q_t)."""
        return isinstance(family, FullGaussian | DiagonalGaussian) and self.metric != "euclidean"

    def _normalises(self, family: Family) -> bool:
        """Whether the descent is (7)."""
        return self.optimizer in (None, "normalised") and self._standardises(family)

    def check(self, family: Family, target: Target) -> None:
        if self.solver == "exact" and not isinstance(family, DiagonalGaussian):
            raise TypeError(
                f"ProximalScore with solver='exact' cannot fit a {type(family).__name__}; "
                "it serves DiagonalGaussian (use solver='gradient', or BaM for full Gaussians)"
            )
        for option, remedy in (("metric", "covariance"), ("optimizer", "normalised")):
            if getattr(self, option) == remedy and not isinstance(family, FullGaussian | DiagonalGaussian):
                other = "metric='euclidean'" if option == "metric" else "optimizer='adam'"
                raise TypeError(
                    f"ProximalScore with {option}={remedy!r} cannot fit a {type(family).__name__}; "
                    f"it serves FullGaussian and DiagonalGaussian (use {other})"
                )
        super().check(family, target)

    def init(self, family: Family, steps: int) -> ProximalState:
        flat = family.flat()
        empty = flat.new_zeros(flat.shape[0], 0)
        moments = empty if self.solver == "exact" or self._normalises(family) else torch.zeros_like(flat)
        adam = self.optimizer != "sgd"
        return ProximalState(
            family=family,
            step=0,
            horizon=steps,
            first=moments,
            second=moments if adam else empty,
            scale=moments if adam and self.floor else empty,
            median=flat.new_zeros(flat.shape[0]),
        )

    def step(
        self, state: ProximalState, oracle: Oracle, streams: Streams
    ) -> tuple[ProximalState, ProximalInfo]:
        q, t = state.family, state.step
        noise = q.noise(streams, self.samples)
        theta = q.transform(noise)  # (F, S, D)
        s = oracle.score(theta)
        g = q.score(theta)
        mismatch = (g - s).square().sum(-1)  # (F, S)
        s, median, clipped = self._clip(state, s, g, mismatch.sqrt())
        info = ProximalInfo(loss=mismatch.mean(-1), clipped=clipped)
        moments = state.first, state.second, state.scale
        new: Family
        if self.solver == "exact":
            assert isinstance(q, DiagonalGaussian)
            new = self._solve(q, theta, s, t, state.horizon)
        elif isinstance(q, FullGaussian | DiagonalGaussian) and self._standardises(q):
            s = q.standardise(s)
            if self._normalises(q):
                s = (s + noise).clamp_(-1.0, 1.0).sub_(noise)  # (7): g_t = -noise
            inner, moments = self._descend(state, torch.zeros_like(q.flat()), noise, s)
            new = q.compose(inner)  # type: ignore[arg-type]
        else:
            new, moments = self._descend(state, q.flat(), theta, s)
        return ProximalState(new, t + 1, state.horizon, *moments, median), info

    def _clip(
        self, state: ProximalState, s: Tensor, g: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(4): residuals longer than c times their running median are cut to that length."""
        if self.clip is None:
            return s, state.median, torch.zeros_like(state.median)
        typical = norm.median(-1).values  # (F,)
        median = torch.where(state.median > 0, state.median, typical)
        limit = (self.clip * median).unsqueeze(-1)  # (F, 1)
        shrink = (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
        moved = median * torch.exp(0.05 * torch.sign(typical - median))
        return g + (s - g) * shrink.unsqueeze(-1), moved, (shrink < 1).to(norm.dtype).mean(-1)

    def _descend(self, state: ProximalState, flat: Tensor, x: Tensor, s: Tensor) -> tuple[Family, Moments]:
        """N descent steps on (1) from the parameters `flat`, in place, with copies of the moments."""
        t, T, normalised = state.step, state.horizon, self._normalises(state.family)
        descent = self._descent(RATE if normalised else state.family.learning_rate)
        alpha, eta = schedule(self.alpha, t, T), descent.rate(t, T)
        N = self.inner_steps or (2 if normalised else 20)
        rates = normalised_rates(x, eta, isinstance(state.family, FullGaussian)) if normalised else None
        first = torch.zeros_like(state.first) if self.reset else state.first.clone()
        second = torch.zeros_like(state.second) if self.reset else state.second.clone()
        q = state.family.from_flat(flat)  # views: moves with `flat`
        matching = q.matching(x)
        g, weight = matching.score(), 2.0 / self.samples
        scale, floor = self._floor(state, matching, torch.zeros_like(g), weight)
        # e = w ((1 + alpha) g - c): what does not move is put together once
        constant, share = (alpha * g + s).mul_(-weight), weight * (1 + alpha)
        # The loop is short operations by the thousand: without autograd's bookkeeping they cost a third less.
        with torch.inference_mode() if q.closed_form else nullcontext():
            for n in range(N):
                if n:
                    matching.move()
                gradient = matching.pull(constant, share)  # (2)
                if rates is not None:
                    flat.addcmul_(gradient, rates, value=-1.0)  # (7)
                    continue
                k = n + 1 if self.reset else t * N + n + 1
                descent.apply_(flat, gradient, first, second, k, eta, floor)
        return q, (first, second, scale)

    def _floor(
        self, state: ProximalState, matching: Matching, zero: Tensor, weight: float
    ) -> tuple[Tensor, Tensor | None]:
        """(3): kappa times the root mean square of J^T 2 g_t over the last hundred iterations or so."""
        if not state.scale.numel():
            return state.scale, None
        memory = 0.99
        reference = matching.pull(zero, weight)
        scale = (state.scale * memory).addcmul_(reference, reference, value=1 - memory)
        floor = (scale / (1 - memory ** (state.step + 1))).sqrt_()
        return scale, floor.mul_(self.floor).add_(1e-12)

    def _solve(self, q: DiagonalGaussian, theta: Tensor, s: Tensor, t: int, T: int) -> DiagonalGaussian:
        sigma = q.sd
        eps = (theta - q.mean.unsqueeze(-2)) / sigma.unsqueeze(-2)
        a = (100 + t) / self.samples if self.damping is None else schedule(self.damping, t, T)
        b = (
            10 / self.samples * T / (T - t)
            if self.mean_damping is None
            else schedule(self.mean_damping, t, T)
        )
        rms = (sigma.unsqueeze(-2) * s + eps).square().mean((-2, -1)).sqrt().unsqueeze(-1)  # (F, 1)
        wide = max(10.0, 0.5 * q.dim**0.5) * rms  # (5)
        mean, log_sd = proximal_ridge(q.mean, q.log_sd, eps, s, a + wide, b + wide)
        return q.replace({"mean": mean, "log_sd": log_sd})
