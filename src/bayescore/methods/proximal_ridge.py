"""Proximal score matching in closed form for the diagonal Gaussian: one ridge regression per coordinate.

The step is rules/ridge.py (2) and (4), with one damping a for the precision and another, b, for the mean.
To both, max(10, sqrt(D)/2) rms(sigma r) is added, r the residual: far from the target one score carries
little information, and sqrt(D) rms(sigma r) bounds the largest eigenvalue of the whitened Hessian, so the
mean cannot overshoot.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.methods.gradient_step import Schedule, check_schedule, schedule_value
from bayescore.rng import Streams
from bayescore.rules.draws import Draws
from bayescore.rules.ridge import ridge_step

__all__ = ["ProximalRidge"]


@dataclass(frozen=True)
class ProximalRidge(Method):
    """Proximal score matching in closed form.

    Arguments:
        draws: S, draws and score calls per iteration.
        damping: of the precision, a number or f(t, T), at least 100/S; None: (100 + t)/S.
        mean_damping: of the mean; None: (10/S) T/(T - t), which brings the mean to rest at the end.
    """

    name: ClassVar[str] = "ridge"
    form: ClassVar[str] = "precision"
    serves: ClassVar[tuple[str, ...]] = ("DiagonalGaussian",)

    draws: int = 1
    damping: Schedule | None = None
    mean_damping: Schedule | None = None

    def step(self, state: State, oracle: Oracle, streams: Streams) -> tuple[State, Info]:
        q, t, T = state.family, state.step, state.horizon
        assert isinstance(q, DiagonalGaussian)
        eps = q.noise(streams, self.draws)  # (F, S, D)
        theta = q.transform(eps)
        s = oracle.score(theta)
        mismatch = (q.score(theta) - s).square().sum(-1).mean(-1)
        residual = q.sd.unsqueeze(-2) * s + eps  # sigma r
        extra = max(10.0, 0.5 * q.dim**0.5) * residual.square().mean((-2, -1)).sqrt().unsqueeze(-1)  # (F, 1)
        a = (100 + t) / self.draws if self.damping is None else schedule_value(self.damping, t, T)
        b = 10 / self.draws * T / (T - t)
        if self.mean_damping is not None:
            b = schedule_value(self.mean_damping, t, T)
        mean, sd = ridge_step(q.mean, q.sd, Draws.of_scores(eps, s), a + extra, b + extra)
        new = q.replace({"mean": mean, "log_sd": sd.log()})
        return dataclasses.replace(state, family=new, step=t + 1), Info(mismatch)

    def init(self, family: Family, steps: int) -> State:
        return State(family=family, step=0, horizon=steps)

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        for name, value in (("damping", self.damping), ("mean_damping", self.mean_damping)):
            if value is not None:
                check_schedule(name, value)
        if self.damping is not None and not callable(self.damping):
            least = 100 / self.draws
            if schedule_value(self.damping, 0, 1) < least:
                raise ValueError(
                    f"damping must be at least {least:g} at {self.draws} draws; got {self.damping}"
                )
