"""The update during backward gives what step() gives, frees the gradients, and refuses what it cannot do."""

from __future__ import annotations

import math

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, large_from
from torch import nn
from torch.nn import functional as F

from bayescore.optim import BaM, PairedBaM, ProximalScore
from bayescore.optim.base import BayesianOptimizer
from bayescore.optim.gradients import is_used

ONE_DRAW = [shell for shell in OPTIMIZERS if "bam" not in shell]


@pytest.fixture(autouse=True)
def _hidden_layers_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(20, monkeypatch)


def run(
    shell: str, case: str = "mlp", steps: int = 3, **options: object
) -> tuple[nn.Module, BayesianOptimizer]:
    net = NETWORKS[case]
    model = net.module()
    opt = OPTIMIZERS[shell](model.parameters(), 50, **options)
    torch.manual_seed(0)  # for the dropout inside attention
    for step in range(steps):
        with opt.sample():
            net.loss(model, *net.batch(seed=step)).backward()
        opt.step()
        opt.zero_grad()
    return model, opt


@pytest.mark.parametrize("case", NETWORKS)
@pytest.mark.parametrize("shell", ONE_DRAW)
def test_the_same_posterior_as_with_step(shell: str, case: str) -> None:
    one, after = run(shell, case)
    two, during = run(shell, case, update_in_backward=True)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
        for key, value in after.state[a].items():
            assert torch.equal(value, during.state[b][key]), key
    assert after.status == during.status


def test_gradients_of_large_tensors_are_gone_when_backward_returns() -> None:
    net = NETWORKS["mlp"]
    model = net.module()
    opt = ProximalScore(model.parameters(), 50, update_in_backward=True)
    with opt.sample():
        net.loss(model, *net.batch()).backward()
        assert is_used(model[0].weight.grad)
        assert not is_used(model[2].bias.grad)
    with torch._C.DisableTorchFunctionSubclass():
        assert model[0].weight.grad.untyped_storage().nbytes() == 4
    opt.step()


def block(opt: BayesianOptimizer, model: nn.Module) -> None:
    net = NETWORKS["mlp"]
    with opt.sample():
        net.loss(model, *net.batch()).backward()


def test_what_needs_all_gradients_at_once_is_refused_by_name() -> None:
    model = NETWORKS["mlp"].module()
    for options, word in (({"draws": 2}, "draws=2"), ({"accumulate": 3}, "accumulate=3")):
        with pytest.raises(ValueError, match=word):
            ProximalScore(model.parameters(), 50, update_in_backward=True, **options)
    for kind in (BaM, PairedBaM):
        with pytest.raises(
            ValueError, match=f"update_in_backward=True cannot go with {kind.__name__}, which"
        ):
            kind(model.parameters(), 50, update_in_backward=True, draws=2)
    with pytest.raises(ValueError, match="True or False"):
        ProximalScore(model.parameters(), 50, update_in_backward="yes")  # type: ignore[arg-type]
    opt = ProximalScore(model.parameters(), 50, update_in_backward=True)
    block(opt, model)
    with pytest.raises(RuntimeError, match="clipping by the global norm"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(RuntimeError, match="one draw per step"):
        block(opt, model)
    opt.step()
    net = NETWORKS["mlp"]
    with opt.sample():
        net.loss(model, *net.batch()).backward()
        loss = net.loss(model, *net.batch())
        with pytest.raises(RuntimeError, match="second backward call"):
            loss.backward()


def test_a_grad_scaler_is_refused_by_name() -> None:
    model = NETWORKS["mlp"].module()
    opt = ProximalScore(model.parameters(), 50, update_in_backward=True)
    scaler = torch.amp.GradScaler("cpu")
    net = NETWORKS["mlp"]
    with opt.sample():
        scaler.scale(net.loss(model, *net.batch())).backward()
    with pytest.raises(RuntimeError, match="GradScaler"):
        scaler.step(opt)


def test_a_gradient_that_is_not_finite_leaves_its_tensor_and_is_counted() -> None:
    first, second = nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)
    opt = ProximalScore([*first.parameters(), *second.parameters()], 50, update_in_backward=True)
    list(opt._members())  # puts large tensors on their grids
    before = [p.detach().clone() for p in (first.weight, second.weight)]
    with opt.sample():
        hidden = first(torch.ones(5, 4))
        hidden.register_hook(lambda g: g * math.nan)
        F.cross_entropy(second(hidden), torch.zeros(5, dtype=torch.long)).backward()
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    assert torch.equal(first.weight, before[0])
    assert not torch.equal(second.weight, before[1])
    assert "1 left out" in opt.status


def test_an_exception_restores_the_mean_and_the_next_step_is_the_first() -> None:
    model = NETWORKS["mlp"].module()
    opt = ProximalScore(model.parameters(), 50, update_in_backward=True)
    list(opt._members())  # puts large tensors on their grids
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(KeyError), opt.sample():
        raise KeyError("the data loader")
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    block(opt, model)
    opt.step()
    assert "; 1 updates" in opt.status
