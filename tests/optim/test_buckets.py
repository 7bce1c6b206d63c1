"""Small tensors are updated together; what comes out is what each would have had alone."""

from __future__ import annotations

import copy

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, coarse_normal, large_from
from torch import nn

from bayescore.optim import CalibratedScore, ProximalScore
from bayescore.optim.base import BayesianOptimizer
from bayescore.optim.engine import Segments
from bayescore.rules.terms import Largest

MLP = NETWORKS["mlp"]
OPTIONS: dict[str, object] = {"prior_mean": 0.1}


def trained(shell: str, steps: int = 3, **options: object) -> tuple[nn.Module, BayesianOptimizer]:
    model = MLP.module()
    opt = OPTIMIZERS[shell](model.parameters(), 50, **{**OPTIONS, **options})
    for _ in range(steps):
        for _ in range(opt.least_draws):
            with opt.sample():
                MLP.loss(model, *MLP.batch()).backward()
        opt.step()
    return model, opt


def assert_same(one: nn.Module, two: nn.Module, rtol: float = 1e-5) -> None:
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 100)


@pytest.mark.parametrize("prior", [0.1, "current"])
@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_tensor_in_a_bucket_takes_the_same_steps_as_alone(
    shell: str, prior: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayescore.optim.base.generator_normal", coarse_normal)
    together, opt = trained(shell, prior_mean=prior)
    assert len(opt._gathered(list(opt._members()))) == 1
    large_from(0, monkeypatch)
    alone, other = trained(shell, prior_mean=prior)
    assert len(other._gathered(list(other._members()))) == len(list(alone.parameters()))
    assert_same(together, alone, 1e-4)  # the sds of a large tensor have 16 bits
    assert opt.status == other.status


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_full_bucket_is_closed_and_another_begun(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together, _ = trained(shell)
    monkeypatch.setattr("bayescore.optim.engine.FULL", 40)
    apart, opt = trained(shell)
    assert len(opt._gathered(list(opt._members()))) > 1
    assert_same(together, apart)


def test_state_is_the_tensors_own_and_survives_a_deep_copy() -> None:
    model, opt = trained("proximal")
    for p in model.parameters():
        assert opt.state[p]["mean"].shape == p.shape
        torch.testing.assert_close(opt.state[p]["mean"], p.detach())
    pair = copy.deepcopy((model, opt))
    for one, two in ((model, opt), pair):
        with two.sample():
            MLP.loss(one, *MLP.batch()).backward()
        two.step()
    for a, b in zip(model.parameters(), pair[0].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("shell", ["proximal", "calibrated"])
def test_a_tensor_without_gradient_stays_where_it_is_and_the_others_move(shell: str, draws: int) -> None:
    used, unused = nn.Linear(3, 2), nn.Linear(3, 2)
    opt = OPTIMIZERS[shell]([*used.parameters(), *unused.parameters()], 50)
    x = torch.ones(4, 3)
    for net, other in ((used, unused), (unused, used), (used, unused)):
        still = [{key: value.clone() for key, value in opt.state[p].items()} for p in other.parameters()]
        before = [p.detach().clone() for p in other.parameters()]
        moving = [p.detach().clone() for p in net.parameters()]
        for _ in range(draws):
            with opt.sample():
                net(x).square().mean().backward()
        opt.step()
        opt.zero_grad()
        assert all(torch.equal(p, b) for p, b in zip(other.parameters(), before, strict=True))
        assert not any(torch.equal(p, b) for p, b in zip(net.parameters(), moving, strict=True))
        for p, state in zip(other.parameters(), still, strict=True):
            assert all(torch.equal(opt.state[p][key], value) for key, value in state.items())


def test_a_tensor_reached_by_one_of_two_draws_only_has_the_mean_of_both() -> None:
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    opt = CalibratedScore([a, b], 50, momentum=0.0)
    with opt.sample():
        (a.sum() + b.sum()).backward()
    with opt.sample():
        a.sum().backward()
    opt.step()
    assert torch.isfinite(a).all()
    assert float((1 - a.detach()).mean()) > float((1 - b.detach()).mean()) > 0


def test_so_have_adams_moments() -> None:
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    opt = ProximalScore([a, b], 50)
    with opt.sample():
        (a.sum() + b.sum()).backward()
    with opt.sample():
        a.sum().backward()
    opt.step()
    for p, mean in ((a, 1.0), (b, 0.5)):
        torch.testing.assert_close(opt.state[p]["first"], torch.full((3,), 0.1 * mean))
        torch.testing.assert_close(opt.state[p]["second"], torch.full((3,), 0.001 * mean**2))


@pytest.mark.parametrize("sizes", [[3, 1, 5], [4, 0, 2], [7]])
def test_parts_of_a_flat_tensor_are_repeated_and_added_up_by_numpy_as_by_torch(sizes: list[int]) -> None:
    table, terms = torch.randn(2, len(sizes)), (torch.randn(sum(sizes)), Largest(torch.randn(sum(sizes))))
    here, there = Segments(sizes, torch.device("cpu")), Segments(sizes, torch.device("cpu"))
    there._on_cpu = False  # as on a GPU
    assert torch.equal(here.repeat(table), there.repeat(table))
    torch.testing.assert_close(here.totals(terms), there.totals(terms))


def test_totals_of_numbers_that_are_not_finite_are_not_finite_and_pass_in_silence() -> None:
    huge = torch.tensor([3e38, 3e38, 1.0, torch.nan])
    found = Segments([2, 2], huge.device).totals((huge, Largest(huge)))
    assert found[0, 0] == torch.inf
    assert found[1].isnan().all()


@pytest.mark.parametrize("on_cpu", [True, False])
def test_options_are_spread_over_the_weights_of_their_tensors_and_written_where_they_change(
    on_cpu: bool,
) -> None:
    _, opt = trained("proximal")
    (bucket,) = opt._gathered(list(opt._members()))
    bucket.segments._on_cpu = on_cpu  # otherwise as on a GPU
    owner = torch.arange(len(bucket.sizes)).repeat_interleave(torch.tensor(bucket.sizes)).float()
    rows = [(1.0, float(i), float(i), 3.0) for i in range(len(bucket.sizes))]
    first = list(bucket.spread("x", rows))
    versions = [column._version for column in first]
    for a, b in zip(first, (1.0, owner, owner, 3.0), strict=True):
        assert torch.equal(a, torch.as_tensor(b))
    second = bucket.spread("x", [(2.0, float(i), 7.0, float(i) + 1) for i in range(len(bucket.sizes))])
    for a, b in zip(second, (2.0, owner, 7.0, owner + 1), strict=True):
        assert torch.equal(a, torch.as_tensor(b))
    assert second[1] is first[1]
    assert second[1]._version == versions[1]
    assert float(bucket.spread("y", [(0.5,)])[0]) == 0.5
