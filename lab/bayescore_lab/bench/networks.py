"""Networks of the benchmarks by name: two perceptrons, any classifier of torchvision, and bare weights.

`weights:N` is a network without a forward pass: N weights in matrices of a transformer's size and a gradient
that is already there, so that a step is nothing but the optimizer's work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from bayescore.checks import unknown_name
from bayescore.models import mlp
from bayescore.operators import declare_vision_operators
from bayescore_lab.bench.phases import Phases

__all__ = ["NAMED", "Network", "Work", "network"]

INSTALL = "pip install './lab[peers]'"
MATRIX = 1 << 20  # weights per tensor of `weights:N`
NUM_DATA = 10_000  # what the optimizers are told; it changes no cost


@dataclass(frozen=True)
class Network:
    """How to make a network, and what goes into it."""

    name: str
    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] | None  # of one input; None: there is no forward pass
    classes: int
    batch: int  # rows of a mini-batch unless the user says otherwise

    def inputs(self, batch: int) -> tuple[int, ...] | None:
        """The shape of a mini-batch."""
        return None if self.shape is None else (batch, *self.shape)


class Work:
    """What every method does in a step: the loss of a mini-batch and its gradient, on the clock."""

    def __init__(self, net: Network, batch: int, device: str = "cpu", seed: int = 0) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # modules are initialised from the global stream
            self.model = net.make().to(device)
            if net.shape is None:
                self.gradients = [1e-3 * torch.randn_like(p) for p in self.model.parameters()]
            else:
                self.x = torch.randn(batch, *net.shape).to(device)
                self.y = torch.randint(net.classes, (batch,)).to(device)
        self.bare = net.shape is None
        self.num_data = NUM_DATA

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.model.parameters())

    def passes(self, timed: Phases, model: nn.Module | None = None) -> None:
        """Forward and backward; afterwards every parameter has a gradient."""
        if self.bare:
            for p, g in zip(self.model.parameters(), self.gradients, strict=True):
                p.grad = g
            return
        with timed("forward"):
            loss = self.loss((model or self.model)(self.x))
        with timed("backward"):
            loss.backward()

    def loss(self, outputs: Tensor) -> Tensor:
        """The mean loss of the mini-batch."""
        return nn.functional.cross_entropy(outputs, self.y)


def _vision(name: str) -> nn.Module:
    """A classifier of torchvision with random weights."""
    if find_spec("torchvision") is None:
        raise ImportError(f"the network {name} comes from torchvision, which is not installed: {INSTALL}")
    declare_vision_operators()
    from torchvision.models import get_model

    return get_model(name, weights=None)


def _vision_network(name: str, pixels: int = 224) -> Network:
    return Network(name, f"{name}, {pixels} px", lambda: _vision(name), (3, pixels, pixels), 1000, 16)


NAMED: dict[str, Network] = {
    net.name: net
    for net in (
        Network(
            "mlp", "MLP 784-1000-1000-1000-10", lambda: mlp(784, (1000, 1000, 1000), 10), (784,), 10, 128
        ),
        Network("mlp-small", "MLP 784-60-10", lambda: mlp(784, (60,), 10), (784,), 10, 128),
        _vision_network("resnet18", 64),
        *(_vision_network(name) for name in ("resnet101", "vit_b_16", "vit_l_32")),
    )
}


def _bare(size: int) -> Network:
    def make() -> nn.Module:
        full, rest = divmod(size, MATRIX)
        side = math.isqrt(MATRIX)
        shapes = [(side, side)] * full + ([(rest,)] if rest else [])
        return nn.ParameterList(nn.Parameter(0.02 * torch.randn(shape)) for shape in shapes)

    return Network(f"weights:{size}", f"{size:,} weights, no forward pass", make, None, 0, 1)


def network(name: str) -> Network:
    """A network by name: one of NAMED, another model of torchvision, or `weights:N`."""
    if name in NAMED:
        return NAMED[name]
    kind, _, size = name.partition(":")
    if kind == "weights" and size.isdigit() and int(size) > 0:
        return _bare(int(size))
    if find_spec("torchvision") is not None:
        declare_vision_operators()
        from torchvision.models import list_models

        if name in list_models():
            return _vision_network(name)
    raise unknown_name("network", name, NAMED)
