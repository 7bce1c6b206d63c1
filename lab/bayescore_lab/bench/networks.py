"""Networks of the benchmarks, by name, and the work of a training step on them."""

from __future__ import annotations

import math
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from bayescore.checks import unknown_name
from bayescore.models import mlp
from bayescore.operators import declare_vision_operators
from bayescore_lab.bench.choices import INSTALL, NETWORKS, Network, bare_weights, vision_network
from bayescore_lab.bench.timing import StepClock

__all__ = ["Workload", "make_network", "network"]

MATRIX = 1 << 20  # weights per tensor of `weights:N`: the size of a transformer's
NUM_DATA = 10_000  # given to the optimizers; it changes no cost


def network(name: str) -> Network:
    """A network by name: one of NETWORKS, another model of torchvision, or `weights:N`."""
    if name in NETWORKS:
        return NETWORKS[name]
    kind, _, size = name.partition(":")
    if kind == "weights" and size.isdigit() and int(size) > 0:
        return bare_weights(int(size))
    if find_spec("torchvision") is not None:
        declare_vision_operators()
        from torchvision.models import list_models

        if name in list_models():
            return vision_network(name)
    raise unknown_name("network", name, NETWORKS)


def make_network(net: Network) -> nn.Module:
    """The network with random weights."""
    if net.source == "perceptron":
        return mlp(math.prod(net.shape or ()), net.hidden, net.classes)
    if net.source == "torchvision":
        return _vision(net.name)
    full, rest = divmod(net.size, MATRIX)
    side = math.isqrt(MATRIX)
    shapes = [(side, side)] * full + ([(rest,)] if rest else [])
    return nn.ParameterList(nn.Parameter(0.02 * torch.randn(shape)) for shape in shapes)


def _vision(name: str) -> nn.Module:
    if find_spec("torchvision") is None:
        raise ImportError(f"the network {name} comes from torchvision, which is not installed: {INSTALL}")
    declare_vision_operators()
    from torchvision.models import get_model

    return get_model(name, weights=None)


class Workload:
    """What every method does in a step: the loss of a mini-batch and its gradient, on the clock."""

    def __init__(self, net: Network, batch: int, device: str = "cpu", seed: int = 0) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # modules are initialised from the global stream
            self.model = make_network(net).to(device)
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

    def gradient(self, clock: StepClock) -> None:
        """Forward and backward; afterwards every parameter has a gradient."""
        if self.bare:
            for p, g in zip(self.model.parameters(), self.gradients, strict=True):
                p.grad = g
            return
        with clock("forward"):
            loss = self.loss(self.model(self.x))
        with clock("backward"):
            loss.backward()

    def loss(self, outputs: Tensor) -> Tensor:
        """The mean loss of the mini-batch."""
        return nn.functional.cross_entropy(outputs, self.y)
