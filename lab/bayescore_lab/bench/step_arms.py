"""One training step of each optimizer of torch and of bayescore, phase by phase.

An arm is made from a `Work` (a network, a mini-batch, its loss) and makes one step when it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from bayescore import optim
from bayescore_lab.bench.networks import Work
from bayescore_lab.bench.phases import Phases

__all__ = ["Arm", "Copy", "Plain", "Sampled", "ours", "plain"]


class Arm(Protocol):
    """A method that trains a network."""

    def step(self, timed: Phases) -> None:
        """One step, its parts on the clock."""


class Plain:
    """An optimizer of torch.optim."""

    def __init__(self, work: Work, optimizer: torch.optim.Optimizer) -> None:
        self.work, self.optimizer = work, optimizer

    def step(self, timed: Phases) -> None:
        self.work.passes(timed)
        with timed("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()


class Sampled:
    """An optimizer of ours: the noise is what entering and leaving `sample()` takes."""

    def __init__(self, work: Work, optimizer: Any, draws: int = 1) -> None:
        self.work, self.optimizer, self.draws = work, optimizer, draws

    def step(self, timed: Phases) -> None:
        for _ in range(self.draws):
            block = self.optimizer.sample()
            with timed("noise"):
                block.__enter__()
            try:
                self.work.passes(timed)
            except BaseException as problem:
                block.__exit__(type(problem), problem, problem.__traceback__)
                raise
            with timed("noise"):
                block.__exit__(None, None, None)
        with timed("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()


class Copy:
    """`copy_` of as many numbers as the network has: the speed of the machine's memory."""

    def __init__(self, work: Work) -> None:
        self.source = torch.cat([p.detach().flatten() for p in work.model.parameters()])
        self.target = torch.zeros_like(self.source)

    def step(self, timed: Phases) -> None:
        with timed("update"):
            self.target.copy_(self.source)


def plain(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[Work], Arm]:
    """How to make an arm of a torch optimizer."""
    return lambda work: Plain(work, kind(work.model.parameters(), **options))


def ours(name: str, draws: int = 1, **options: Any) -> Callable[[Work], Arm]:
    """How to make an arm of an optimizer of ours; what it refuses is an error with its own words."""

    def make(work: Work) -> Arm:
        kind = getattr(optim, name)
        return Sampled(work, kind(work.model.parameters(), num_data=work.num_data, **options), draws)

    return make
