"""On a GPU the library does what it does on a CPU; skipped where there is none."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayescore as bs
import bayescore.nn as bnn
from bayescore import optim
from bayescore.optim.engine import run_in_slices
from bayescore.optim.noise import counter_key, numbers, stream_name

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

CUDA = "cuda"
NO_NOISE = 1e-12  # a temperature
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ProximalScore": {"lr": 1e-2},
    "CalibratedScore": {},
    "ProximalDescent": {"lr": 1e-2},
    "ADVI": {"lr": 1e-2},
    "PairedBaM": {},
    "SGLD": {"burn_in": 50, "thin": 10},
}


def network(device: str, width: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2)).double().to(device)


def data(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x.to(device), (x.sum(1) > 0).long().to(device)


def train(optimizer: Any, model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        for _ in range(2 if isinstance(optimizer, optim.PairedBaM) else 1):
            with optimizer.sample():
                F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_counter_noise_is_the_same_on_both_devices() -> None:
    def write(flat: torch.Tensor, noise: Any) -> None:
        flat.copy_(numbers(noise, flat))

    found = []
    for device in ("cpu", CUDA):
        out = torch.empty(1_000_003, device=device)
        run_in_slices(write, out, counter_key(out, stream_name(7), 1.0))
        found.append(out.cpu())
    torch.testing.assert_close(*found, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_network_learns_and_predicts(name: str) -> None:
    model = network(CUDA)
    x, y = data(CUDA)
    optimizer = getattr(optim, name)(model.parameters(), num_data=64, **OPTIMIZERS[name])
    first = F.cross_entropy(model(x), y).item()
    train(optimizer, model, x, y, 200)
    assert all(parameter.is_cuda for parameter in model.parameters())
    probs = optimizer.posterior(model).predict(x, draws=10).probs
    assert probs.is_cuda
    assert F.nll_loss(probs.log(), y).item() < first


@pytest.mark.parametrize("width", [8, 1000])
def test_without_noise_the_steps_are_those_of_the_cpu(width: int) -> None:
    means = []
    for device in ("cpu", CUDA):
        model = network(device, width)
        x, y = data(device)
        optimizer = optim.ProximalScore(model.parameters(), num_data=64, temperature=NO_NOISE)
        train(optimizer, model, x, y, 10)
        means.append([parameter.detach().cpu() for parameter in model.parameters()])
    for ours, theirs in zip(*means, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_posterior_of_the_gpu_is_read_on_the_cpu(tmp_path: Path) -> None:
    x, y = data(CUDA)
    fit = bnn.fit(network(CUDA), DataLoader(TensorDataset(x, y), batch_size=16), epochs=2)
    fit.posterior.save(tmp_path / "net.safetensors")
    there = bnn.Posterior.load(tmp_path / "net.safetensors", network("cpu")).predict(x.cpu(), draws=5)
    here = fit.predict(x, draws=5)
    assert not there.probs.is_cuda
    torch.testing.assert_close(there.probs.mean(0), here.probs.mean(0).cpu(), atol=0.2, rtol=0)


def test_a_run_resumes_bitwise(tmp_path: Path) -> None:
    x, y = data(CUDA)
    whole, half, rest = (network(CUDA) for _ in range(3))
    make = partial(optim.ProximalScore, num_data=64, seed=3)
    train(make(whole.parameters()), whole, x, y, 6)
    first = make(half.parameters())
    train(first, half, x, y, 3)
    bnn.save_state(tmp_path / "run.ckpt", {"model": half.state_dict(), "optimizer": first.state_dict()})
    states = bnn.load_state(tmp_path / "run.ckpt")
    rest.load_state_dict(states["model"])
    second = make(rest.parameters())
    second.load_state_dict(states["optimizer"])
    train(second, rest, x, y, 3)
    for ours, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_density_on_the_gpu_is_fitted_there() -> None:
    target = bs.targets.LogDensity(lambda x: -0.5 * (x.square() / 4).sum(1), dim=3, device=CUDA)
    fit = bs.fit(target, seed=0)
    draws = fit.family.sample(4000, seed=1)
    assert draws.is_cuda
    assert draws.std(0).cpu() == pytest.approx([2.0] * 3, rel=0.1)
