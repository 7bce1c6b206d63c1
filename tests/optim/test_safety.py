"""Wrong uses say so, and whatever happens inside a block leaves the mean in the module."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, same_state, train
from torch import nn

from bayescore.optim import ADVI, SGLD, BaM, CalibratedScore, PairedBaM, ProximalDescent, ProximalScore

MLP = NETWORKS["mlp"]


def network(shell: str = "proximal", **options):  # type: ignore[no-untyped-def]
    model = MLP.module()
    return model, OPTIMIZERS[shell](model.parameters(), 50, **options)


def block(opt, model, seed: int = 0, factor: float = 1.0) -> None:  # type: ignore[no-untyped-def]
    with opt.sample():
        (factor * MLP.loss(model, *MLP.batch(seed=seed))).backward()


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_an_exception_inside_a_block_restores_the_mean_bitwise(shell: str) -> None:
    model, opt = network(shell)
    train(opt, MLP, model, 2)
    twin = copy.deepcopy(model)
    other = OPTIMIZERS[shell](twin.parameters(), 50)
    other.load_state_dict(opt.state_dict())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError, match="boom"), opt.sample():  # noqa: PT012
        MLP.loss(model, *MLP.batch()).backward()
        raise KeyError("boom")
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    train(opt, MLP, model, 2, first=2)
    train(other, MLP, twin, 2, first=2)
    assert same_state(opt, other)


def test_ctrl_c_while_the_mean_is_written_back_leaves_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    model, opt = network()
    train(opt, MLP, model, 2)
    before, write = copy.deepcopy(model.state_dict()), opt._write_mean
    presses = iter([True, False])

    def interrupted(bucket: Any) -> None:
        if next(presses):
            raise KeyboardInterrupt
        write(bucket)

    monkeypatch.setattr(opt, "_write_mean", interrupted)
    with pytest.raises(KeyboardInterrupt):
        block(opt, model)
    monkeypatch.undo()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    opt.zero_grad()
    train(opt, MLP, model, 1)


def test_a_block_inside_a_block_is_refused() -> None:
    _, opt = network()
    with pytest.raises(RuntimeError, match="inside sample"), opt.sample(), opt.sample():
        pass


def test_a_block_that_was_never_closed_is_noticed() -> None:
    model, opt = network()
    context = opt.sample()
    context.__enter__()
    for call in (opt.step, opt.state_dict, lambda: opt.posterior(model)):
        with pytest.raises(RuntimeError, match=r"inside sample|middle of a step"):
            call()
    context.gen.close()


def test_a_block_without_backward_is_refused() -> None:
    model, opt = network()
    with pytest.raises(RuntimeError, match=r"call loss\.backward"), opt.sample():
        model(MLP.batch()[0])


def test_a_step_without_a_block_is_refused() -> None:
    model, opt = network()
    MLP.loss(model, *MLP.batch()).backward()
    with pytest.raises(RuntimeError, match="there were 0"):
        opt.step()


def test_bam_asks_for_its_second_draw() -> None:
    model, opt = network("bam")
    block(opt, model)
    with pytest.raises(RuntimeError, match="needs 2 draw"):
        opt.step()


def test_clearing_gradients_before_the_step_is_noticed() -> None:
    model, opt = network()
    block(opt, model)
    opt.zero_grad()
    with pytest.raises(RuntimeError, match=r"zero_grad\(\) before step"):
        opt.step()
    block(opt, model)
    model.zero_grad()
    with pytest.raises(RuntimeError, match="after step"):
        opt.step()


def test_gradients_left_from_another_backward_do_not_enter_the_next_block() -> None:
    model, opt = network()
    twin, other = network()
    MLP.loss(model, *MLP.batch(seed=9)).backward()
    for o, m in ((opt, model), (other, twin)):
        with pytest.warns(RuntimeWarning, match="outside sample") if o is opt else nullcontext():
            block(o, m)
        o.step()
    assert same_state(opt, other)


def test_gradients_that_a_step_has_used_may_stay_until_the_next_block() -> None:
    model, opt = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            block(opt, model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()
    MLP.loss(model, *MLP.batch(seed=9)).backward()  # adds to what the last step has left
    with pytest.warns(RuntimeWarning, match="outside sample"):
        block(opt, model)


@pytest.mark.parametrize("shell", OPTIMIZERS)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_between_blocks_throws_the_earlier_draws_away(shell: str, set_to_none: bool) -> None:
    model, opt = network(shell)
    twin, other = network(shell)
    block(opt, model, factor=100.0)
    opt.zero_grad(set_to_none)
    with pytest.raises(RuntimeError, match="there were 0"):
        opt.step()
    for o, m in ((opt, model), (other, twin)):
        for group in o.param_groups:
            group["step"] = 4
        for _ in range(o.least_draws):
            block(o, m)
        o.step()
    assert same_state(opt, other)


def test_gradients_that_somebody_else_has_thrown_away_between_blocks_are_missed() -> None:
    model, opt = network()
    block(opt, model)
    model.zero_grad()
    with pytest.raises(RuntimeError, match="gone"):
        block(opt, model)


def test_zero_grad_inside_a_block_leaves_earlier_draws_alone() -> None:
    found = []
    for inside in (False, True):
        model, opt = network(draws=2)

        def closure(model: nn.Module = model, opt: Any = opt, inside: bool = inside) -> Any:
            if inside:
                opt.zero_grad()
            loss = MLP.loss(model, *MLP.batch())
            loss.backward()
            return loss

        opt.step(closure)
        found.append(opt)
    assert same_state(*found)


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_nan_batch_costs_one_update_and_one_warning(shell: str) -> None:
    model, opt = network(shell)
    train(opt, MLP, model, 1)
    before = {p: opt.state[p]["mean"].clone() for p in model.parameters()}
    for i in range(2):
        for _ in range(opt.least_draws):
            block(opt, model, factor=float("nan"))
        if i == 0:
            with pytest.warns(RuntimeWarning, match="not finite"):
                opt.step()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                opt.step()
    assert all(torch.equal(before[p], opt.state[p]["mean"]) for p in before)
    assert "2 left out" in opt.status
    train(opt, MLP, model, 1)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_nan_after_nan_stops_the_run() -> None:
    model, opt = network(max_skips=2)
    block(opt, model, factor=float("nan"))
    with pytest.warns(RuntimeWarning):
        opt.step()
    block(opt, model, factor=float("inf"))
    with pytest.raises(FloatingPointError, match="2 updates in a row"):
        opt.step()


def test_weights_written_from_outside_become_the_mean() -> None:
    model, opt = network()
    train(opt, MLP, model, 1)
    with torch.no_grad():
        model[0].bias.fill_(0.5)
    with opt.sample():
        MLP.loss(model, *MLP.batch()).backward()
    assert torch.equal(model[0].bias, torch.full((6,), 0.5))


def test_the_posterior_of_another_model_is_refused() -> None:
    _, opt = network()
    with pytest.raises(ValueError, match="pass the model"):
        opt.posterior(MLP.module())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: ProximalScore(p, 0), "num_data"),
        (lambda p: ProximalScore(p, 10, temperature=0.0), "temperature"),
        (lambda p: ProximalDescent(p, 10, optimizer="newton"), "optimizer"),
        (lambda p: CalibratedScore(p, 10, momentum=1.0), "momentum"),
        (lambda p: ProximalScore(p, 10, betas=(1.0, 0.9)), "betas"),
        (lambda p: ProximalScore(p, 10, nats=-0.1), "nats"),
        (lambda p: ProximalScore(p, 10, prior_scale=0.0), "prior_scale"),
        (lambda p: ProximalScore(p, 10, prior_mean="pretrained"), "prior_mean"),
        (lambda p: ProximalScore(p, 10, prior_mean={}), "named_parameters"),
        (lambda p: ADVI(p, 10, prior_sd=-1.0), "prior_sd"),
        (lambda p: ADVI(p, 10, init_sd=0.0), "init_sd"),
        (lambda p: ADVI(p, 10, weight_decay=-1.0), "weight_decay"),
        (lambda p: ProximalScore(p, 10, lr=0.1, weight_decay=10.0), "share of a weight"),
        (lambda p: BaM(p, 10, draws=1), "draws"),
        (lambda p: PairedBaM(p, 10, draws=1), "draws"),
        (lambda p: SGLD(p, 10, keep=1), "keep"),
    ],
)
def test_senseless_options_are_refused_with_their_name(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make(nn.Linear(2, 2).parameters())


def test_a_chain_without_kept_states_says_why() -> None:
    model = MLP.module()
    opt = SGLD(model.parameters(), 50, burn_in=10)
    train(opt, MLP, model, 2)
    with pytest.raises(RuntimeError, match="burn-in"):
        opt.posterior(model)
