"""How a run ended."""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    """How a run ended."""

    CONVERGED = "converged"
    BUDGET = "step budget used"
    WORSE = "got worse"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by a callback"
