"""When a run stops early, and how its records classify its end: converged, still moving, or worse."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bayescore.checks import check_count
from bayescore.inference.history import History
from bayescore.inference.result import Outcome

__all__ = ["Plateau", "final_status"]

NAMES = {"elbo": "ELBO", "loss": "loss"}
CONVERGED_CHANGE = 0.05  # nats of ELBO over the last quarter of a run that count as no change


@dataclass(frozen=True)
class Plateau:
    """Stop when a recorded quantity has not improved by `tolerance` over `patience` records.

    Arguments:
        metric: a recorded column; "elbo" is better when larger, everything else when smaller.
        tolerance: least improvement that counts.
        patience: records to wait.
    """

    metric: str = "elbo"
    tolerance: float = 0.01
    patience: int = 10

    def __post_init__(self) -> None:
        check_count("patience", self.patience)
        if self.tolerance < 0:
            raise ValueError(f"tolerance must not be negative; got {self.tolerance}")

    def reached(self, history: History) -> str | None:
        """A sentence if the plateau is reached, else None."""
        if self.metric not in history:
            raise ValueError(
                f"Plateau watches {self.metric!r}, which is not recorded; "
                f"there is {', '.join(history.columns)}"
            )
        values = [v for v in history.columns[self.metric] if math.isfinite(v)]
        if len(values) <= self.patience:
            return None
        sign = 1.0 if self.metric == "elbo" else -1.0
        scores = [sign * v for v in values]
        if max(scores[-self.patience :]) > max(scores[: -self.patience]) + self.tolerance:
            return None
        return f"{self.metric} has not improved by {self.tolerance:g} over {self.patience} records"


def final_status(history: History, steps: int) -> tuple[Outcome, str]:
    """Outcome and status of a run that took all of its steps."""
    key = "elbo" if "elbo" in history else "loss"
    recorded = history.columns.get(key, [])
    values = [v for v in recorded if math.isfinite(v)]
    if len(recorded) >= 8 and not math.isfinite(recorded[-1]):
        return Outcome.WORSE, f"got worse: the {NAMES[key]} is no longer finite after {steps} steps"
    if len(values) < 8:
        return Outcome.BUDGET, f"step budget of {steps} used; too few records to judge convergence"
    quarter = len(values) // 4
    last, before = _median(values[-quarter:]), _median(values[-2 * quarter : -quarter])
    change = f"{before:.4g} to {last:.4g}"
    if key == "loss":
        if last > 2 * before and last > 2 * _median(values[:quarter]):
            return (
                Outcome.WORSE,
                f"got worse: the loss rose from {change}; use a smaller step or another start",
            )
        if last > 0.8 * before:
            return Outcome.CONVERGED, f"converged: the loss no longer falls ({change}) after {steps} steps"
        return Outcome.BUDGET, f"step budget of {steps} used; the loss still fell from {change}"
    if values[-1] < values[0] - CONVERGED_CHANGE:
        fall = f"the ELBO fell from {values[0]:.4g} to {values[-1]:.4g}"
        return Outcome.WORSE, f"got worse: {fall}; use a smaller step or another start"
    if abs(last - before) <= CONVERGED_CHANGE:
        move = f"the ELBO moved by {abs(last - before):.2g} nats"
        return Outcome.CONVERGED, f"converged: {move} over the last quarter of {steps} steps"
    return Outcome.BUDGET, f"step budget of {steps} used; the ELBO still moved from {change}"


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return 0.5 * (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2])
