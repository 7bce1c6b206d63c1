"""Losses steeper than a classification's, optim/steep.py: a rate and an sd of ours are lowered."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_networks import OPTIMIZERS
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.optim import SGLD, CalibratedScore, PairedBaM
from bayescore.optim.base import BayesianOptimizer

MAKERS = {"calibrated": CalibratedScore, "bam": PairedBaM, "sgld": SGLD}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))


def curve(n: int = 64) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-3, 3, n).unsqueeze(1)
    return x, (1.5 * x).sin()


def train(opt: BayesianOptimizer, model: nn.Module, steps: int, noise: float) -> list[float]:
    """Losses in units of an unscaled squared error."""
    x, y = curve()
    found = []
    for _ in range(steps):
        for _ in range(opt.least_draws):
            with opt.sample():
                loss = (model(x) - y).square().mean() / 2
                (loss / noise**2).backward()
        opt.step()
        opt.zero_grad()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_a_steep_regression_is_learned_with_default_settings(name: str, noise: float) -> None:
    model = network()
    opt = MAKERS[name](model.parameters(), 64)
    losses = train(opt, model, 400, noise)
    assert sum(losses[-20:]) / 20 < 0.5 * losses[0]
    assert "for a steep loss" in opt.status
    assert all(p.isfinite().all() for p in model.parameters())


def test_rate_and_initial_sd_are_those_of_the_curvature() -> None:
    model = network()
    opt = CalibratedScore(model.parameters(), 64)
    before = opt.param_groups[0]["init_sd"]
    means = copy.deepcopy(model.state_dict())
    train(opt, model, 1, 0.01)
    group = opt.param_groups[0]
    assert group["updates"] == 0  # the update that would have gone too far is left out
    assert all(torch.equal(means[name], p) for name, p in model.state_dict().items())
    assert group["init_sd"] == pytest.approx(before * group["lr_factor"] ** 0.5)
    for p in model.parameters():
        torch.testing.assert_close(opt.state[p]["sd"], torch.full_like(p, group["init_sd"]))


@pytest.mark.parametrize("name", MAKERS)
def test_a_classification_and_a_rate_that_was_given_are_left_alone(name: str) -> None:
    def classified(**options: Any) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
        x = torch.randn(60, 2)
        opt = MAKERS[name](model.parameters(), 60, **options)
        for _ in range(5):
            for _ in range(opt.least_draws):
                with opt.sample():
                    F.cross_entropy(model(x), torch.arange(60) % 3).backward()
            opt.step()
            opt.zero_grad()
        assert opt.param_groups[0]["lr_factor"] == 1.0
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    rate = {"calibrated": 0.1, "bam": 0.2, "sgld": 0.01}[name]
    assert torch.equal(classified(), classified(lr=rate))
    model = network()
    opt = MAKERS[name](model.parameters(), 64, lr=1e-9)
    train(opt, model, 3, 1e-3)
    assert opt.param_groups[0]["lr_factor"] == 1.0


def test_a_group_with_its_own_rate_is_not_watched() -> None:
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 1e-6}, {"params": model[2].parameters()}]
    opt = CalibratedScore(groups, 64)
    train(opt, model, 1, 0.01)
    assert opt.param_groups[0]["lr_factor"] == 1.0
    assert opt.param_groups[1]["lr_factor"] < 1


@pytest.mark.parametrize("name", MAKERS)
def test_a_watched_run_continues_bitwise(name: str) -> None:
    whole, cut = network(), network()
    opt = MAKERS[name](whole.parameters(), 64)
    train(opt, whole, 12, 0.05)
    first = MAKERS[name](cut.parameters(), 64)
    train(first, cut, 6, 0.05)
    second = MAKERS[name](cut.parameters(), 64)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, cut, 6, 0.05)
    for p, q in zip(whole.parameters(), cut.parameters(), strict=True):
        assert torch.equal(p, q)


def test_methods_with_adams_steps_do_not_watch() -> None:
    for shell in ("descent", "advi"):
        opt = OPTIMIZERS[shell](network().parameters(), 64)
        assert opt.param_groups[0]["steep_watch"] == 0
