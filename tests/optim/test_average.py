"""The averaged mean, optim/base.py (3): what the posterior has while training goes on with the last mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import OPTIMIZERS, coarse_normal, large_from
from torch import Tensor, nn

from bayescore.optim import SGLD, ProximalScore
from bayescore.optim.base import BayesianOptimizer

SIZE, SHARE = 200, 0.5
VARIATIONAL = [name for name in OPTIMIZERS if not name.endswith("sgld")]


class Model(nn.Module):
    """One tensor of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, SIZE))


def started(shell: str, **options: Any) -> tuple[Model, BayesianOptimizer]:
    model = Model()
    return model, OPTIMIZERS[shell](model.named_parameters(), 50, **options)


def step(model: Model, opt: BayesianOptimizer, draws: int = 1) -> Tensor:
    """One step; returns the mean after it."""
    for _ in range(max(draws, opt.least_draws)):
        with opt.sample():
            model.weight.tanh().square().mean().backward()
    opt.step()
    opt.zero_grad()
    return model.weight.detach().clone()


def averaged(model: Model, opt: BayesianOptimizer) -> Tensor:
    return opt.posterior(model).mean["weight"]


@pytest.fixture(params=[True, False], ids=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(10 * SIZE if request.param else 20, monkeypatch)
    # without an average, a large tensor's noise has levels and its numbers fewer bits
    monkeypatch.setattr("bayescore.optim.base.generator_normal", coarse_normal)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("shell", VARIATIONAL)
def test_the_posterior_averages_and_training_goes_on_as_without(shell: str, draws: int) -> None:
    (model, opt), (other, plain) = started(shell, average=SHARE), started(shell)
    expected = torch.zeros(SIZE)
    for t in range(1, 8):
        mean = step(model, opt, draws)
        torch.testing.assert_close(mean, step(other, plain, draws), rtol=1e-4, atol=1e-6)
        expected += (mean - expected) / max(1.0, SHARE * t)  # (3)
        torch.testing.assert_close(averaged(model, opt), expected)
    assert torch.equal(averaged(other, plain), other.weight)
    assert not torch.equal(averaged(model, opt), mean)


@pytest.mark.parametrize("shell", ["proximal", "calibrated", "advi"])
def test_it_is_the_same_when_gradients_are_used_as_they_arrive(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_from(20, monkeypatch)
    found = []
    for arriving in (True, False):
        model, opt = started(shell, average=SHARE, update_in_backward=arriving, lr=0.01)
        for _ in range(4):
            step(model, opt)
        found.append(averaged(model, opt))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("shell", VARIATIONAL)
def test_resuming_continues_the_average_bitwise(shell: str) -> None:
    model, opt = started(shell, average=SHARE)
    for _ in range(3):
        step(model, opt)
    kept = opt.state_dict()
    again, fresh = started(shell, average=SHARE)
    fresh.load_state_dict(kept)
    for _ in range(3):
        step(model, opt)
        step(again, fresh)
    assert torch.equal(averaged(model, opt), averaged(again, fresh))


def test_a_tail_of_a_constant_share_is_all_that_is_left_of_a_far_start() -> None:
    """Weights of (3): what is older than a third of the updates counts by its share to the power 1/f."""
    model, opt = started("proximal", average=0.25, lr=0.1)
    path = torch.stack([step(model, opt) for _ in range(60)])
    t = torch.arange(1, 61, dtype=torch.float64)
    weights = 1 / (0.25 * t).clamp(min=1)
    later = torch.cat([(1 - weights).flip(0).cumprod(0).flip(0)[1:], torch.ones(1, dtype=torch.float64)])
    shares = weights * later
    assert shares.sum() == pytest.approx(1)
    assert shares[:20].sum() < 0.02
    torch.testing.assert_close(averaged(model, opt), (shares.float()[:, None] * path).sum(0))


@pytest.mark.parametrize(
    ("shell", "options"),
    [
        ("proximal", {"lr": 0.5, "temperature": 1e-6}),
        ("calibrated", {"lr": 0.5, "init_sd": 1e-3, "momentum": 0.0}),
    ],
)
def test_the_average_is_nearer_to_the_optimum_than_the_last_mean(shell: str, options: dict[str, Any]) -> None:
    """Noisy gradients about zero at a constant rate: the last mean wanders, the average does not."""
    torch.manual_seed(0)
    model, opt = started(shell, average=0.5, **options)
    for _ in range(300):
        with opt.sample():
            (0.5 * model.weight.square() + torch.randn(SIZE) * model.weight).sum().backward()
        opt.step()
    assert averaged(model, opt).square().mean() < 0.1 * model.weight.detach().square().mean()


def test_a_skipped_update_leaves_it_alone() -> None:
    model, opt = started("proximal", average=SHARE)
    step(model, opt)
    step(model, opt)
    before = averaged(model, opt)
    with opt.sample():
        (model.weight.sum() * float("nan")).backward()
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    assert torch.equal(averaged(model, opt), before)


@pytest.mark.usefixtures("size")
def test_the_average_moves_with_weights_that_somebody_writes_and_comes_back_with_them() -> None:
    model, opt = started("proximal", average=SHARE)
    step(model, opt)
    last = step(model, opt)
    before = averaged(model, opt)
    with torch.no_grad():
        model.weight[:5] += 7.0
    assert "2 updates" in opt.status
    torch.testing.assert_close(averaged(model, opt)[:5], before[:5] + 7)
    assert torch.equal(averaged(model, opt)[5:], before[5:])
    with torch.no_grad():
        model.weight.copy_(last)
    torch.testing.assert_close(averaged(model, opt), before)


def test_weights_that_are_written_while_a_draw_is_kept_restart_the_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large_from(20, monkeypatch)
    model, opt = started("proximal", average=SHARE)
    step(model, opt)
    with opt.sample():
        model.weight.sum().backward()
    with torch.no_grad():
        model.weight.fill_(7.0)
    assert torch.equal(averaged(model, opt), torch.full((SIZE,), 7.0))


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("frozen", [True, False])
def test_a_tensor_that_stands_still_is_averaged_with_where_it_stands(frozen: bool) -> None:
    moving, still = nn.Parameter(torch.ones(SIZE)), nn.Parameter(torch.ones(SIZE))
    model = nn.ParameterDict({"moving": moving, "still": still})
    opt = OPTIMIZERS["advi"](model.named_parameters(), 50, average=SHARE, lr=0.1)
    for t in range(400):
        if frozen and t == 3:
            still.requires_grad_(False)
        with opt.sample():
            (moving.square() + (still.square() if t < 3 else 0)).sum().backward()
        opt.step()
        opt.zero_grad()
    found = opt.posterior(model).mean["still"]
    torch.testing.assert_close(found, still.detach(), rtol=0, atol=1e-4)


def test_it_can_be_switched_off_later() -> None:
    model, opt = started("proximal", average=SHARE)
    for _ in range(3):
        step(model, opt)
    for group in opt.param_groups:
        group["average"] = 0.0
    assert torch.equal(step(model, opt), averaged(model, opt))


def test_it_can_be_switched_on_later() -> None:
    model, opt = started("proximal")
    step(model, opt)
    for group in opt.param_groups:
        group["average"] = SHARE
    first, second = step(model, opt), step(model, opt)
    torch.testing.assert_close(averaged(model, opt), first + (second - first) / 1.5)


def test_a_checkpoint_brings_its_own_average_or_is_refused() -> None:
    model, opt = started("proximal", average=SHARE)
    step(model, opt)
    kept = opt.state_dict()
    other, fresh = started("proximal")
    fresh.load_state_dict(kept)
    assert fresh.param_groups[0]["average"] == SHARE
    assert torch.equal(averaged(other, fresh), averaged(model, opt))
    with_nothing = {**kept, "state": {0: {k: v for k, v in kept["state"][0].items() if k != "average"}}}
    with pytest.raises(ValueError, match="average of weight is missing"):
        started("proximal")[1].load_state_dict(with_nothing)
    odd = {**kept, "state": {0: {**kept["state"][0], "average": torch.zeros(7)}}}
    with pytest.raises(ValueError, match="average of weight is missing or of another shape"):
        started("proximal")[1].load_state_dict(odd)
    senseless = {**kept, "param_groups": [{**kept["param_groups"][0], "init_sd": "wide"}]}
    with pytest.raises(ValueError, match="its options make no sense"):
        started("proximal")[1].load_state_dict(senseless)


def test_an_arriving_update_without_a_finite_gradient_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(20, monkeypatch)
    model, opt = started("proximal", average=1.0, update_in_backward=True, lr=0.01)
    with opt.sample():
        (model.weight.sum() * float("nan")).backward()
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    opt.zero_grad()
    assert torch.equal(step(model, opt), averaged(model, opt))
    assert "; 1 updates" in opt.status


@pytest.mark.parametrize("value", [-0.1, 1.5, True, "a half", float("nan")])
def test_senseless_shares_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="average is the share of the updates"):
        ProximalScore(Model().parameters(), 50, average=value)


def test_sgld_has_its_path_instead() -> None:
    with pytest.raises(ValueError, match="SGLD has no average"):
        SGLD(Model().parameters(), 50, average=0.5)
    with pytest.raises(ValueError, match="SGLD has no average"):
        SGLD([{"params": Model().parameters(), "average": 0.5}], 50)
