"""Two processes with half of every batch each are one process with the whole batch.

What would let the processes drift apart is refused on each of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, train
from torch.nn.parallel import DataParallel, replicate

from bayescore.optim import ProximalScore

PROGRAM = """
import sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, sys.argv[1])
rank, folder = int(sys.argv[2]), sys.argv[3]
from small_networks import NETWORKS
from bayescore.optim import ProximalScore
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
case = NETWORKS["mlp"]
model = case.module(torch.float64)
spread = DistributedDataParallel(model)
opt = ProximalScore(model.parameters(), 50)
for i in range(4):
    x, y = case.batch(dtype=torch.float64, seed=i)
    with opt.sample():
        case.loss(spread, x[rank::2], y[rank::2]).backward()
    opt.step()
    opt.zero_grad()
torch.save(opt.state_dict(), f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


MISTAKES = """
import json, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
rank, folder = int(sys.argv[2]), sys.argv[3]
from bayescore.optim import ProximalScore
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
cpu = torch.device("cpu")
found = {}

def train(model, opt, steps=3):
    for _ in range(steps):
        with opt.sample():
            model(torch.ones(4, 8)).square().mean().backward()
        opt.step()
        opt.zero_grad()

def attempt(name, shard, late=False, twice=False, **options):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    try:
        if late:
            opt = ProximalScore(model.parameters(), 50)
        model = shard(model)
        if not late:
            opt = ProximalScore(model.parameters(), 50, **options)
        if twice and rank:
            saved = ProximalScore(nn.Linear(8, 4).parameters(), 50, lr=0.1)
            saved.param_groups[0].update(updates=7, step=7)
            opt.load_state_dict(saved.state_dict())
        train(model, opt)
        found[name] = "trained"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    dist.barrier()

ddp = DistributedDataParallel
attempt("fsdp1", lambda m: FullyShardedDataParallel(m, device_id=cpu))
attempt("fsdp1 views", lambda m: FullyShardedDataParallel(m, device_id=cpu, use_orig_params=True))
attempt("fsdp1 late", lambda m: FullyShardedDataParallel(m, device_id=cpu, use_orig_params=True), late=True)
attempt("seeds", ddp, seed=rank)
attempt("options", ddp, temperature=1.0 + rank)
attempt("updates", ddp, twice=True, lr=0.1)
calls, gather = [], dist.all_gather
dist.all_gather = lambda *args, **more: (calls.append(1), gather(*args, **more))[1]
attempt("agreeing", ddp, seed=3)
found["comparisons"] = len(calls)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


def run_two(program: str, folder: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-W", "ignore", "-c", program, here]
    workers = [subprocess.Popen([*command, str(rank), str(folder)]) for rank in range(2)]
    try:
        assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()


def test_two_processes_equal_one_with_the_joined_batch(tmp_path: Path) -> None:
    run_two(PROGRAM, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True)["state"] for rank in range(2)]
    case = NETWORKS["mlp"]
    model = case.module(torch.float64)
    opt = ProximalScore(model.parameters(), 50)
    train(opt, case, model, 4, dtype=torch.float64)
    alone = opt.state_dict()["state"]
    for key, state in alone.items():
        for name, value in state.items():
            assert torch.equal(ranks[0][key][name], ranks[1][key][name])
            torch.testing.assert_close(ranks[0][key][name], value, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes was told."""
    folder = tmp_path_factory.mktemp("mistakes")
    run_two(MISTAKES, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp1 views", "fsdp1 late"])
def test_flat_parameters_are_refused_on_every_process(found: list[dict[str, Any]], kind: str) -> None:
    for told in found:
        assert told[kind].startswith("TypeError: weights are whole (DistributedDataParallel) or DTensors")
        assert "FSDP1" in told[kind]


@pytest.mark.parametrize(
    ("kind", "what"), [("seeds", "seeds"), ("options", "options"), ("updates", "numbers of updates")]
)
def test_processes_that_would_drift_apart_are_refused_on_every_process(
    found: list[dict[str, Any]], kind: str, what: str
) -> None:
    for told in found:
        assert told[kind].startswith("ValueError: the processes of this distributed run have different")
        assert f"different {what}" in told[kind]


def test_processes_are_compared_once(found: list[dict[str, Any]]) -> None:
    assert [(told["agreeing"], told["comparisons"]) for told in found] == [("trained", 1)] * 2


class Replicated(DataParallel[torch.nn.Module]):
    """DataParallel with two replicas, as it makes them on two GPUs, on a CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        replicas = replicate(self.module, [0, 1], not torch.is_grad_enabled())
        return torch.cat([replica(part) for replica, part in zip(replicas, x.chunk(2), strict=True)])


def test_replicas_of_data_parallel_compute_with_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def copies(tensors: list[torch.Tensor], devices: list[int], detach: bool) -> list[list[torch.Tensor]]:
        return [[t.detach() if detach else t.clone() for t in tensors] for _ in devices]

    monkeypatch.setattr(sys.modules["torch.nn.parallel.replicate"], "_broadcast_coalesced_reshape", copies)
    case, found = NETWORKS["mlp"], []
    for wrap in (lambda module: module, Replicated):
        model = case.module(torch.float64)
        wrapped, opt = wrap(model), ProximalScore(model.parameters(), 50)
        train(opt, case, wrapped, 4, dtype=torch.float64)
        x, _ = case.batch(dtype=torch.float64, seed=9)
        found.append((opt.posterior(wrapped).predict(x, draws=4).probs, opt.state_dict()["state"]))
    (probabilities, one), (replicated, two) = found
    torch.testing.assert_close(replicated, probabilities, rtol=1e-10, atol=1e-12)
    for key, state in one.items():
        for name, value in state.items():
            torch.testing.assert_close(two[key][name], value, rtol=1e-10, atol=1e-12)
