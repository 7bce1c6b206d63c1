"""Score divergences under reparametrised draws: what Fisher and Score share.

    loss = E_e |W^T (g(theta) - s(theta))|^2,   theta = T_lambda(e)                               (1)
With r = g - s, and W differentiated too,
    d loss = d |W^T (g_lambda(theta) - s)|^2 at fixed s  -  (H v) . dtheta,   v = 2 W W^T r        (2)
where H = grad s is the Hessian of log Phi: one Hessian product per draw.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.methods.gradient_step import GradientStep, Schedule
from bayescore.rng import Streams

__all__ = ["DivergenceState", "ReparametrisedDivergence"]


@dataclass(frozen=True)
class DivergenceState(State):
    first: Tensor  # (F, P)
    second: Tensor  # (F, P)


@dataclass(frozen=True)
class ReparametrisedDivergence(Method):
    """Descent on (1); a subclass defines the norm W."""

    needs_hessian: ClassVar[bool] = True

    draws: int = 1
    lr: float | None = None
    schedule: Schedule = "cosine"
    optimizer: str = "adam"
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        _ = self._descent(0.01)

    def _descent(self, default: float) -> GradientStep:
        lr = default if self.lr is None else self.lr
        return GradientStep(self.optimizer, lr, self.momentum, self.schedule)

    @abstractmethod
    def weigh(self, q: Family, r: Tensor) -> Tensor:
        """W^T r, (F, S, .)."""

    def init(self, family: Family, steps: int) -> DivergenceState:
        zeros = torch.zeros_like(family.flat())
        return DivergenceState(family=family, step=0, horizon=steps, first=zeros, second=zeros)

    def step(self, state: DivergenceState, oracle: Oracle, streams: Streams) -> tuple[DivergenceState, Info]:
        flat = state.family.flat()
        leaf = flat.clone().requires_grad_()
        with torch.enable_grad():
            q = state.family.from_flat(leaf)
            theta = q.transform(q.noise(streams, self.draws))  # (F, S, D)
            s = oracle.score(theta.detach()).detach().requires_grad_()
            loss = self.weigh(q, q.score(theta) - s).square().sum(-1).mean(-1)  # (F,)
            grad, minus_v = torch.autograd.grad(loss.sum(), (leaf, s), retain_graph=True)
            product = oracle.hessian_product(theta.detach(), minus_v)
            (through,) = torch.autograd.grad((product * theta).sum(), leaf)  # (2)
        descent = self._descent(state.family.lr)
        eta = descent.rate(state.step, state.horizon)
        gradient = grad + through
        first, second = descent.apply_(flat, gradient, state.first, state.second, state.step + 1, eta)
        family = state.family.from_flat(flat)
        new = dataclasses.replace(state, family=family, step=state.step + 1, first=first, second=second)
        return new, Info(loss.detach())
