"""Batch and match with pairs of batches, for a diagonal Gaussian: BaM without the bias due to noisy scores.

The functional twin of the network optimizer of the same name (rules/bam.py, (2) to (5)): draws are antithetic
pairs, and every noise is used in two successive steps, so that the product which estimates the curvature has
factors with independent score errors.
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
from bayescore.rng import Streams
from bayescore.rules.bam import PairedOptions, paired_lam, paired_slope, paired_step
from bayescore.rules.curvature import follow

__all__ = ["PairedBaM", "PairedBaMState"]


@dataclass(frozen=True)
class PairedBaMState(State):
    half: Tensor  # (F, D) whitened d of the last step
    noise: Tensor  # (F, pairs, D) of the last step
    first: Tensor  # (F,) the step that `half` belongs to, if it is the first of two; otherwise -2
    statistics: Tensor  # (F, 4), rules/curvature.py


@dataclass(frozen=True)
class PairedBaM(Method):
    """Batch and match with pairs of batches.

    Arguments:
        lr: lam of the mean.
        damping: 1/lam of the variance in the first steps.
        draws: per step, an even number.
    """

    name: ClassVar[str] = "paired-bam"
    serves: ClassVar[tuple[str, ...]] = ("DiagonalGaussian",)

    lr: float = 0.2
    damping: float = 500.0
    draws: int = 2

    def step(self, state: PairedBaMState, oracle: Oracle, streams: Streams) -> tuple[PairedBaMState, Info]:
        q, t = state.family, state.step
        assert isinstance(q, DiagonalGaussian)
        noise = state.noise if t % 2 else streams.normal(self.draws // 2, q.dim)  # (F, pairs, D)
        eps = torch.stack([noise, -noise], 2).flatten(1, 2)  # (F, draws, D)
        theta = q.transform(eps)
        g = -oracle.score(theta)
        mismatch = (q.score(theta) + g).square().sum(-1).mean(-1)
        d = 0.5 * (g[:, ::2] - g[:, 1::2]).sum(1)  # (3) of rules/bam.py
        o = PairedOptions(1.0, 0.0, torch.inf, self.lr, self.draws // 2, torch.zeros_like(d[:, :1]))
        statistics, second = state.statistics.clone(), state.first == t - 1
        if second.any():
            totals = torch.stack(
                [term.sum(-1) for term in paired_slope(q.sd, state.half, d, noise.sum(1), o)], -1
            )
            followed = statistics.clone()
            follow(followed, totals, followed.new_full((len(d),), float(q.dim)))
            lam = paired_lam(followed, self.damping)
            statistics = torch.where(second[:, None], followed, statistics)
            o = o._replace(lam=torch.where(second, lam, 0.0).unsqueeze(-1))
        (mean, sd, half), _ = paired_step(
            q.mean, q.sd, state.half, 0.0, g.mean(1), torch.zeros_like(d), d, noise.sum(1), o
        )
        first = torch.full_like(state.first, -2.0 if t % 2 else float(t))
        new = q.replace({"mean": mean, "log_sd": sd.log()})
        return PairedBaMState(new, t + 1, state.horizon, half, noise, first, statistics), Info(mismatch)

    def init(self, family: Family, steps: int) -> PairedBaMState:
        assert isinstance(family, DiagonalGaussian)
        zeros = torch.zeros_like(family.mean)
        return PairedBaMState(
            family=family,
            step=0,
            horizon=steps,
            half=zeros,
            noise=zeros.unsqueeze(1).repeat(1, self.draws // 2, 1),
            first=zeros.new_full((len(zeros),), -2.0),
            statistics=zeros.new_zeros(len(zeros), 4),
        )

    def __post_init__(self) -> None:
        check_count("draws", self.draws, 2)
        if self.draws % 2:
            raise ValueError(f"draws come in pairs; give an even number, got {self.draws}")
        check_number("lr", self.lr)
        check_number("damping", self.damping)
