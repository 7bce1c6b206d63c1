"""Proximal score matching by the default rule of networks (rules/proximal.py), for a diagonal Gaussian.

The functional twin of the network optimizer of the same name. All coordinates of a fit form one "tensor", the
target is one "datum" (N = 1), its score contains the prior, so that the rule's own is flat, and nothing
limits what the noise may cost: the exact posterior of a diagonal Gaussian is a fixed point. The widths start
from nothing, whatever those of the family are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count, check_number
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.methods.gradient_step import Schedule, check_schedule, schedule_value
from bayescore.rng import Streams
from bayescore.rules.adam import B1, B2
from bayescore.rules.draws import Draws
from bayescore.rules.proximal import (
    ProximalOptions,
    adam_options,
    control_step,
    follow_slopes,
    inflation,
    initial_control,
    network_slope,
    proximal_step,
    slopes,
    width,
    width_options,
)

__all__ = ["ProximalScore", "ProximalScoreState"]


@dataclass(frozen=True)
class ProximalScoreState(State):
    first: Tensor  # (F, D) Adam's moments
    second: Tensor  # (F, D)
    sums: Tensor  # (F, 3) of (5)
    control: Tensor  # (F, 9)
    path: Tensor  # (F,) the sum of the learning rates so far


@dataclass(frozen=True)
class ProximalScore(Method):
    """The network rule on a low-dimensional target.

    Arguments:
        lr: Adam's learning rate of the mean.
        schedule: how lr changes: "cosine", "constant", "reverse" or f(t, T).
        betas: Adam's.
        draws: S, draws and score calls per step.
    """

    name: ClassVar[str] = "proximal"
    serves: ClassVar[tuple[str, ...]] = ("DiagonalGaussian",)

    lr: float = 0.01
    schedule: Schedule = "cosine"
    betas: tuple[float, float] = (B1, B2)
    draws: int = 1

    def step(
        self, state: ProximalScoreState, oracle: Oracle, streams: Streams
    ) -> tuple[ProximalScoreState, Info]:
        q, t, T = state.family, state.step, state.horizon
        assert isinstance(q, DiagonalGaussian)
        lr = self.lr * schedule_value(self.schedule, t, T)
        widths = self._widths(state, state.path if t else state.path + lr)
        sd = width(None, state.second, ProximalOptions(*widths, *[None] * 6))
        q = q.replace({"mean": q.mean, "log_sd": sd.log()})
        eps = q.noise(streams, self.draws)  # (F, S, D)
        theta = q.transform(eps)
        s = oracle.score(theta)
        mismatch = (q.score(theta) - s).square().sum(-1).mean(-1)
        steps = torch.full_like(state.path, t + 1)
        b1, b2 = self.betas
        of_fits = [value.unsqueeze(-1) for value in adam_options(steps, lr, self.betas)]
        of_rule = [1 - b1, b2, ((1 - b2) / inflation(state.control)).unsqueeze(-1)]
        o = ProximalOptions(*widths, *of_rule, *of_fits)
        (mean, first, second), terms = proximal_step(
            q.mean, state.first, state.second, Draws.of_scores(eps, s), o
        )
        totals = torch.stack([term.sum(-1) for term in terms if isinstance(term, Tensor)], -1)
        sums, _ = follow_slopes(state.sums, steps, totals)
        control = control_step(state.control, totals, 1.0, math.inf)
        new = ProximalScoreState(q, t + 1, T, first, second, sums, control, state.path + lr)
        sd = width(None, second, ProximalOptions(*self._widths(new, new.path), *[None] * 6))
        family = q.replace({"mean": mean, "log_sd": sd.log()})
        return ProximalScoreState(family, t + 1, T, first, second, sums, control, new.path), Info(mismatch)

    def _widths(self, state: ProximalScoreState, path: Tensor) -> list[Tensor]:
        t = torch.full_like(path, state.step)
        rho = slopes(state.sums, t, network_slope(state.control))
        flat, tau = torch.full_like(path, math.inf), state.control[..., 7]
        return [value.unsqueeze(-1) for value in width_options(rho, flat, path, t, tau, 1.0, self.betas[1])]

    def init(self, family: Family, steps: int) -> ProximalScoreState:
        assert isinstance(family, DiagonalGaussian)
        zeros = torch.zeros_like(family.mean)
        fits = zeros[:, 0]
        return ProximalScoreState(
            family=family,
            step=0,
            horizon=steps,
            first=zeros,
            second=zeros,
            sums=fits.new_zeros(len(fits), 3),
            control=initial_control(1.0, fits),
            path=fits,
        )

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        check_number("lr", self.lr)
        for beta in self.betas:
            check_number("betas", beta, "lie in [0, 1)", zero=True)
            if beta >= 1:
                raise ValueError(f"betas must lie in [0, 1); got {self.betas}")
        check_schedule("schedule", self.schedule)
