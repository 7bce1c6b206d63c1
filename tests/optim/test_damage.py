"""Checkpoints that were damaged, or made up: refused in a sentence, and nothing has changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, train

from bayescore.optim.base import BayesianOptimizer
from bayescore.rules.proximal import Network

MLP = NETWORKS["mlp"]


def damage(
    change: Callable[[dict[str, Any]], Any], shell: str = "proximal"
) -> tuple[BayesianOptimizer, dict[str, Any]]:
    model = MLP.module()
    opt = OPTIMIZERS[shell](model.parameters(), 64)
    train(opt, MLP, model, 2)
    saved = copy.deepcopy(opt.state_dict())
    change(saved)
    return OPTIMIZERS[shell](MLP.module().parameters(), 64), saved


def network(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Damages one number about the whole network."""

    def change(saved: dict[str, Any]) -> None:
        numbers = Network(*json.loads(saved["param_groups"][0]["network"]))._replace(**{name: value})
        saved["param_groups"][0]["network"] = json.dumps(numbers)

    return change


#: what is wrong with a checkpoint of either optimizer
ANY: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s["state"].update({0: None}), "damaged"),
    (lambda s: s["param_groups"][0].update(num_data=-64), "num_data must be at least 1"),
    (lambda s: s["param_groups"][0].update(temperature=0.0), "temperature must be a positive"),
    (lambda s: s["param_groups"][0].update(lr="x"), "lr must be a positive"),
    (lambda s: s["param_groups"][0].update(lr=-1.0), "lr must be a positive"),
    (lambda s: s["param_groups"][0].update(updates=-5), "updates must be at least 0"),
    (lambda s: s["param_groups"][0].update(updates="x"), "updates must be a whole number"),
    (lambda s: s["param_groups"][0].update(taken=1), "middle of a step"),
    (lambda s: s["param_groups"][0].update(prior_mean="current"), "prior_mean of parameter 0 is missing"),
    (lambda s: s["param_groups"][0].update(params=[0, 1, 2, []]), "not a state dict"),
    (lambda s: s.update(state=[]), "not a state dict"),
    (lambda s: s["state"].update({9: {}}), "its state 9"),
    (lambda s: s["state"][3]["mean"].fill_(float("inf")), "mean of parameter 3 holds impossible"),
    (lambda s: s["state"][3].update(mean=torch.zeros(3, dtype=torch.long)), "mean of parameter 3"),
    (lambda s: s["state"][3]["statistics"].fill_(float("nan")), "statistics of parameter 3"),
    (lambda s: s["state"][3].update(average=torch.zeros(7)), "average of parameter 3"),
    (lambda s: s["state"][3].update(sum_g=torch.zeros(3)), "sum_g of parameter 3"),
]
OWN: dict[str, list[tuple[Callable[[Any], Any], str]]] = {
    "calibrated": [
        (lambda s: s["state"][0].pop("sd"), "sd of parameter 0 is missing"),
        (lambda s: s["state"][0].update(sd=torch.zeros(3)), "sd of parameter 0"),
        (lambda s: s["param_groups"][0].pop("damping"), "lacks 'damping'"),
        (lambda s: s["param_groups"][0].update(momentum="x"), "damaged"),
        (lambda s: s["state"][3]["sd"].fill_(float("nan")), "sd of parameter 3 holds impossible"),
        (lambda s: s["state"][3]["sd"].fill_(-1), "sd of parameter 3 holds impossible"),
        (lambda s: s["state"][3]["sd"].fill_(0), "sd of parameter 3 holds impossible"),
    ],
    "proximal": [
        (lambda s: s["state"][0].pop("first"), "first of parameter 0 is missing"),
        (lambda s: s["state"][0].update(second=torch.zeros(3)), "second of parameter 0"),
        (lambda s: s["state"][3]["second"].fill_(-1), "second of parameter 3 holds impossible"),
        (lambda s: s["state"][3]["second"].fill_(float("inf")), "second of parameter 3 holds impossible"),
        (lambda s: s["state"][3]["first"].fill_(float("nan")), "first of parameter 3 holds impossible"),
        (lambda s: s["state"][3].update(statistics=torch.zeros(4)), "statistics of parameter 3 is missing"),
        (lambda s: s["state"][3]["statistics"][3].fill_(-1), "statistics of parameter 3 holds impossible"),
        (lambda s: s["state"][3]["statistics"][0].fill_(float("nan")), "statistics of parameter 3 holds"),
        (lambda s: s["state"][3]["statistics"][4].fill_(float("nan")), "statistics of parameter 3 holds"),
        (lambda s: s["param_groups"][0].pop("nats"), "lacks 'nats'"),
        (lambda s: s["param_groups"][0].pop("network"), "lacks 'network'"),
        (lambda s: s["param_groups"][0].update(nats=-1.0), "nats must be a positive number"),
        (lambda s: s["param_groups"][0].update(prior_scale=0.0), "prior_scale must be a positive number"),
        (lambda s: s["param_groups"][0].update(betas=(0.9, 1.0)), "betas must be two numbers"),
        (lambda s: s["param_groups"][0].update(betas="x"), "betas must be two numbers"),
        (lambda s: s["param_groups"][0].update(betas=(0.9, "x")), "betas must be two numbers"),
        (lambda s: s["param_groups"][0].update(network=None), "numbers of the network"),
        (lambda s: s["param_groups"][0].update(network="123456789"), "numbers of the network"),
        (lambda s: s["param_groups"][0].update(network=(1.0,) * 8), "numbers of the network"),
        (network("x", float("nan")), "numbers of the network"),
        (network("xx", float("inf")), "numbers of the network"),
        (network("quick_x", "x"), "numbers of the network"),
        (network("z", -1.0), "numbers of the network"),
        (network("quick_z", -1.0), "numbers of the network"),
        (network("tau", 0.0), "numbers of the network"),
        (network("tau", -1.0), "numbers of the network"),
        (network("steps", -1.0), "numbers of the network"),
        (network("steps", 1.5), "numbers of the network"),
    ],
}  # fmt: skip
CASES = [(shell, *case) for shell, own in OWN.items() for case in (*ANY, *own)]


@pytest.mark.parametrize(("shell", "change", "message"), CASES)
def test_damaged_checkpoints_are_refused_and_change_nothing(
    shell: str, change: Callable[[Any], Any], message: str
) -> None:
    opt, saved = damage(change, shell)
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(saved)
    assert before["param_groups"] == opt.state_dict()["param_groups"]
    for p, old in zip(opt.param_groups[0]["params"], before["state"].values(), strict=True):
        assert torch.equal(p, old["mean"])
        assert all(torch.equal(value, old[key]) for key, value in opt.state[p].items())


@pytest.mark.parametrize(
    ("shell", "change", "message"),
    [
        ("bam", lambda s: s["param_groups"][0].update(first=None), "first must be a whole number"),
        ("sgld", lambda s: s["param_groups"][0].update(kept=-1), "kept must be at least 0"),
        ("sgld", lambda s: s["param_groups"][0].update(kept=31), "kept must be at most keep, 30; got 31"),
        ("sgld", lambda s: s["state"][0]["path"].fill_(float("nan")), "path of parameter 0 holds"),
        ("sgld", lambda s: s["state"][0].update(path=torch.zeros(3, 1, 2)), "path of parameter 0 is"),
        ("psgld", lambda s: s["state"][0]["square"].fill_(-1), "square of parameter 0 holds"),
        ("advi", lambda s: s["state"][0]["second_r"].fill_(-1), "second_r of parameter 0 holds"),
    ],
)
def test_the_state_of_each_method_in_a_checkpoint_is_checked(
    shell: str, change: Callable[[Any], Any], message: str
) -> None:
    model = MLP.module()
    opt = OPTIMIZERS[shell](model.parameters(), 64)
    train(opt, MLP, model, 3)
    saved = copy.deepcopy(opt.state_dict())
    change(saved)
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(saved)


def test_a_checkpoint_from_the_end_of_a_schedule_is_taken() -> None:
    opt, saved = damage(lambda s: s["param_groups"][0].update(lr=0.0))
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"] == 0.0
