"""Proximal score matching by the networks' closed form (rules/calibrated.py), for a diagonal Gaussian.

The functional twin of the network optimizer of the same name, with the same rule and the same defaults. All
coordinates of a fit form one "tensor". The prior is part of the target's score here, so the rule's own prior
is flat, and c = 1.
"""

from __future__ import annotations

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
from bayescore.rules.calibrated import CalibratedOptions, calibrated_step, step_options, trust
from bayescore.rules.curvature import follow
from bayescore.rules.draws import Draws

__all__ = ["CalibratedScore", "CalibratedScoreState"]


@dataclass(frozen=True)
class CalibratedScoreState(State):
    momentum: Tensor  # (F, D)
    statistics: Tensor  # (F, 4), rules/curvature.py
    initial: Tensor  # (F, D) the initial variance


@dataclass(frozen=True)
class CalibratedScore(Method):
    """The network rule on a low-dimensional target.

    Arguments:
        lr: learning rate of the mean; that of SGD as long as the sd has its initial value.
        schedule: how lr changes: "cosine", "constant", "reverse" or f(t, T).
        momentum: of the mean's gradient.
        damping: memory of the precision in steps, in the first step; it grows by half a step per step.
        draws: S, draws and score calls per step.
    """

    name: ClassVar[str] = "calibrated"
    serves: ClassVar[tuple[str, ...]] = ("DiagonalGaussian",)

    lr: float = 0.1
    schedule: Schedule = "cosine"
    momentum: float = 0.9
    damping: float = 500.0
    draws: int = 1

    def step(
        self, state: CalibratedScoreState, oracle: Oracle, streams: Streams
    ) -> tuple[CalibratedScoreState, Info]:
        q, t, T = state.family, state.step, state.horizon
        assert isinstance(q, DiagonalGaussian)
        eps = q.noise(streams, self.draws)  # (F, S, D)
        theta = q.transform(eps)
        s = oracle.score(theta)
        mismatch = (q.score(theta) - s).square().sum(-1).mean(-1)
        statistics, size = state.statistics.clone(), state.statistics.new_full((len(s),), float(q.dim))
        lr = self.lr * schedule_value(self.schedule, t, T)
        of_fits = (row.unsqueeze(-1) for row in trust(statistics, size, self.damping, squares=False))
        o = CalibratedOptions(
            *step_options(t + 1, lr, state.initial, 1.0, torch.inf, self.momentum, None), *of_fits
        )
        (mean, sd, momentum), terms = calibrated_step(
            q.mean, q.sd, state.momentum, 0.0, Draws.of_scores(eps, s), o
        )
        follow(statistics, torch.stack([term.sum(-1) for term in terms], -1), size)
        assert momentum is not None
        new = q.replace({"mean": mean, "log_sd": sd.log()})
        return CalibratedScoreState(new, t + 1, T, momentum, statistics, state.initial), Info(mismatch)

    def init(self, family: Family, steps: int) -> CalibratedScoreState:
        assert isinstance(family, DiagonalGaussian)
        zeros = torch.zeros_like(family.mean)
        return CalibratedScoreState(
            family=family,
            step=0,
            horizon=steps,
            momentum=zeros,
            statistics=zeros.new_zeros(len(zeros), 4),
            initial=family.sd.square(),
        )

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        check_number("lr", self.lr)
        check_number("damping", self.damping)
        check_number("momentum", self.momentum, "lie in [0, 1)", zero=True)
        if self.momentum >= 1:
            raise ValueError(f"momentum must lie in [0, 1); got {self.momentum}")
        check_schedule("schedule", self.schedule)
