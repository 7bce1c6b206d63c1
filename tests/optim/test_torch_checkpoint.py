"""torch.distributed.checkpoint saves an optimizer and restores it into a fresh one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from small_networks import NETWORKS, OPTIMIZERS, same_state, train
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from bayescore.optim.base import BayesianOptimizer

# it has one process here, and says so
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
CASE = NETWORKS["mlp"]


def fresh(kind: str, **options: Any) -> tuple[nn.Module, BayesianOptimizer]:
    model = CASE.module(torch.float32)
    return model, OPTIMIZERS[kind](model.parameters(), 50, **options)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("options", [{}, {"prior_mean": "current"}])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fresh_optimizer_continues_bitwise(
    kind: str, options: dict[str, Any], flat: bool, tmp_path: Path
) -> None:
    how = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, opt = fresh(kind, **options)
    train(opt, CASE, model, 5)
    weights, state = get_state_dict(model, opt, options=how)
    dcp.save({"weights": weights, "state": state}, checkpoint_id=tmp_path / "saved", no_dist=True)
    train(opt, CASE, model, 3, first=5)

    again, other = fresh(kind, **options)
    weights, state = get_state_dict(again, other, options=how)
    box = {"weights": weights, "state": state}
    dcp.load(box, checkpoint_id=tmp_path / "saved", no_dist=True)
    set_state_dict(again, other, model_state_dict=box["weights"], optim_state_dict=box["state"], options=how)
    train(other, CASE, again, 3, first=5)
    assert same_state(opt, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_asking_a_fresh_optimizer_for_its_state_changes_nothing(kind: str) -> None:
    model, opt = fresh(kind)
    twin, untouched = fresh(kind)
    groups = copy.deepcopy([{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups])
    get_state_dict(model, opt)
    assert groups == [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
    assert all(p.grad is None for p in model.parameters())
    for optimizer, module in ((opt, model), (untouched, twin)):
        train(optimizer, CASE, module, 2)
    assert same_state(opt, untouched)


def test_a_step_without_a_draw_is_still_refused() -> None:
    model, opt = fresh("proximal")
    x, y = CASE.batch(seed=0)
    CASE.loss(model, x, y).backward()
    for group in opt.param_groups:
        group["lr"] = 0.0  # as a warm-up has it
    with pytest.raises(RuntimeError, match="needs 1 draw"):
        opt.step()
    opt.zero_grad()
    with pytest.raises(RuntimeError, match="needs 1 draw"):
        opt.step()
    assert opt.param_groups[0]["updates"] == 0


class WithAnEmptyTensor(nn.Module):
    """A layer, and a parameter of no elements, as a block of width zero has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.empty.sum()


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_parameter_without_elements_is_no_obstacle(kind: str, flat: bool, tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, BayesianOptimizer]:
        torch.manual_seed(0)
        model = WithAnEmptyTensor()
        return model, OPTIMIZERS[kind](model.parameters(), 50)

    def steps(model: nn.Module, opt: BayesianOptimizer) -> None:
        def closure() -> torch.Tensor:
            loss: torch.Tensor = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            return loss.detach()

        for _ in range(3):
            opt.step(closure)
            opt.zero_grad()

    how = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, opt = made()
    steps(model, opt)
    weights, state = get_state_dict(model, opt, options=how)
    dcp.save({"weights": weights, "state": state}, checkpoint_id=tmp_path / "saved", no_dist=True)
    again, other = made()
    weights, state = get_state_dict(again, other, options=how)
    box = {"weights": weights, "state": state}
    dcp.load(box, checkpoint_id=tmp_path / "saved", no_dist=True)
    set_state_dict(again, other, model_state_dict=box["weights"], optim_state_dict=box["state"], options=how)
    steps(model, opt)
    steps(again, other)
    assert same_state(opt, other)
