"""How a run ended, and what it asked of its target."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Counts", "Outcome"]


class Outcome(Enum):
    """How a run ended."""

    CONVERGED = "converged"
    BUDGET = "step budget used"
    WORSE = "got worse"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by a callback"


@dataclass(frozen=True)
class Counts:
    """What a run asked of its target."""

    score_calls: int = 0
    hessian_products: int = 0
    density_evaluations: int = 0  # for the recorded metrics
    check_calls: int = 0  # scores taken by the check of the target at the start
    skipped_steps: int = 0  # steps left out because a score was not finite
    start_calls: int = 0  # how many of the score calls went into finding a start
