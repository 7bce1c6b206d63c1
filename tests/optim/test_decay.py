"""Decoupled weight decay, optim/base.py (2): what the step would have been, less a share of each weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import OPTIMIZERS, flat_prior, large_from
from torch import Tensor

from bayescore.optim.base import BayesianOptimizer

SIZE, LR, DECAY = 200, 1e-3, 20.0


def before() -> Tensor:
    return torch.linspace(-1, 1, SIZE)


def stepped(
    make: Any, draws: int, steps: int = 1, decay: float = DECAY, **options: Any
) -> tuple[Tensor, BayesianOptimizer]:
    """The weights in the module after some steps, all methods at the same rate."""
    p = torch.nn.Parameter(before())
    opt = make([p], 50, **options)
    for group in opt.param_groups:
        group["lr"], group["weight_decay"] = LR, decay
    for _ in range(steps):
        for _ in range(max(draws, opt.least_draws)):
            with opt.sample():
                (p.tanh().square().mean()).backward()
        opt.step()
        opt.zero_grad()
    assert torch.equal(p.detach(), opt.state[p]["mean"])
    return p.detach(), opt


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_step_takes_off_its_share_of_the_way_to_the_prior_mean(
    shell: str, draws: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_from(10 * SIZE if small else 20, monkeypatch)
    free, without = stepped(OPTIMIZERS[shell], draws, decay=0.0, prior_mean=0.5)
    held, opt = stepped(OPTIMIZERS[shell], draws, prior_mean=0.5)
    torch.testing.assert_close(held, free - LR * DECAY * (before() - 0.5), rtol=0, atol=1e-6)
    if "sd" in opt.state[opt.param_groups[0]["params"][0]]:
        sds = [o.state[o.param_groups[0]["params"][0]]["sd"] for o in (opt, without)]
        torch.testing.assert_close(sds[0], sds[1])


@pytest.mark.parametrize("shell", ["proximal", "calibrated", "advi"])
def test_it_is_the_same_when_gradients_are_used_as_they_arrive(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_from(20, monkeypatch)
    found = [stepped(OPTIMIZERS[shell], 1, 3, update_in_backward=arriving)[0] for arriving in (True, False)]
    torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's compiler loads its old one
@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_it_is_the_same_compiled(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(20, monkeypatch)
    fast, eager = (stepped(OPTIMIZERS[shell], 1, 3, compiled=wish) for wish in (True, False))
    assert fast[1].status.endswith("update compiled")
    torch.testing.assert_close(fast[0], eager[0])


@pytest.mark.parametrize("shell", ["proximal", "calibrated"])
def test_a_group_has_its_own(shell: str) -> None:
    kept, shrunk = (torch.nn.Parameter(before()) for _ in range(2))
    groups = [{"params": [kept], "weight_decay": 0.0}, {"params": [shrunk]}]
    opt = OPTIMIZERS[shell](groups, 50, **{**flat_prior(shell), "weight_decay": 5.0, "lr": 0.1})
    with opt.sample():
        kept.grad, shrunk.grad = torch.zeros(SIZE), torch.zeros(SIZE)
    opt.step()
    torch.testing.assert_close(shrunk.detach() - kept.detach(), -0.5 * before(), atol=2e-3, rtol=0)
