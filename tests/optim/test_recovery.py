"""A large tensor's mean is in the module alone, and every draw is taken back to the last bit."""

from __future__ import annotations

import copy
import math
import os
import signal
from typing import Any

import pytest
import torch
from scipy import stats
from small_networks import large_from
from torch import Tensor, nn

from bayescore.optim import ADVI, CalibratedScore, ProximalDescent, ProximalScore
from bayescore.optim.base import BayesianOptimizer
from bayescore.optim.recovery import decoded, fitted, look_at, quantum_of, rounded_update, snap, write_codes

SIZE = 200
KINDS = [ProximalScore, CalibratedScore, ProximalDescent, ADVI]


@pytest.fixture(autouse=True)
def _tensors_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(20, monkeypatch)


def start(
    kind: type[BayesianOptimizer] = ProximalScore, dtype: torch.dtype = torch.float32, **options: object
) -> tuple[nn.Module, BayesianOptimizer, Tensor]:
    """Two tensors, and their mean once it is on its grid."""
    weights = {k: nn.Parameter(torch.linspace(-1, 1, SIZE, dtype=dtype)) for k in ("one", "two")}
    model = nn.ParameterDict(weights)
    opt = kind(model.parameters(), 50, **options)
    list(opt._members())
    return model, opt, model["one"].detach().clone()


def block(model: nn.Module, opt: BayesianOptimizer, *names: str) -> Tensor:
    """A block in which `names` get a gradient; returns the first one's draw."""
    with opt.sample():
        draw = next(iter(model.parameters())).detach().clone()
        for name in names:
            p = model[name]  # type: ignore[index]
            p.grad = p.detach().tanh() / 10
    return draw


def failed(model: nn.Module, opt: BayesianOptimizer) -> Tensor:
    """The first tensor's draw in a block that ends with an error."""
    draws = []

    def fail() -> None:
        with opt.sample():
            draws.append(next(iter(model.parameters())).detach().clone())
            raise KeyError("the data loader")

    with pytest.raises(KeyError):
        fail()
    return draws[0]


def wide(kind: type[BayesianOptimizer]) -> dict[str, float]:
    """Options with which sds are about 0.05 from the first step on."""
    return {"lr": 0.5, "temperature": 1e4} if kind is ProximalScore else {"init_sd": 0.05}


# -- noise, draws and grids ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coded_noise_has_the_moments_and_tails_of_a_normal_and_leaves_sixteen_bits(
    dtype: torch.dtype,
) -> None:
    count = 1_000_000
    rng = torch.Generator().manual_seed(3)
    noise = torch.randn(count, generator=rng, dtype=dtype)
    state = 0.1 + torch.rand(count, generator=rng, dtype=dtype)
    coded = state.clone()
    write_codes(coded, noise)
    eps = decoded(coded)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((eps**power).mean()) - expected) < 4.5 * math.sqrt(variance / count), power
    for level in (2.0, 3.0, 4.0):
        found = int((eps > level).sum())
        assert stats.poisson.interval(1 - 1e-4, count * stats.norm.sf(level - 0.025))[1] >= found
        assert stats.poisson.interval(1 - 1e-4, count * stats.norm.sf(level + 0.025))[0] <= found
    assert float((eps - noise).abs().max()) < 0.06
    torch.testing.assert_close(coded, state, rtol=2.0**-15, atol=0)
    assert abs(float((coded / state).mean()) - 1) < 1e-6  # as often above as below
    other = state.clone()
    write_codes(other, -noise)
    mirrored = decoded(other) == -eps
    assert mirrored.double().mean() > 1 - 1e-5  # all but the ends of levels


def test_an_update_far_below_the_quantum_is_made_on_average() -> None:
    """Rounding to nearest would lose it, every time."""
    count, steps, quantum = 20_000, 200, 2.0**-20
    grid = (torch.tensor(quantum), torch.tensor(1 / quantum))
    rng = torch.Generator().manual_seed(0)
    mean = torch.rand(count, generator=rng) / 1024  # where float32 has far finer steps
    snap(mean, *grid)
    begin, change = mean.clone(), 0.05 * quantum
    for _ in range(steps):
        state = torch.rand(count, generator=rng)
        write_codes(state, torch.randn(count, generator=rng))
        mean = rounded_update(mean, mean + change, state, *grid)
        still = rounded_update(mean, mean, state, *grid)
        assert torch.equal(still, mean)
    moved = float((mean - begin).double().mean()) / (steps * change)
    assert moved == pytest.approx(1, abs=5 / math.sqrt(count * steps * 0.05))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_quantum_follows_the_largest_number_of_a_tensor(dtype: torch.dtype) -> None:
    most = 2.0**23 if dtype == torch.float32 else 2.0**52
    for level in (0.0, 1e-30, 0.7, 1.0, 1.5, 3e17):
        quantum = quantum_of(level, dtype)
        assert math.frexp(quantum)[0] == 0.5
        assert quantum * most >= 2 * level
        assert fitted(quantum, look_at(quantum, level, dtype), dtype) == quantum
    one = quantum_of(1.0, dtype)
    assert fitted(one, look_at(one, 100.0, dtype), dtype) == quantum_of(100.0, dtype)
    assert fitted(one, look_at(one, 0.01, dtype), dtype) == one / 2
    assert fitted(one, look_at(one, math.nan, dtype), dtype) == one


# -- the optimizer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draw_without_a_step_leaves_every_bit_of_the_mean(
    kind: type[BayesianOptimizer], dtype: torch.dtype
) -> None:
    model, opt, _ = start(kind, dtype, **wide(kind))
    for _ in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(5):
            assert not torch.equal(failed(model, opt), before[0])
            assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        block(model, opt, "one", "two")
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        opt.step()
        assert not torch.equal(model["one"], before[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_has_no_second_copy_of_the_mean(kind: type[BayesianOptimizer]) -> None:
    model, opt, _ = start(kind)
    for _ in range(2):
        block(model, opt, "one", "two")
        for p in model.parameters():
            assert opt.state[p]["mean"].data_ptr() == p.data_ptr()
        opt.step()


def test_initial_weights_change_by_the_last_bits_of_the_largest_only() -> None:
    _, _, mean = start()
    torch.testing.assert_close(mean, torch.linspace(-1, 1, SIZE), rtol=0, atol=2.0**-22)


def test_the_mean_is_in_the_posterior_when_a_block_ends() -> None:
    model, opt, mean = start()
    draw = block(model, opt, "one", "two")
    assert not torch.equal(draw, mean)
    assert torch.equal(model["one"], mean)
    assert torch.equal(opt.posterior(model).mean["one"], mean)
    opt.step()
    assert not torch.equal(model["one"], mean)


def test_weights_that_somebody_writes_are_taken_over_before_the_step_and_inside_a_block() -> None:
    model, opt, mean = start(lr=1e-6)
    block(model, opt, "one", "two")
    with torch.no_grad():
        model["one"].add_(1.0)
    opt.step()
    torch.testing.assert_close(model["one"].detach(), mean + 1, rtol=0, atol=1e-4)
    with opt.sample():
        with torch.no_grad():
            model["one"].add_(0.1234567)
        model["one"].grad = torch.zeros(SIZE)
    opt.step()
    torch.testing.assert_close(model["one"].detach(), mean + 1.1234567, rtol=0, atol=1e-4)
    before = model["one"].detach().clone()
    failed(model, opt)
    assert torch.equal(model["one"], before)


def test_small_weights_that_are_loaded_get_a_grid_of_their_own() -> None:
    model, opt, mean = start()
    with torch.no_grad():
        model["one"].copy_(1e-6 * torch.linspace(-1, 1, SIZE))
    block(model, opt, "one", "two")
    torch.testing.assert_close(model["one"].detach(), 1e-6 * mean, rtol=0, atol=2e-3 * 1e-6)


def test_tensors_without_a_gradient_and_updates_left_out_keep_their_mean() -> None:
    model, opt, mean = start()
    block(model, opt, "one")
    opt.step()
    assert torch.equal(model["two"], mean)
    before = model["one"].detach().clone()
    block(model, opt, "one", "two")
    model["one"].grad[0] = torch.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    assert torch.equal(model["one"], before)
    assert torch.equal(model["two"], mean)


def test_a_copy_in_the_middle_of_a_step_holds_the_mean_and_goes_on_alone() -> None:
    model, opt, mean = start()
    block(model, opt, "one", "two")
    other, twin = copy.deepcopy((model, opt))
    (first, *_) = twin.state.values()
    assert torch.equal(first["mean"], mean)
    opt.step()
    assert torch.equal(other["one"], mean)
    twin.zero_grad()  # a copy has no gradients
    block(other, twin, "one", "two")
    assert torch.equal(other["one"], mean)


def test_a_second_draw_before_the_step_is_about_the_same_mean() -> None:
    model, opt, mean = start()
    one = block(model, opt, "one", "two")
    two = block(model, opt, "one", "two")
    torch.testing.assert_close(one + two, 2 * mean)
    opt.step()
    assert opt.param_groups[0]["last_draws"] == 2


@pytest.mark.parametrize("kind", [ProximalScore, CalibratedScore])
def test_a_look_in_the_middle_of_a_step_changes_no_bit(kind: type[BayesianOptimizer]) -> None:
    found = []
    for looks in (True, False):
        model, opt, mean = start(kind, **wide(kind))
        for _ in range(3):
            block(model, opt, "one", "two")
            if looks:
                opt.posterior(model)
                copy.deepcopy(opt)
            opt.step()
        found.append(opt.state[model["one"]])
    assert not torch.equal(found[0]["mean"], mean)
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_grows_and_shrinks_resumes_bitwise(kind: type[BayesianOptimizer]) -> None:
    """The quanta change on the way, and are part of the checkpoint."""
    model, opt, _ = start(kind, lr=0.3)
    for i in range(12):
        if i == 6:
            saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
        block(model, opt, "one", "two")
        opt.step()
    other, resumed, _ = start(kind, lr=0.3)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for _ in range(6):
        block(other, resumed, "one", "two")
        resumed.step()
    for name in ("one", "two"):
        for key, value in opt.state[model[name]].items():
            assert torch.equal(value, resumed.state[other[name]][key]), key
    assert opt.param_groups[0]["quanta"] == resumed.param_groups[0]["quanta"]


def test_a_checkpoint_that_is_loaded_in_the_middle_of_a_step_replaces_the_mean() -> None:
    model, opt, _ = start()
    block(model, opt, "one", "two")
    opt.step()
    saved = copy.deepcopy(opt.state_dict())
    block(model, opt, "one", "two")
    opt.load_state_dict(saved)
    for name, state in zip(("one", "two"), saved["state"].values(), strict=True):
        assert torch.equal(model[name], state["mean"])


@pytest.mark.parametrize("quanta", [(0.3, 0.5), (0.5,), (0.5, -0.5), "no", (math.inf, 1.0)])
def test_quanta_that_no_run_has_are_refused(quanta: object) -> None:
    _, opt, _ = start()
    saved = opt.state_dict()
    saved["param_groups"][0]["quanta"] = quanta
    with pytest.raises(ValueError, match="quanta"):
        opt.load_state_dict(saved)


def test_a_gradient_by_hand_that_is_not_finite_leaves_the_mean_during_backward_too() -> None:
    model, opt, mean = start(update_in_backward=True)
    block(model, opt, "one", "two")
    model["one"].grad[0] = torch.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    assert torch.equal(model["one"], mean)
    assert not torch.equal(model["two"], mean)


@pytest.mark.parametrize("sign", [1, -1], ids=["drawn", "taken back"])
def test_ctrl_c_while_a_tensor_is_drawn_or_taken_back_leaves_the_mean(
    sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, opt, mean = start()
    displace = opt._displace
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

    def press_ctrl_c(bucket: Any, way: int) -> None:
        if way == sign:
            os.kill(os.getpid(), signal.SIGINT)
        displace(bucket, way)

    monkeypatch.setattr(opt, "_displace", press_ctrl_c)
    try:
        with pytest.raises(KeyboardInterrupt):
            block(model, opt, "one", "two")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)
    for weight in model.parameters():
        assert torch.equal(weight, mean)
