"""One run of the MNIST experiment: learn, choose the epoch on validation, stop when it no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.data import Split
from bayescore.models import mlp
from bayescore.nn import Posterior
from bayescore.rng import generator
from bayescore_lab.experiments.networks.learners import LEARNERS
from bayescore_lab.experiments.networks.split import batches

__all__ = ["Learned", "Schedule", "learn", "network", "nll"]


@dataclass(frozen=True)
class Schedule:
    """How long a run may take: epochs, validation every so many, stop after so many without improvement."""

    epochs: int
    every: int
    patience: int
    batch_size: int = 128
    draws: int = 5


@dataclass(frozen=True)
class Learned:
    """The posterior of the best epoch; None where every look was not finite."""

    posterior: Posterior | None
    epoch: int
    validation_nll: float
    steps: int
    trace: dict[str, list[float]]


def network(seed: int, hidden: tuple[int, ...] = (1000, 1000, 1000)) -> nn.Sequential:
    """The paper's MLP; a seed gives every method the same initial weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return mlp(784, hidden, 10)


def learn(
    kind: str, options: dict[str, Any], split: Split, model: nn.Module, seed: int, s: Schedule
) -> Learned:
    """Learn with the method `kind`, best epoch on validation.

    Dropout and IVON draw from torch's global stream, which has a seed of this run and is put back.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(generator(seed, purpose="training").initial_seed())
        return _learn(kind, options, split, model, seed, s)


def _learn(
    kind: str, options: dict[str, Any], split: Split, model: nn.Module, seed: int, s: Schedule
) -> Learned:
    count = len(split.train)
    per_epoch = -(-count // s.batch_size)
    learner = LEARNERS[kind](model, count, -(-count // per_epoch), per_epoch * s.epochs, seed, options)
    rng = generator(seed, "cpu", "batches")
    best: tuple[float, int, Posterior | None] = (math.inf, 0, None)
    trace: dict[str, list[float]] = {"epoch": [], "validation_nll": []}
    for epoch in range(1, s.epochs + 1):
        try:
            for rows in batches(count, s.batch_size, rng):
                learner.step(split.train.x[rows], split.train.y[rows])
        except FloatingPointError:  # gradients were not finite for many steps: it has diverged
            break
        if epoch % s.every and epoch < s.epochs:
            continue
        posterior = learner.posterior()
        if posterior is None:
            continue
        value = nll(posterior, split.validation.x, split.validation.y, s.draws)
        trace["epoch"].append(epoch)
        trace["validation_nll"].append(value)
        if value < best[0]:
            best = (value, epoch, posterior)
        if not math.isfinite(value) or (best[2] is not None and epoch - best[1] >= s.patience):
            break
    return Learned(best[2], best[1], best[0], learner.t, trace)


def nll(posterior: Posterior, x: Tensor, y: Tensor, draws: int) -> float:
    """Mean negative log probability of the labels under the averaged prediction."""
    return -float(posterior.predict(x, draws).log_prob(y).mean())
