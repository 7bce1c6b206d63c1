"""Our side of the race: one fit, with the clock stopped while its ELBO is evaluated."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.families.full import FullGaussian
from bayescore.inference.fitting import fit
from bayescore.inference.result import Fit
from bayescore.targets.base import Target
from bayescore_lab.bench.contest import Finish, Own, Setting
from bayescore_lab.bench.problems import Problem

__all__ = ["run_own"]


class _Watch:
    """A metric that stops the clock and a callback that starts it again, or ends the fit at the goal."""

    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem, self.goal, self.limit = problem, problem.goal, limit
        self.seconds, self.elbo, self.checks = 0.0, -math.inf, 0
        self.running_since = time.perf_counter()

    def metric(self, family: Family, target: Target) -> Tensor:  # noqa: ARG002
        self.seconds += time.perf_counter() - self.running_since
        q = family[0]
        assert isinstance(q, FullGaussian)
        self.elbo = self.problem.elbo(q)
        self.checks += 1
        if self.checks == 1:  # the record of the start, after which no callback is called
            self.running_since = time.perf_counter()
        return torch.tensor([self.elbo])

    def callback(self, fit: Fit) -> bool:  # noqa: ARG002
        self.running_since = time.perf_counter()
        return self.elbo >= self.goal or self.seconds > self.limit


def run_own(entry: Own, problem: Problem, setting: Setting, seed: int, limit: float) -> Finish:
    """Fit until the goal is reached, the budget is used, or `limit` seconds are over."""
    watch = _Watch(problem, limit)
    result = fit(
        problem.target,
        problem.start,
        entry.make(setting),
        steps=problem.budget,
        seed=seed,
        metrics={"elbo": watch.metric},
        record_every=entry.check_every,
        callbacks=[watch.callback],
        progress=False,
        check=False,
    )
    return Finish(
        seconds=watch.seconds if watch.elbo >= watch.goal else None,
        score_calls=result.score_calls,
        steps=result.state.step,
        gap=problem.best - watch.elbo,
    )
