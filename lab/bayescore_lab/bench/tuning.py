"""Choosing a setting for the race: every setting is tried on a few seeds.

The setting with which most runs reach the goal is chosen, among those the fastest, and where none reaches it
the one that comes nearest. A run that takes twice as long as the best setting so far is given up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bayescore_lab.bench.contest import Entry, Finish, Setting, words
from bayescore_lab.bench.problems import Problem
from bayescore_lab.bench.timing import Tell

__all__ = ["PATIENCE", "Runner", "Trial", "choose"]

#: problem, setting, seed and the seconds after which to give up, to the end of the run
Runner = Callable[[Problem, Setting, int, float], Finish]
PATIENCE = 20.0  # seconds after which any run is given up
SEEDS = (1000, 1001, 1002)  # the rounds of the race take 0, 1, ...


@dataclass(frozen=True)
class Trial:
    """The runs of one setting, up to the first that missed the goal."""

    setting: Setting
    finishes: tuple[Finish, ...]

    @property
    def rank(self) -> tuple[int, float, float]:
        """Smaller is better: runs at the goal, their median time, the gap."""
        times = [f.seconds for f in self.finishes if f.seconds is not None]
        median = statistics.median(times) if times else math.inf
        return -len(times), median, min(f.gap for f in self.finishes)


def choose(entry: Entry, run: Runner, problem: Problem, tell: Tell) -> tuple[Setting, list[Trial]]:
    """The best setting of an entry, and all that were tried."""
    run(problem, entry.settings[0], 0, 0.0)  # warm-up, ended at the first check
    trials: list[Trial] = []
    limit = PATIENCE
    for setting in entry.settings:
        tell(f"choosing a setting: {entry.name}, {words(setting)}")
        finishes: list[Finish] = []
        while len(finishes) < len(SEEDS) and (not finishes or finishes[-1].seconds is not None):
            finishes.append(run(problem, setting, SEEDS[len(finishes)], limit))
        trials.append(Trial(setting, tuple(finishes)))
        reached, median, _ = trials[-1].rank
        if -reached == len(SEEDS):
            limit = min(limit, 2 * median)
    return min(trials, key=lambda trial: trial.rank).setting, trials
