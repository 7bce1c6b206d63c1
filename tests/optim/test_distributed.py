"""Two processes with half of every batch each are one process with the whole batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from small_networks import NETWORKS, train

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


def test_two_processes_equal_one_with_the_joined_batch(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, here]
    workers = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
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
