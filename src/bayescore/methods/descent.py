"""Schedules and the descent rules that gradient methods share: Adam, SGD with momentum, normalised rates.

    Adam:  a <- b1 a + (1-b1) g;  b <- b2 b + (1-b2) g^2;
           x <- x - eta (a / (1-b1^k)) / (sqrt(b / (1-b2^k)) + f)                              (1)
    SGD:   a <- momentum a + g;  x <- x - eta a                                                (2)
    Score matching from N(0, I) at S standard draws x, by rates that do not overshoot:
           mean: eta/2;   factor: eta/2 / (1 + |x|^2 / S), |x|^2 the mean over the draws       (3)

b1 = 0.9, b2 = 0.999. f > 0 is a floor with the units of g: where the gradient has died away, Adam alone would
still take steps of size eta; plain Adam has f = 1e-8. eta follows a schedule over t/T; k counts the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayescore.checks import check_number

__all__ = ["Descent", "Schedule", "check_schedule", "schedule"]

Schedule = str | float | Callable[[int, int], float]
B1, B2 = 0.9, 0.999

_NAMED: dict[str, Callable[[int, int], float]] = {
    "linear": lambda t, T: t / T,
    "reverse": lambda t, T: 1 - t / T,
    "cosine": lambda t, T: 0.5 * (1 + math.cos(math.pi * t / T)),
    "constant": lambda t, T: 1.0,  # noqa: ARG005
}


def schedule(rule: Schedule, t: int, T: int) -> float:
    """The value of a schedule at step t of T: "linear" t/T, "reverse" 1-t/T, "cosine", a number, f(t, T)."""
    if callable(rule):
        return float(rule(t, T))
    if isinstance(rule, str):
        return _NAMED[rule](t, T)
    return float(rule)


def check_schedule(name: str, rule: Any) -> None:
    """Raise unless `rule` is a schedule."""
    if callable(rule):
        return
    if isinstance(rule, str):
        if rule not in _NAMED:
            raise ValueError(f"{name} must be one of {', '.join(_NAMED)}, a number or f(t, T); got {rule!r}")
    elif isinstance(rule, bool) or not isinstance(rule, int | float) or not math.isfinite(rule) or rule < 0:
        raise ValueError(f"{name} must be a schedule or a number that is not negative; got {rule!r}")


@dataclass(frozen=True)
class Descent:
    """One of the two rules with its step size."""

    optimizer: str
    learning_rate: float
    momentum: float
    decay: Schedule

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "sgd"):
            raise ValueError(f"optimizer must be 'adam' or 'sgd'; got {self.optimizer!r}")
        check_number("learning_rate", self.learning_rate)
        check_number("momentum", self.momentum, "lie in [0, 1)", zero=True)
        if self.momentum >= 1:
            raise ValueError(f"momentum must lie in [0, 1); got {self.momentum}")
        check_schedule("decay", self.decay)

    def rate(self, t: int, T: int) -> float:
        """eta at step t of T."""
        return self.learning_rate * schedule(self.decay, t, T)

    def apply_(
        self,
        x: Tensor,
        grad: Tensor,
        first: Tensor,
        second: Tensor,
        k: int,
        eta: float,
        floor: Tensor | None = None,
    ) -> None:
        """Step number k (from 1) on x, in place, with its two moments."""
        if self.optimizer == "sgd":
            first.mul_(self.momentum).add_(grad)
            x.add_(first, alpha=-eta)  # (2)
            return
        first.lerp_(grad, 1 - B1)
        second.mul_(B2).addcmul_(grad, grad, value=1 - B2)
        correction = (1 - B2**k) ** -0.5
        if floor is None:
            scale = second.sqrt().mul_(correction).add_(1e-8)
        else:
            scale = torch.add(floor, second.sqrt(), alpha=correction)
        x.addcdiv_(first, scale, value=-eta / (1 - B1**k))  # (1)


def normalised_rates(x: Tensor, eta: float, full: bool) -> Tensor:
    """(3) for a Gaussian at draws x (F, S, D): (F, D + D^2) if it is full, (F, 2 D) if it is diagonal.

    A diagonal factor is one number per coordinate, and |x|^2 is then that of the coordinate.
    """
    squares = x.square().mean(-2) / x.shape[-2]  # (F, D)
    if full:
        squares = squares.sum(-1, keepdim=True).expand(-1, x.shape[-1] ** 2)
    return 0.5 * eta / torch.cat([torch.ones_like(x[:, 0]), 1 + squares], -1)
