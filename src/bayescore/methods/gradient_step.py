"""Schedules, and the gradient steps (Adam or SGD, rules/adam.py) of the methods that minimise a loss.

A schedule gives a number for step t of T: "linear" t/T, "reverse" 1 - t/T, "cosine" (1 + cos(pi t/T))/2,
"constant" 1, a number, or f(t, T).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayescore.checks import check_number
from bayescore.rules.adam import EPSILON, adam_moments, corrections, sgd_velocity

__all__ = ["GradientStep", "Schedule", "check_schedule", "schedule_value"]

Schedule = str | float | Callable[[int, int], float]

_NAMED: dict[str, Callable[[int, int], float]] = {
    "linear": lambda t, T: t / T,
    "reverse": lambda t, T: 1 - t / T,
    "cosine": lambda t, T: 0.5 * (1 + math.cos(math.pi * t / T)),
    "constant": lambda t, T: 1.0,  # noqa: ARG005
}


def schedule_value(schedule: Schedule, t: int, T: int) -> float:
    """The value of a schedule at step t of T."""
    if callable(schedule):
        return float(schedule(t, T))
    if isinstance(schedule, str):
        return _NAMED[schedule](t, T)
    return float(schedule)


def check_schedule(name: str, value: Any) -> None:
    """Raise unless `value` is a schedule."""
    if callable(value):
        return
    if isinstance(value, str):
        if value not in _NAMED:
            raise ValueError(f"{name} must be one of {', '.join(_NAMED)}, a number or f(t, T); got {value!r}")
    elif (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0
    ):
        raise ValueError(f"{name} must be a schedule or a number that is not negative; got {value!r}")


@dataclass(frozen=True)
class GradientStep:
    """Adam or SGD with its learning rate and schedule."""

    optimizer: str
    lr: float
    momentum: float
    schedule: Schedule

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "sgd"):
            raise ValueError(f"optimizer must be 'adam' or 'sgd'; got {self.optimizer!r}")
        check_number("lr", self.lr)
        check_number("momentum", self.momentum, "lie in [0, 1)", zero=True)
        if self.momentum >= 1:
            raise ValueError(f"momentum must lie in [0, 1); got {self.momentum}")
        check_schedule("schedule", self.schedule)

    def rate(self, t: int, T: int) -> float:
        """eta at step t of T."""
        return self.lr * schedule_value(self.schedule, t, T)

    def apply_(
        self,
        x: Tensor,
        gradient: Tensor,
        first: Tensor,
        second: Tensor,
        k: int,
        eta: float,
        floor: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Make step number k (from 1) on x, in place; returns the new moments."""
        if self.optimizer == "sgd":
            first = sgd_velocity(first, gradient, self.momentum)
            x.add_(first, alpha=-eta)
            return first, second
        correction_1, correction_2 = corrections(k)
        first, second, divisor = adam_moments(
            first, second, gradient, correction_2, EPSILON if floor is None else floor
        )
        x.addcdiv_(first, divisor, value=-eta * correction_1)
        return first, second
