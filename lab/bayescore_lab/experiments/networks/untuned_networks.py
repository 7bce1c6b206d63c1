"""The networks of the untuned comparison that are trained from scratch, and the adapters on a frozen base.

Activations are modules, because dropout is inserted after them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.models import mlp
from bayescore_lab.experiments.networks.untuned_data import CONTEXT, SYMBOLS, TaskData

__all__ = [
    "Adapted",
    "CausalTransformer",
    "LastState",
    "TransformerBlock",
    "adapted_network",
    "digit_convolutions",
    "learned_base",
    "lenet5",
]


def lenet5() -> nn.Sequential:
    """LeNet-5 for images of 28 x 28, 44,426 weights."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


def digit_convolutions() -> nn.Sequential:
    """A small convolutional network for 64 pixels of 8 x 8 images, 21,578 weights."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 120), nn.ReLU(),
        nn.Linear(120, 10),
    )  # fmt: skip


class LastState(nn.Module):
    """A recurrent network whose last state is classified by a small perceptron."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.recurrent = nn.GRU(inputs, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        out: Tensor = self.head(states[:, -1])
        return out


class TransformerBlock(nn.Module):
    """Attention and a perceptron, each beside a shortcut.

    Arguments:
        causal: whether a position sees only those before it.
        norm_first: whether inputs are normalised before the two parts, or outputs after them.
    """

    def __init__(
        self, width: int, heads: int, inner: int, *, causal: bool, norm_first: bool, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.norm_first = heads, causal, norm_first
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.first_norm, self.second_norm = (nn.LayerNorm(width, eps) for _ in range(2))
        self.up, self.activation, self.down = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """x: (n, T, width); seen: (n, T), the positions that hold a token."""
        if self.norm_first:
            x = x + self.attend(self.first_norm(x), seen)
            return x + self.think(self.second_norm(x))
        x = self.first_norm(x + self.attend(x, seen))
        found: Tensor = self.second_norm(x + self.think(x))
        return found

    def attend(self, x: Tensor, seen: Tensor | None) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (n, heads, T, width/heads)
            for part in (self.query, self.key, self.value)
        )
        mask = None if seen is None else seen[:, None, None]
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        found: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return found

    def think(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.activation(self.up(x)))
        return found


class CausalTransformer(nn.Module):
    """The logits (n, T, symbols) of every next character."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, 4 * width, causal=True, norm_first=True) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.symbols(x) + self.places[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        found: Tensor = self.head(self.norm(h))
        return found


# -- adapters --------------------------------------------------------------------------------------------

RANK, SCALE = 4, 2.0


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank change: W x + b + scale B A x, where B begins at zero."""

    weight: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.detach().clone())
        self.register_buffer("bias", layer.bias.detach().clone())
        self.a = nn.Parameter(torch.empty(RANK, layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + SCALE * (x @ self.a.t()) @ self.b.t()


def learned_base(data: TaskData) -> nn.Sequential:
    """A perceptron that has learned the data; it draws from torch's global stream, seeded by the caller."""
    base = mlp(data.x.shape[1], (128, 128), data.classes)
    optimizer = torch.optim.Adam(base.parameters(), lr=1e-3)
    for _ in range(30):
        for rows in torch.randperm(len(data.x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(base(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
    return base


def adapted_network(base: nn.Sequential, classes: int) -> nn.Sequential:
    """The base, frozen, with adapters and a new head, drawn from torch's global stream."""
    first, second = [module for module in base if isinstance(module, nn.Linear)][:2]
    return nn.Sequential(Adapted(first), nn.ReLU(), Adapted(second), nn.ReLU(), nn.Linear(128, classes))
