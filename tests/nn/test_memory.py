"""The forecast of memory: what it counts is what there is, and nothing is allocated for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import bayescore as bs
from bayescore.models import mlp
from bayescore.nn.memory import MEMORY_METHODS, dry_run_peak

MEASURE = """
import json, sys, torch
from torch import nn
import bayescore as bs
from bayescore_lab.bench.timing import peak_memory
method = sys.argv[1]
from bayescore.models import mlp
model = mlp(500, (2000, 2000, 2000), 10)
x, y = torch.randn(256, 500), torch.zeros(256, dtype=torch.long)
forecast = bs.nn.memory_estimate(model, method, x)
opt = bs.optim.ProximalScore(model.parameters(), num_data=1000) if method == "proximal" else (
    {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[method](model.parameters()))
for _ in range(3):
    if method == "proximal":
        with opt.sample():
            nn.functional.cross_entropy(model(x), y).backward()
    else:
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step(); opt.zero_grad()
print(json.dumps([forecast.total, peak_memory()]))
"""


def big() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(10_000, 10_000) for _ in range(5)))


@pytest.mark.parametrize("method", MEMORY_METHODS)
def test_parts_add_up_and_are_readable(method):
    found = bs.nn.memory_estimate(mlp(20, (30,), 3), method, (4, 20))
    parts = ("process", "weights", "state", "kept", "gradient", "activations", "temporaries", "heap")
    assert found.total == sum(getattr(found, part) for part in parts)
    assert "at the peak of a training step" in str(found)
    assert method in str(found)


def test_state_is_counted_in_copies_of_the_weights():
    model = mlp(20, (30,), 3)
    one = 4 * sum(p.numel() for p in model.parameters())
    state = {m: bs.nn.memory_estimate(model, m, (4, 20)).state / one for m in MEMORY_METHODS}
    assert state["sgd"] == 0
    assert state["adamw"] == state["adamw-fused"] == 2
    assert state["proximal"] == state["calibrated"] == 3  # of small tensors the mean too
    wide = mlp(800, (800,), 3)
    large = bs.nn.memory_estimate(wide, "proximal", (4, 800)).state
    assert large == pytest.approx(bs.nn.memory_estimate(wide, "adamw", (4, 800)).state, rel=0.01)
    assert state["proximal"] <= state["descent"]
    momentum = bs.nn.memory_estimate(model, "sgd", (4, 20), momentum=0.9)
    assert momentum.state == one


def test_a_network_of_two_gigabytes_is_forecast_without_allocating_it():
    from bayescore_lab.bench.timing import resident_memory

    model, before = big(), resident_memory()
    found = bs.nn.memory_estimate(model, "proximal", (2, 10_000))
    assert found.weights == pytest.approx(2e9, rel=1e-3)
    assert found.total > 8e9
    assert resident_memory() - before < 2e8


def test_real_and_storage_free_models_have_the_same_forecast():
    with torch.device("meta"):
        empty = mlp(20, (30,), 3)
    real = bs.nn.memory_estimate(mlp(20, (30,), 3), "adamw", torch.zeros(4, 20))
    fake = bs.nn.memory_estimate(empty, "adamw", torch.zeros(4, 20, device="meta"))
    assert (real.weights, real.state, real.activations) == (fake.weights, fake.state, fake.activations)


def test_both_passes_hold_the_saved_activations_and_the_gradients():
    # sigmoid keeps its output; the input of the first layer was there before and does not count
    n, width = 64, 100
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width, bias=False), nn.Sigmoid()) for _ in range(6))
    )
    saved, gradient = 4 * 6 * n * width, 4 * 6 * width * width
    found = dry_run_peak(model, (n, width), None, False)
    assert found >= max(saved, gradient)
    assert found <= saved + gradient + 4 * 4 * n * width


def test_activations_grow_with_the_batch_and_gradients_vanish_in_the_backward_pass():
    model = mlp(50, (50, 50, 50), 50)
    small, large = (dry_run_peak(model, (n, 50), None, False) for n in (2_000, 4_000))
    assert large / small == pytest.approx(2, rel=0.05)
    heavy = mlp(1000, (1000, 1000, 1000), 10)
    whole, gone = (bs.nn.memory_estimate(heavy, "proximal", (2, 1000), update_in_backward=u) for u in (0, 1))
    assert gone.gradient == 0
    assert gone.total - gone.heap < whole.total - whole.heap - 4e6


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.random.get_rng_state()
    bs.nn.memory_estimate(model, "bam", (5, 3, 8, 8))
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), rng)


def test_frozen_weights_have_neither_gradient_nor_state():
    model = mlp(100, (200,), 10)
    whole = bs.nn.memory_estimate(model, "adamw", (4, 100))
    for p in model[1].parameters():
        p.requires_grad_(False)
    head = bs.nn.memory_estimate(model, "adamw", (4, 100))
    assert head.weights == whole.weights
    assert head.gradient == 4 * (200 * 10 + 10)
    assert head.state == 2 * head.gradient


def test_sgld_counts_the_states_it_will_keep():
    model = mlp(20, (30,), 3)
    few, many = (bs.nn.memory_estimate(model, "sgld", (4, 20), keep=k).kept for k in (2, 20))
    assert many == 10 * few > 0


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="did you mean 'adamw'"):
        bs.nn.memory_estimate(mlp(20, (30,), 3), "adam", (4, 20))
    with pytest.raises(TypeError, match="batch must be a tensor"):
        bs.nn.memory_estimate(mlp(20, (30,), 3), "adamw", "four")
    frozen = mlp(20, (30,), 3).requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        bs.nn.memory_estimate(frozen, "adamw", (4, 20))


@pytest.mark.parametrize(
    "method", ["sgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adamw", "proximal"))]
)
def test_forecast_is_within_15_percent_of_the_measured_peak(method):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, method], capture_output=True, text=True, check=True, timeout=300
    )
    forecast, measured = json.loads(done.stdout)
    assert forecast == pytest.approx(measured, rel=0.15)


def test_shards_divide_weights_state_and_gradient_and_gather_layers() -> None:
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300), nn.Linear(300, 10))
    layers = [model[0], model[1]]
    one, four = (
        bs.nn.memory_estimate(model, "proximal", (8, 300), shards=n, layers=layers if n > 1 else ())
        for n in (1, 4)
    )
    for part in ("weights", "state", "gradient"):
        assert getattr(four, part) == pytest.approx(getattr(one, part) / 4, rel=1e-3)
    layer, root = 4 * (300 * 300 + 300), 4 * (300 * 10 + 10)
    assert (one.gathered, four.gathered) == (0, 2 * layer + root)
