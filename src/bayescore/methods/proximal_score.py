"""Proximal score matching by the default rule of networks (rules/proximal.py), for a diagonal Gaussian.

The functional twin of the network optimizer of the same name. All coordinates of a fit form one "tensor", the
target is one "datum" (N = 1), its score contains the prior, so that the rule's own is flat, and nothing
limits what the noise may cost: the exact posterior of a diagonal Gaussian is a fixed point. The widths start
from nothing, whatever those of the family are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from bayescore.rules.proximal import Network, ProximalOptions, Slopes, proximal_step, width

__all__ = ["ProximalScore", "ProximalScoreState"]


@dataclass(frozen=True)
class ProximalScoreState(State):
    first: Tensor  # (F, D) Adam's moments
    second: Tensor  # (F, D)
    slopes: Tensor  # (F, 6) `Slopes` of every fit
    network: Tensor  # (F, 9) and its `Network`


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
        slopes = [Slopes(*row) for row in state.slopes.tolist()]
        networks = [Network(*row) for row in state.network.tolist()]
        widths = self._widths(slopes, networks, lr, state.first)
        q = q.replace({"mean": q.mean, "log_sd": _sd(state.second, widths).log()})
        eps = q.noise(streams, self.draws)  # (F, S, D)
        theta = q.transform(eps)
        s = oracle.score(theta)
        mismatch = (q.score(theta) - s).square().sum(-1).mean(-1)
        b1, b2 = self.betas
        squares = [[(1 - b2) / network.inflation()] for network in networks]
        adam = _columns([one.adam_options(lr, self.betas, 1.0) for one in slopes], state.first)
        o = ProximalOptions._make((*widths, 1 - b1, b2, *_columns(squares, state.first), *adam))
        (mean, first, second), terms = proximal_step(
            q.mean, state.first, state.second, 0.0, Draws.of_scores(eps, s), o
        )
        totals = torch.stack([term.sum(-1) for term in terms if isinstance(term, Tensor)], -1).tolist()
        slopes = [one.after(row, lr) for one, row in zip(slopes, totals, strict=True)]
        networks = [one.after(row, 1.0, math.inf) for one, row in zip(networks, totals, strict=True)]
        sd = _sd(second, self._widths(slopes, networks, lr, first))
        return ProximalScoreState(
            family=q.replace({"mean": mean, "log_sd": sd.log()}),
            step=t + 1,
            horizon=T,
            first=first,
            second=second,
            slopes=mean.new_tensor(slopes),
            network=mean.new_tensor(networks),
        ), Info(mismatch)

    def _widths(
        self, slopes: list[Slopes], networks: list[Network], lr: float, like: Tensor
    ) -> tuple[Tensor, ...]:
        pairs = zip(slopes, networks, strict=True)
        return _columns(
            [
                one.width_options(network.slope(), network.tau, 1.0, lr, self.betas[1])
                for one, network in pairs
            ],
            like,
        )

    def init(self, family: Family, steps: int) -> ProximalScoreState:
        assert isinstance(family, DiagonalGaussian)
        zeros = torch.zeros_like(family.mean)
        return ProximalScoreState(
            family=family,
            step=0,
            horizon=steps,
            first=zeros,
            second=zeros,
            slopes=zeros.new_tensor([Slopes()] * len(zeros)),
            network=zeros.new_tensor([Network.start(1.0)] * len(zeros)),
        )

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        check_number("lr", self.lr)
        pair = isinstance(self.betas, tuple | list) and len(self.betas) == 2
        if not pair or not all(isinstance(b, float | int) and 0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {self.betas!r}")
        object.__setattr__(self, "betas", tuple(self.betas))  # a file has a list
        check_schedule("schedule", self.schedule)


def _sd(second: Tensor, widths: tuple[Tensor, ...]) -> Tensor:
    return width(None, second, ProximalOptions(*widths, *[None] * 7))


def _columns(rows: Sequence[Sequence[float]], like: Tensor) -> tuple[Tensor, ...]:
    """The columns of a table with a row per fit, each (F, 1)."""
    return like.new_tensor(rows).unsqueeze(-1).unbind(1)
