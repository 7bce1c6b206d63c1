"""Every optimizer on every kind of network, dtype, number of draws and accumulation."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, same_state, train

MODES = ("float32", "float64", "bfloat16", "autocast")
EVERYTHING = [
    (shell, network, mode, draws, parts)
    for shell in OPTIMIZERS
    for network in NETWORKS
    for mode in MODES
    for draws in (1, 3)
    for parts in (1, 2)
]


def pairwise() -> list[tuple[str, str, str, int, int]]:
    """Every pair of an optimizer and a network, with every other pair of settings somewhere among them."""
    rows = []
    for i, shell in enumerate(OPTIMIZERS):
        for j, network in enumerate(NETWORKS):
            rows.append(
                (shell, network, MODES[(i + j) % 4], (1, 3)[(i + j // 2) % 2], (1, 2)[(i // 2 + j) % 2])
            )
    return rows


CASES = [pytest.param(*row, marks=() if row in pairwise() else pytest.mark.slow) for row in EVERYTHING]


@pytest.mark.parametrize(("shell", "network", "mode", "draws", "parts"), CASES)
def test_every_optimizer_trains_every_network_and_resumes_bitwise(
    shell: str, network: str, mode: str, draws: int, parts: int
) -> None:
    case = NETWORKS[network]
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(mode, torch.float32)
    wide = torch.float64 if mode == "float64" else torch.float32
    cast = torch.autocast("cpu", torch.bfloat16) if mode == "autocast" else nullcontext()
    model = case.module(dtype)
    before = copy.deepcopy(model.state_dict())
    places = {name: p.data_ptr() for name, p in model.named_parameters()}
    opt = OPTIMIZERS[shell](model.parameters(), 50, accumulate=parts)
    go = {"draws": draws, "parts": parts, "dtype": dtype}
    with cast:
        train(opt, case, model, 3, **go)
        assert {name: p.data_ptr() for name, p in model.named_parameters()} == places
        for name, p in model.named_parameters():
            if not p.requires_grad:
                assert torch.equal(p, before[name])
                continue
            mean = opt.state[p]["mean"]
            assert mean.dtype == wide
            assert torch.equal(p, mean.to(dtype))
            assert torch.isfinite(mean).all()
            if mode != "bfloat16":
                assert not torch.equal(p, before[name])

        # a fresh model and optimizer continue from the checkpoint as if nothing had happened
        other = case.module(dtype, seed=5)
        resumed = OPTIMIZERS[shell](other.parameters(), 50, accumulate=parts)
        other.load_state_dict(model.state_dict())
        resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
        assert same_state(opt, resumed)
        train(opt, case, model, 2, first=3, **go)
        train(resumed, case, other, 2, first=3, **go)
    assert same_state(opt, resumed)

    likelihood = "categorical" if case.classes else "gaussian"
    prediction = opt.posterior(model, likelihood).predict(case.batch(dtype=dtype)[0], draws=3)
    assert torch.isfinite(prediction.mean).all()
    assert prediction.mean.shape[0] == 8
