"""Algorithm 1 in the coordinates in which q_t = N(0, I), for full and diagonal Gaussians: what `bs.fit` uses
for noisy scores.

The proximal loss (methods/inner_loop.py, (1)) is measured in the norm of Cov(q_t), which is fixed within an
iteration: draw x ~ N(0, I), set theta = T_t(x), transform the score at theta to the coordinates of x, descend
from N(0, I), and compose the result with q_t. The method then does not depend on the scale of the problem,
and it recovers from a q0 that is far too narrow (methods/proximal_descent.py has the paper's Euclidean norm).

optimizer="normalised" is gradient descent with rates that do not overshoot. With x the standardised draws,
the curvature of the loss in the factor is about 1 + |x|^2, by which the rate of the factor is divided. Each
coordinate of the residual is clamped to 1, the standard deviation of a coordinate of q_t's own score:
    s <- g_t + clamp(s - g_t, -1, 1),   m <- m - eta/2 d/dm,   L <- L - eta/2 d/dL / (1 + mean |x|^2 / S)  (1)
(a diagonal q has one factor per coordinate, so |x|^2 is that coordinate's x^2). If the score is exact, the
residual vanishes as q converges and no floor is needed; if it is noisy, no single draw can move q far.

optimizer="adam" keeps Adam's moments in these coordinates, with the floor of methods/inner_loop.py (3).
"""

from __future__ import annotations

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
from bayescore.methods.gradient_step import GradientStep, Schedule, check_schedule, schedule_value
from bayescore.methods.inner_loop import adam_floor, run_inner_loop
from bayescore.rng import Streams

__all__ = ["WhitenedDescent", "WhitenedDescentState"]

NORMALISED_LR = 0.1  # eta of (1)


@dataclass(frozen=True)
class WhitenedDescentState(State):
    first: Tensor  # (F, P) first moment; (F, 0) in normalised descent
    second: Tensor  # (F, P) second moment of Adam
    scale: Tensor  # (F, P) running mean square of J^T 2 g_t, for Adam's floor


@dataclass(frozen=True)
class WhitenedDescent(Method):
    """Proximal score matching by descent, in whitened coordinates.

    Arguments:
        inner_steps: N, descent steps per iteration; they cost no score calls.
        draws: S, draws and score calls per iteration.
        alpha: weight of the proximal term: "linear" t/T, "reverse" 1-t/T, a number, or f(t, T).
        lr: learning rate eta; None means 0.1 in normalised descent and 0.01 otherwise.
        schedule: how lr changes: "cosine", "constant", "reverse" or f(t, T).
        optimizer: "normalised" (1), "adam", or "sgd".
        floor: of Adam; 0 gives plain Adam.
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "precision"
    serves: ClassVar[tuple[str, ...]] = ("FullGaussian", "DiagonalGaussian")

    inner_steps: int = 2
    draws: int = 1
    alpha: Schedule = "linear"
    lr: float | None = None
    schedule: Schedule = "cosine"
    optimizer: str = "normalised"
    floor: float = 0.1

    def step(
        self, state: WhitenedDescentState, oracle: Oracle, streams: Streams
    ) -> tuple[WhitenedDescentState, Info]:
        q, t, T = state.family, state.step, state.horizon
        assert isinstance(q, FullGaussian | DiagonalGaussian)
        x = q.noise(streams, self.draws)  # (F, S, D)
        theta = q.transform(x)
        s = oracle.score(theta)
        mismatch = (q.score(theta) - s).square().sum(-1)  # (F, S)
        s = q.standardise(s)
        if self.optimizer == "normalised":
            s = (s + x).clamp_(-1.0, 1.0).sub_(x)  # (1): g_t = -x
        inner, moments = self._descend(state, x, s, schedule_value(self.alpha, t, T))
        new = q.compose(inner)  # type: ignore[arg-type]
        return WhitenedDescentState(new, t + 1, T, *moments), Info(mismatch.mean(-1))

    def _descend(
        self, state: WhitenedDescentState, x: Tensor, s: Tensor, alpha: float
    ) -> tuple[Family, tuple[Tensor, Tensor, Tensor]]:
        """N descent steps from N(0, I)."""
        q, t = state.family, state.step
        flat, eta = torch.zeros_like(q.flat()), self._descent().rate(t, state.horizon)
        if self.optimizer == "normalised":
            rates = _rates(x, eta, isinstance(q, FullGaussian))
            inner = run_inner_loop(
                q, flat, x, s, alpha, self.inner_steps, lambda _, g: flat.addcmul_(g, rates, value=-1.0)
            )
            return inner, (state.first, state.second, state.scale)
        descent, first, second, scale, floor = self._descent(), state.first, state.second, state.scale, None

        def prepare(matching: Matching, g_t: Tensor) -> None:
            nonlocal scale, floor
            if scale.numel():
                scale, floor = adam_floor(matching, g_t, scale, self.floor, t)

        def descend(n: int, gradient: Tensor) -> None:
            nonlocal first, second
            k = t * self.inner_steps + n + 1
            first, second = descent.apply_(flat, gradient, first, second, k, eta, floor)

        inner = run_inner_loop(q, flat, x, s, alpha, self.inner_steps, descend, prepare)
        return inner, (first, second, scale)

    def init(self, family: Family, steps: int) -> WhitenedDescentState:
        zeros = torch.zeros_like(family.flat())
        empty, adam = zeros[:, :0], self.optimizer == "adam"
        return WhitenedDescentState(
            family=family,
            step=0,
            horizon=steps,
            first=empty if self.optimizer == "normalised" else zeros,
            second=zeros if adam else empty,
            scale=zeros if adam and self.floor else empty,
        )

    def __post_init__(self) -> None:
        check_count("inner_steps", self.inner_steps)
        check_count("draws", self.draws)
        check_schedule("alpha", self.alpha)
        check_number("floor", self.floor, "not be negative", zero=True)
        if self.optimizer not in ("normalised", "adam", "sgd"):
            raise ValueError(f"optimizer must be 'normalised', 'adam' or 'sgd'; got {self.optimizer!r}")
        _ = self._descent()

    def _descent(self) -> GradientStep:
        default = NORMALISED_LR if self.optimizer == "normalised" else FullGaussian.lr
        kind = "sgd" if self.optimizer == "sgd" else "adam"
        return GradientStep(kind, default if self.lr is None else self.lr, 0.0, self.schedule)


def _rates(x: Tensor, eta: float, full: bool) -> Tensor:
    """Rates of (1) at draws x (F, S, D): (F, D + D^2) if q is full, (F, 2 D) if it is diagonal."""
    squares = x.square().mean(-2) / x.shape[-2]  # (F, D)
    if full:
        squares = squares.sum(-1, keepdim=True).expand(-1, x.shape[-1] ** 2)
    return 0.5 * eta / torch.cat([torch.ones_like(x[:, 0]), 1 + squares], -1)
