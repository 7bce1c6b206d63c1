"""Training frameworks: one that hands a closure to the optimizer, and one that calls backward by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, SHELLS, Case, same_state
from torch import Tensor, nn

from bayescore.optim.base import Shell

CASE = NETWORKS["mlp"]


class ClosureTrainer:
    """The way of Lightning: zero_grad, forward and backward happen in a closure that the step calls."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, case: Case) -> None:
        self.model, self.optimizer, self.case = model, optimizer, case
        self.losses: list[Tensor] = []

    def fit(self, steps: int) -> None:
        self.model.train()
        for i in range(steps):
            batch = self.case.batch(seed=i)

            def closure(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
                loss = self.case.loss(self.model, *batch)
                self.optimizer.zero_grad()
                loss.backward()
                return loss

            self.losses.append(self.optimizer.step(closure))  # type: ignore[arg-type]


class BackwardTrainer:
    """The way of the Hugging Face Trainer: `training_step` runs forward and backward, then comes the step."""

    def __init__(self, model: nn.Module, optimizer: Any, case: Case) -> None:
        self.model, self.optimizer, self.case = model, optimizer, case

    def training_step(self, x: Tensor, y: Tensor) -> None:
        self.case.loss(self.model, x, y).backward()

    def fit(self, steps: int) -> None:
        self.model.train()
        for i in range(steps):
            self.training_step(*self.case.batch(seed=i))
            self.optimizer.step()
            self.model.zero_grad()


class SamplingTrainer(BackwardTrainer):
    """The two lines that make it Bayesian."""

    def training_step(self, x: Tensor, y: Tensor) -> None:
        with self.optimizer.sample():
            super().training_step(x, y)


def by_hand(make: Callable[..., Shell], steps: int, draws: int) -> Shell:
    model = CASE.module()
    opt = make(model.parameters(), 50)
    for i in range(steps):
        for _ in range(draws):
            with opt.sample():
                CASE.loss(model, *CASE.batch(seed=i)).backward()
        opt.step()
        opt.zero_grad()
    return opt


@pytest.mark.parametrize("shell", SHELLS)
def test_a_trainer_with_closures_takes_the_same_steps_as_a_loop(shell: str) -> None:
    draws = 2 if shell in ("exact", "bam") else 1
    model = CASE.module()
    opt = SHELLS[shell](model.parameters(), 50, samples=draws)
    trainer = ClosureTrainer(model, opt, CASE)
    trainer.fit(4)
    hand = by_hand(lambda p, n: SHELLS[shell](p, n, samples=draws), 4, draws)
    assert same_state(opt, hand)
    assert all(torch.isfinite(loss) for loss in trainer.losses)


def test_a_trainer_that_calls_backward_needs_one_block_around_it() -> None:
    model = CASE.module()
    opt = SHELLS["exact"](model.parameters(), 50)
    SamplingTrainer(model, opt, CASE).fit(4)
    assert same_state(opt, by_hand(SHELLS["exact"], 4, 1))


def test_a_trainer_without_the_block_is_told_so() -> None:
    model = CASE.module()
    with pytest.raises(RuntimeError, match=r"with opt\.sample\(\)"):
        BackwardTrainer(model, SHELLS["exact"](model.parameters(), 50), CASE).fit(1)


def test_an_exception_in_a_closure_leaves_the_mean_in_the_module() -> None:
    model = CASE.module()
    opt = SHELLS["exact"](model.parameters(), 50)
    before = [p.detach().clone() for p in model.parameters()]

    def closure() -> Tensor:
        raise KeyError

    with pytest.raises(KeyError):
        opt.step(closure)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
