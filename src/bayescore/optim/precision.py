"""Whether standard deviations have been learned, in a sentence, from what was measured of the curvature
estimate.

Per tensor: the mean of the whitened slope (curvature times variance, minus 1: zero when learned) and the
relative variance V of one step's estimate. After t steps the precision is known at best to sqrt(V/t), the sd
to half of that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Slope", "precision_sentence"]

LEARNED = 0.1  # relative error of the sd up to which it counts as learned
HORIZON = 100  # steps over which the mean slope is measured (MEMORY of optim/exact.py)


class Slope(NamedTuple):
    """One tensor's measurements."""

    size: int
    level: float  # mean slope
    noise: float  # V

    @property
    def away(self) -> float:
        """How far the mean slope is from zero beyond twice its own error."""
        return max(0.0, abs(self.level) - 2 * math.sqrt(self.noise / (HORIZON * self.size)))


def precision_sentence(rows: list[Slope], t: int, draws: int, how: str, patience: float) -> str:
    """The state of the precision after t steps.

    Arguments:
        draws: per step.
        how: what stands in while eps*score is too noisy: "squares" (squared gradients), "initial" (the
            precision is left as it was) or "score" (nothing does).
        patience: the constant of optim/exact.py (7).
    """
    size = sum(row.size for row in rows)
    if not size or not t:
        return "precision not learned: no update yet"
    V = sum(row.size * row.noise for row in rows) / size
    away = sum(row.size * row.away for row in rows) / size
    if not math.isfinite(V + away):
        return "precision not learned: its estimate is not finite"
    error = 0.5 * math.sqrt(V / t)
    rho = sum(row.size * t / (t + patience * row.noise) for row in rows) / size
    if error > LEARNED / 2:
        return _too_noisy(how, draws, rho, math.ceil(V / LEARNED**2))
    if away > 2 * LEARNED:
        side = "above" if rows[0].level > 0 else "below"
        return f"precision not learned yet: on average the curvature is {away:.0%} {side} it"
    share = f", {rho:.0%} of it by eps*score" if how != "score" and rho < 0.95 else ""
    return f"precision learned, at best to {100 * error:.1g} %{share}"


def _too_noisy(how: str, draws: int, rho: float, need: int) -> str:
    if draws > 1:
        return f"precision not learned yet: it takes about {need} steps, if a step's draws share their batch"
    if how == "squares":
        return (
            f"precision not learned from eps*score (it would take about {need} steps): {1 - rho:.0%} of it "
            "comes from squared gradients, which equal the curvature where the model fits; "
            "two draws per step on the same batch learn it exactly"
        )
    kept = "it stays near its initial value" if how == "initial" else "it is mostly noise"
    return (
        f"precision not learned (it would take about {need} steps): {kept}; "
        "give batch_size= (ProximalScore), or make two draws per step on the same batch"
    )
