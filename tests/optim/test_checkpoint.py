"""Checkpoints: through a file, into a fresh process, and refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_networks import NETWORKS, SHELLS, same_state, train
from torch import nn

from bayescore.optim import ADVI, SGLD, ProximalScore

MLP = NETWORKS["mlp"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_checkpoint_needs_no_pickle_and_keeps_wide_state_beside_bfloat16_weights(
    shell: str, tmp_path: Path
) -> None:
    model = MLP.module(torch.bfloat16)
    opt = SHELLS[shell](model.parameters(), 50)
    train(opt, MLP, model, 3, dtype=torch.bfloat16)
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    other = MLP.module(torch.bfloat16, seed=3)
    resumed = SHELLS[shell](other.parameters(), 50)
    resumed.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    for o, m in ((opt, model), (resumed, other)):
        train(o, MLP, m, 2, first=3, dtype=torch.bfloat16)
    assert same_state(opt, resumed)
    assert all(s["mean"].dtype == torch.float32 for s in resumed.state.values())


def test_a_fresh_process_continues_bitwise(tmp_path: Path) -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50)
    train(opt, MLP, model, 3)
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    train(opt, MLP, model, 2, first=3)
    program = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
from small_networks import NETWORKS, train
from bayescore.optim import ProximalScore
case = NETWORKS["mlp"]
model = case.module(seed=8)
opt = ProximalScore(model.parameters(), 50)
opt.load_state_dict(torch.load({str(tmp_path / "opt.pt")!r}, weights_only=True))
train(opt, case, model, 2, first=3)
torch.save(opt.state_dict(), {str(tmp_path / "end.pt")!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    resumed = ProximalScore(MLP.module().parameters(), 50)
    resumed.load_state_dict(end)
    assert same_state(opt, resumed)


def test_group_options_and_schedules_come_back() -> None:
    model = MLP.module()
    groups = [
        {"params": model[0].parameters(), "prior_sd": 0.5},
        {"params": model[2].parameters(), "lr": 0.03, "prior_mean": "current"},
    ]
    opt = ProximalScore(groups, 50, seed=4, temperature=0.1)
    train(opt, MLP, model, 2)
    opt.param_groups[0]["lr"] = 0.01
    other = ProximalScore([{"params": model[0].parameters()}, {"params": model[2].parameters()}], 7)
    other.load_state_dict(opt.state_dict())
    assert same_state(opt, other)
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
