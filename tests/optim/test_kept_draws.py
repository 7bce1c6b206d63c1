"""From the end of a block to the step, a large tensor's state has its draw and no mean: nobody notices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from bayescore.optim import ADVI, CalibratedScore, ProximalDescent, ProximalScore
from bayescore.optim.base import BayesianOptimizer

SIZE = 200
KINDS = [ProximalScore, CalibratedScore, ProximalDescent, ADVI]


@pytest.fixture(autouse=True)
def _tensors_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayescore.optim.engine.SMALL", 20)


def start(
    kind: type[BayesianOptimizer] = ProximalScore, **options: object
) -> tuple[nn.Module, BayesianOptimizer, Tensor]:
    model = nn.ParameterDict({k: nn.Parameter(torch.linspace(-1, 1, SIZE)) for k in ("one", "two")})
    return model, kind(model.parameters(), 50, **options), torch.linspace(-1, 1, SIZE)


def block(model: nn.Module, opt: BayesianOptimizer, *names: str) -> Tensor:
    """A block in which `names` get a gradient; returns the first one's draw."""
    with opt.sample():
        draw = next(iter(model.parameters())).detach().clone()
        for name in names:
            p = model[name]  # type: ignore[index]
            p.grad = p.detach().tanh() / 10
    return draw


def wide(kind: type[BayesianOptimizer]) -> dict[str, float]:
    """Options with which sds are about 0.05 from the first step on."""
    return {"lr": 0.5, "temperature": 1e4} if kind is ProximalScore else {"init_sd": 0.05}


def kept(opt: BayesianOptimizer) -> bool:
    """Whether the state holds the draw, and the mean is in the module only."""
    assert all(("draw" in state) != ("mean" in state) for state in opt.state.values())
    return any("draw" in state for state in opt.state.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_step_is_that_of_noise_made_again(
    kind: type[BayesianOptimizer], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for keep in (True, False):
        if not keep:
            monkeypatch.setattr("bayescore.optim.engine.Bucket.keeps_draws", property(lambda _: False))
        model = nn.ParameterDict({"one": nn.Parameter(torch.linspace(-1, 1, SIZE, dtype=dtype))})
        opt = kind(model.parameters(), 50, **wide(kind))
        for _ in range(3):
            block(model, opt, "one")
            assert kept(opt) is keep
            opt.step()
            assert not kept(opt)
        found.append(opt.state[model["one"]])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for key in found[0]:
        torch.testing.assert_close(found[0][key], found[1][key], rtol=tolerance, atol=tolerance)


def test_the_mean_is_in_the_module_and_in_the_posterior_when_a_block_ends() -> None:
    model, opt, mean = start()
    draw = block(model, opt, "one", "two")
    assert not torch.equal(draw, mean)
    assert torch.equal(model["one"], mean)
    assert torch.equal(opt.posterior(model).mean["one"], mean)
    opt.step()  # after which the noise is made again
    assert not torch.equal(model["one"], mean)


def test_weights_that_somebody_writes_before_the_step_are_taken_over() -> None:
    model, opt, mean = start(lr=1e-6)
    block(model, opt, "one", "two")
    with torch.no_grad():
        model["one"].add_(1.0)
    opt.step()
    torch.testing.assert_close(model["one"].detach(), mean + 1, rtol=0, atol=1e-4)
    torch.testing.assert_close(opt.state[model["one"]]["mean"], mean + 1, rtol=0, atol=1e-4)


def test_tensors_without_a_gradient_and_updates_left_out_keep_their_mean() -> None:
    model, opt, mean = start()
    block(model, opt, "one")
    opt.step()
    assert torch.equal(opt.state[model["two"]]["mean"], mean)
    before = opt.state[model["one"]]["mean"].clone()
    block(model, opt, "one", "two")
    model["one"].grad[0] = torch.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    assert torch.equal(opt.state[model["one"]]["mean"], before)
    assert torch.equal(model["one"], before)
    assert torch.equal(opt.state[model["two"]]["mean"], mean)


def test_a_copy_in_the_middle_of_a_step_holds_the_mean() -> None:
    model, opt, mean = start()
    block(model, opt, "one", "two")
    twin = copy.deepcopy(opt)
    (first, *_) = twin.state.values()
    assert torch.equal(first["mean"], mean)
    opt.step()


def test_a_second_draw_before_the_step_is_about_the_same_mean() -> None:
    model, opt, mean = start()
    one = block(model, opt, "one", "two")
    two = block(model, opt, "one", "two")
    torch.testing.assert_close(one + two, 2 * mean)
    opt.step()
    assert opt.param_groups[0]["last_draws"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_draw_has_a_key_of_its_own_and_the_mean_is_in_the_module(kind: type[BayesianOptimizer]) -> None:
    model, opt, mean = start(kind)
    draw = block(model, opt, "one", "two")
    for name in ("one", "two"):
        state = opt.state[model[name]]
        assert "mean" not in state
        assert torch.equal(model[name], mean)
        if name == "one":
            assert torch.equal(state["draw"], draw - mean)
    opt.step()
    for name in ("one", "two"):
        assert "draw" not in opt.state[model[name]]
        assert torch.equal(opt.state[model[name]]["mean"], model[name])
        assert opt.state[model[name]]["mean"].data_ptr() != model[name].data_ptr()


def test_small_tensors_and_several_draws_keep_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, opt, _ = start(draws=2)
    block(model, opt, "one", "two")
    assert not kept(opt)
    monkeypatch.setattr("bayescore.optim.engine.SMALL", SIZE + 1)
    model, opt, _ = start()
    block(model, opt, "one", "two")
    assert not kept(opt)


def test_a_state_dict_in_the_middle_of_a_step_is_refused_and_the_draw_stays() -> None:
    model, opt, mean = start()
    block(model, opt, "one", "two")
    with pytest.raises(RuntimeError, match="middle of a step"):
        opt.state_dict()
    assert kept(opt)
    opt.step()
    saved = opt.state_dict()["state"]
    assert all("draw" not in state and "mean" in state for state in saved.values())
    assert not torch.equal(saved[0]["mean"], mean)


@pytest.mark.parametrize("look", ["posterior", "copy"])
@pytest.mark.parametrize("kind", [ProximalScore, CalibratedScore])
def test_a_look_in_the_middle_of_a_step_changes_no_step(kind: type[BayesianOptimizer], look: str) -> None:
    """The noise is made again, to the last digit of a weight over its sd."""
    found = []
    for looks in (True, False):
        model, opt, mean = start(kind, **wide(kind))
        for _ in range(3):
            block(model, opt, "one", "two")
            if looks:
                opt.posterior(model) if look == "posterior" else copy.deepcopy(opt)
                assert not kept(opt)
                assert torch.equal(opt.state[model["one"]]["mean"], model["one"])
            opt.step()
        found.append(opt.state[model["one"]])
    assert not torch.equal(found[0]["mean"], mean)
    for key in found[0]:
        torch.testing.assert_close(found[0][key], found[1][key], rtol=1e-5, atol=1e-5)


def test_a_block_that_failed_leaves_no_draw_in_a_checkpoint() -> None:
    model, opt, mean = start()
    with pytest.raises(RuntimeError, match="no gradient reached"):
        block(model, opt)
    saved = opt.state_dict()["state"]
    assert torch.equal(saved[0]["mean"], mean)
    assert "draw" not in saved[0]


def test_a_checkpoint_that_is_loaded_in_the_middle_of_a_step_replaces_the_draw() -> None:
    model, opt, _ = start()
    block(model, opt, "one", "two")
    opt.step()
    saved = copy.deepcopy(opt.state_dict())
    block(model, opt, "one", "two")
    opt.load_state_dict(saved)
    assert not kept(opt)
    for name, state in zip(("one", "two"), saved["state"].values(), strict=True):
        assert torch.equal(model[name], state["mean"])
        assert torch.equal(opt.state[model[name]]["mean"], state["mean"])


def test_a_gradient_by_hand_that_is_not_finite_leaves_the_mean_during_backward_too() -> None:
    model, opt, mean = start(update_in_backward=True)
    block(model, opt, "one", "two")
    model["one"].grad[0] = torch.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    assert torch.equal(model["one"], mean)
    assert torch.equal(opt.state[model["one"]]["mean"], mean)
    assert not torch.equal(model["two"], mean)
    assert not kept(opt)
