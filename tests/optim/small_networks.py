"""Small networks of every kind that must work, and the optimizers with settings that suit them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.optim import ADVI, SGLD, BaM, CalibratedScore, PairedBaM, ProximalDescent, ProximalScore
from bayescore.optim.base import BayesianOptimizer
from bayescore.optim.noise import generator_normal
from bayescore.optim.recovery import decoded, write_codes


def large_from(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of so many weights have a bucket of their own, and their mean in the module alone."""
    monkeypatch.setattr("bayescore.optim.engine.SMALL", size)
    monkeypatch.setattr("bayescore.optim.noise.LARGE_NETWORK", 0)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, cells: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.cells = cells(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(
            x.device.type, enabled=False
        ):  # as one does where a cell has no low-precision kernel
            hidden = self.cells(x)[0]
        return self.head(hidden[:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).mean(1))


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, and a frozen offset."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Linear(4, 3)
        self.twin = self.code
        self.offset = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.code(x)) @ self.twin.weight + self.offset


@dataclass(frozen=True)
class Case:
    """A module, its data, and the mean loss."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: bool = True

    def module(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make().to(dtype)

    def batch(self, n: int = 8, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
        rng = torch.Generator().manual_seed(seed)
        x = torch.randn(n, *self.shape, generator=rng).to(dtype)
        y = torch.randint(0, 3, (n,), generator=rng) if self.classes else x
        return x, y

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        return F.cross_entropy(out.float(), y) if self.classes else (out - y).square().sum(1).mean()


NETWORKS = {
    "mlp": Case(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "conv": Case(Convolutional, (1, 5, 5)),
    "lstm": Case(lambda: Recurrent(nn.LSTM), (3, 4)),
    "attention": Case(Attention, (3, 4)),
    "tied": Case(Tied, (4,), classes=False),
    "gru": Case(lambda: Recurrent(nn.GRU), (3, 4)),
}

OPTIMIZERS: dict[str, Callable[..., BayesianOptimizer]] = {
    "proximal": lambda p, n, **o: ProximalScore(p, n, **o),
    "calibrated": lambda p, n, **o: CalibratedScore(p, n, **o),
    "descent": lambda p, n, **o: ProximalDescent(p, n, **o),
    "advi": lambda p, n, **o: ADVI(p, n, **o),
    "bam": lambda p, n, **o: PairedBaM(p, n, **o),
    "published-bam": lambda p, n, **o: BaM(p, n, **o),
    "sgld": lambda p, n, **o: SGLD(p, n, burn_in=1, thin=1, **o),
    "psgld": lambda p, n, **o: SGLD(p, n, burn_in=1, thin=1, preconditioned=True, lr=1e-3, **o),
}


def flat_prior(shell: str) -> dict[str, Any]:
    """The options with which an optimizer's prior limits nothing and pulls nowhere."""
    return {"prior_scale": 1e18, "weight_decay": 0.0} if shell == "proximal" else {"prior_sd": math.inf}


def train(
    opt: BayesianOptimizer,
    case: Case,
    model: nn.Module,
    steps: int,
    *,
    draws: int = 1,
    parts: int = 1,
    first: int = 0,
    **batch: Any,
) -> None:
    """Steps of `draws` blocks with `parts` backward calls each; step number i sees batch number first + i."""
    for i in range(first, first + steps):
        x, y = case.batch(seed=i, **batch)
        for _ in range(max(draws, opt.least_draws)):
            with opt.sample(), torch.random.fork_rng():
                torch.manual_seed(i)
                for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
                    case.loss(model, xs, ys).backward()
        opt.step()
        opt.zero_grad()


def same_state(one: BayesianOptimizer, two: BayesianOptimizer) -> bool:
    """Whether two optimizers hold the same numbers, bit by bit."""
    a, b = one.state_dict(), two.state_dict()
    tensors = all(torch.equal(v, b["state"][k][name]) for k, s in a["state"].items() for name, v in s.items())
    return tensors and a["param_groups"] == b["param_groups"]


def coarse_normal(out: Tensor, name: int, sign: float, rng: torch.Generator) -> None:
    """`noise.generator_normal` on these levels, so that small tensors have the noise of large ones."""
    generator_normal(out, name, sign, rng)
    out.copy_(levels(out))


def levels(noise: Tensor) -> Tensor:
    """The 256 levels that the noise of a large tensor has (optim/recovery.py)."""
    state = torch.ones_like(noise)
    write_codes(state, noise)
    return decoded(state)
