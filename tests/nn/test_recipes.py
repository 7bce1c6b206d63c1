"""The examples with Accelerate and Lightning run as they stand: two processes have the posterior of one."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from bayescore.nn import Posterior
from bayescore.operators import declare_vision_operators
from bayescore.optim import ProximalScore

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS, ROWS = 2, 32  # of the joined batch


class Named(nn.Module):
    """The network of the examples, as a member, as in a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


def alone(clip: float | None, shuffled: bool) -> dict[str, torch.Tensor]:
    """Mean and sd of the posterior after the same steps in one process, with the joined batches."""
    order = DistributedSampler(range(256), 1, 0, shuffle=shuffled, seed=0)
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    y = (x.norm(dim=1) > 1.2).long()
    model = Named()
    opt = ProximalScore(model.parameters(), num_data=256, lr=1e-2)
    for epoch in range(EPOCHS):
        order.set_epoch(epoch)
        for rows in torch.tensor(list(order)).split(ROWS):
            with opt.sample():
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            opt.zero_grad()
    return numbers(opt.posterior(model))


def numbers(posterior: Any) -> dict[str, torch.Tensor]:
    return {f"{what} {name}": v for what in ("mean", "sd") for name, v in getattr(posterior, what).items()}


def run(command: list[str], processes: int, out: Path) -> str:
    words = [*command, "--epochs", str(EPOCHS), "--batch", str(ROWS // processes), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"(\d) processes, .* right; .*", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) == processes
    return found[0]


def check(out: Path, model: nn.Module, prefix: str, clip: float | None, shuffled: bool = False) -> None:
    found = numbers(Posterior.load(out, model))
    for name, expected in alone(clip, shuffled).items():
        torch.testing.assert_close(found[name.replace(" net.", f" {prefix}")], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_has_the_posterior_of_one_process(processes: int, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    out = tmp_path / "posterior.safetensors"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1"]
    launcher += ["--num_processes", str(processes), "--mixed_precision", "no", "--dynamo_backend", "no"]
    launcher += ["--cpu"] if processes == 1 else ["--multi_gpu", "--main_process_port", str(port())]
    run([*launcher, str(EXAMPLES / "with_accelerate.py")], processes, out)
    check(out, Named().net, "", 1.0)


@pytest.mark.parametrize(("strategy", "processes"), [("auto", 1), ("ddp", 2), ("sharded", 2)])
def test_lightning_has_the_posterior_of_one_process(strategy: str, processes: int, tmp_path: Path) -> None:
    declare_vision_operators()  # which lightning looks for
    pytest.importorskip("lightning", reason="needs lightning")
    out = tmp_path / "posterior.safetensors"
    command = [sys.executable, str(EXAMPLES / "with_lightning.py")]
    run([*command, "--strategy", strategy, "--devices", str(processes)], processes, out)
    check(out, Named(), "net.", None, shuffled=processes > 1)  # by Lightning's sampler for several processes


def port() -> int:
    """A port that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found: int = taken.getsockname()[1]
        return found
