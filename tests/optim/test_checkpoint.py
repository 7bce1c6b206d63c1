"""Checkpoints: through a file, into a fresh process, and refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, flat_prior, same_state, train
from torch import nn

from bayescore.nn import load_state, save_state
from bayescore.optim import ADVI, SGLD, ProximalScore
from bayescore.optim.base import BayesianOptimizer
from bayescore.optim.checkpoint import LISTS

MLP = NETWORKS["mlp"]


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_checkpoint_needs_no_pickle_and_keeps_wide_state_beside_bfloat16_weights(
    shell: str, tmp_path: Path
) -> None:
    model = MLP.module(torch.bfloat16)
    opt = OPTIMIZERS[shell](model.parameters(), 50)
    train(opt, MLP, model, 3, dtype=torch.bfloat16)
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    other = MLP.module(torch.bfloat16, seed=3)
    resumed = OPTIMIZERS[shell](other.parameters(), 50)
    resumed.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    for o, m in ((opt, model), (resumed, other)):
        train(o, MLP, m, 2, first=3, dtype=torch.bfloat16)
    assert same_state(opt, resumed)
    assert all(s["mean"].dtype == torch.float32 for s in resumed.state.values())


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_lists_of_options_load_as_lists_too_as_older_checkpoints_have_them(shell: str) -> None:
    model, other = MLP.module(), MLP.module(seed=3)
    opt, resumed = (OPTIMIZERS[shell](m.parameters(), 50) for m in (model, other))
    train(opt, MLP, model, 3)
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        group.update({name: json.loads(group[name]) for name in LISTS if name in group})
        assert len(group["losses"]) == 3
    resumed.load_state_dict(saved)
    for o, m in ((opt, model), (resumed, other)):
        train(o, MLP, m, 2, first=3)
    assert same_state(opt, resumed)


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_run_continues_bitwise_from_a_file_of_its_state_dicts(shell: str, tmp_path: Path) -> None:
    def begun(seed: int) -> tuple[nn.Module, BayesianOptimizer, torch.optim.lr_scheduler.LRScheduler]:
        model = NETWORKS["conv"].module(seed=seed)
        opt = OPTIMIZERS[shell](model.named_parameters(), 50, prior_mean="current", **flat_prior(shell))
        return model, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)

    def advanced(parts: Any, first: int, steps: int) -> None:
        model, opt, schedule = parts
        for i in range(first, first + steps):
            train(opt, NETWORKS["conv"], model, 1, first=i)
            schedule.step()

    names, one, two = ("model", "opt", "schedule"), begun(0), begun(3)
    advanced(one, 0, 3)
    save_state(tmp_path / "run", {name: part.state_dict() for name, part in zip(names, one, strict=True)})
    saved = load_state(tmp_path / "run")
    for name, part in zip(names, two, strict=True):
        part.load_state_dict(saved[name])
    for parts in (one, two):
        advanced(parts, 3, 2)
    assert same_state(one[1], two[1])
    assert all(torch.equal(value, two[0].state_dict()[key]) for key, value in one[0].state_dict().items())
    assert one[2].state_dict() == two[2].state_dict()


PROGRAM = """
import os, sys, torch
sys.path.insert(0, {here!r})
from small_networks import NETWORKS, OPTIMIZERS, train
case = NETWORKS["mlp"]
models = {{name: case.module() for name in OPTIMIZERS}}
opts = {{name: make(models[name].parameters(), 50) for name, make in OPTIMIZERS.items()}}
for i in range(10**6):
    for name, opt in opts.items():
        train(opt, case, models[name], 1, first=i)
    torch.save({{name: opt.state_dict() for name, opt in opts.items()}}, {path!r} + ".new")
    os.replace({path!r} + ".new", {path!r})
    print(i + 1, flush=True)
"""


def test_a_killed_process_loses_at_most_its_current_step_and_another_continues_bitwise(
    tmp_path: Path,
) -> None:
    path = tmp_path / "opt.pt"
    program = PROGRAM.format(here=str(Path(__file__).parent), path=str(path))
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout as lines:
        done = [int(next(lines)) for _ in range(3)]
        child.kill()
        done += [int(line) for line in lines if line.strip()]
    assert child.wait() == -signal.SIGKILL
    saved = torch.load(path, weights_only=True)
    steps = saved["proximal"]["param_groups"][0]["step"]
    assert steps in (done[-1], done[-1] + 1)  # the last may have been saved and not announced
    for shell, make in OPTIMIZERS.items():
        model, other = MLP.module(), MLP.module(seed=8)
        opt, resumed = make(model.parameters(), 50), make(other.parameters(), 50)
        resumed.load_state_dict(saved[shell])
        train(opt, MLP, model, steps + 2)
        train(resumed, MLP, other, 2, first=steps)
        assert same_state(opt, resumed)


@pytest.mark.parametrize(("shell", "width"), [("proximal", "prior_scale"), ("calibrated", "prior_sd")])
def test_group_options_and_schedules_come_back(shell: str, width: str) -> None:
    model = MLP.module()
    groups = [
        {"params": model[0].parameters(), width: 0.5},
        {"params": model[2].parameters(), "lr": 0.03, "prior_mean": "current"},
    ]
    opt = OPTIMIZERS[shell](groups, 50, seed=4, temperature=0.1)
    train(opt, MLP, model, 2)
    opt.param_groups[0]["lr"] = 0.01
    other = OPTIMIZERS[shell]([{"params": model[0].parameters()}, {"params": model[2].parameters()}], 7)
    other.load_state_dict(opt.state_dict())
    assert same_state(opt, other)
    assert [group[width] for group in other.param_groups] == [group[width] for group in opt.param_groups]
    assert other.param_groups[0]["lr"] == 0.01
    assert other.param_groups[1]["prior_mean"] == "current"
    assert other.param_groups[0]["num_data"] == 50


def test_another_models_checkpoint_is_refused() -> None:
    model = MLP.module()
    opt = ProximalScore(model.named_parameters(), 50)
    train(opt, MLP, model, 1)
    saved = opt.state_dict()
    wider = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))
    with pytest.raises(ValueError, match=r"another model: 0\.weight has the shape"):
        ProximalScore(wider.named_parameters(), 50).load_state_dict(saved)
    with pytest.raises(ValueError, match="groups of"):
        ProximalScore(nn.Linear(4, 3).named_parameters(), 50).load_state_dict(saved)
    renamed = nn.Sequential(nn.Tanh(), nn.Linear(4, 6), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="calls a parameter"):
        ProximalScore(renamed.named_parameters(), 50).load_state_dict(saved)
    with pytest.raises(ValueError, match="made by ProximalScore and this optimizer is ADVI"):
        ADVI(model.named_parameters(), 50).load_state_dict(saved)
    with pytest.raises(ValueError, match="not a state dict of a bayescore optimizer"):
        opt.load_state_dict(torch.optim.SGD(model.parameters(), 0.1).state_dict())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's compiler loads its old one
@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_a_checkpoint_of_a_wrapped_module_serves_the_bare_one_and_the_reverse(prefix: str) -> None:
    """The prefixes are those of torch.compile, DistributedDataParallel, and both."""
    compiled = torch.compile(MLP.module(), backend="eager")
    assert next(name for name, _ in compiled.named_parameters()) == "_orig_mod.0.weight"
    for there, here in ((prefix, ""), ("", prefix)):
        model, other = MLP.module(), MLP.module(seed=3)
        opt = ProximalScore([(there + name, p) for name, p in model.named_parameters()], 50)
        train(opt, MLP, model, 2)
        names = [here + name for name, _ in other.named_parameters()]
        resumed = ProximalScore(zip(names, other.parameters(), strict=True), 50)
        resumed.load_state_dict(opt.state_dict())
        assert resumed.param_groups[0]["param_names"] == names
        for o, m in ((opt, model), (resumed, other)):
            train(o, MLP, m, 2, first=2)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_refused_checkpoint_changes_nothing() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50)
    train(opt, MLP, model, 1)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match="made by"):
        opt.load_state_dict(SGLD(MLP.module().parameters(), 50).state_dict())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert opt.param_groups[0]["updates"] == 1


def test_a_checkpoint_in_the_middle_of_a_step_is_refused() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50)
    with opt.sample():
        MLP.loss(model, *MLP.batch()).backward()
    with pytest.raises(RuntimeError, match="middle of a step"):
        opt.state_dict()
