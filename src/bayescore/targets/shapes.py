"""Hard shapes with exact densities and exact samplers.

    Banana:       x_1 = a z_1,  x_2 = z_2 + b (x_1^2 - a^2),  the others z_i              (1)
    Funnel:       x_1 = 3 z_1,  x_i = exp(x_1 / 2) z_i                                    (2)
    SinhArcsinh:  x_i = sinh((asinh z_i + skew) / tail)                                   (3)

with z ~ N(0, I). Each log density is that of z at x, plus the log-Jacobian of x -> z.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.rng import generator
from bayescore.targets.base import Target

__all__ = ["Banana", "Funnel", "SinhArcsinh"]


def _log_normal(z: Tensor) -> Tensor:
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


def _noise(n: int, dim: int, seed: int | torch.Generator | None) -> Tensor:
    check_count("n", n)
    return torch.randn(n, dim, generator=generator(seed), dtype=torch.float64)


class Banana(Target):
    """A Gaussian bent along a parabola (1)."""

    name = "banana"
    normalised = True

    def __init__(self, dim: int = 2, *, width: float = 2.0, bend: float = 0.3) -> None:
        check_count("dim", dim, 2)
        if not width > 0:
            raise ValueError(f"width must be positive; got {width}")
        self.dim, self.width, self.bend = dim, width, bend

    def log_prob(self, x: Tensor) -> Tensor:
        first = x[..., :1]
        second = x[..., 1:2] - self.bend * (first.square() - self.width**2)
        return _log_normal(torch.cat([first / self.width, second, x[..., 2:]], -1)) - math.log(self.width)

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        z = _noise(n, self.dim, seed)
        first = self.width * z[:, :1]
        second = z[:, 1:2] + self.bend * (first.square() - self.width**2)
        return torch.cat([first, second, z[:, 2:]], -1)


class Funnel(Target):
    """Neal's funnel: the first coordinate sets the scale of the others (2)."""

    name = "funnel"
    normalised = True

    def __init__(self, dim: int = 3, *, scale: float = 3.0) -> None:
        check_count("dim", dim, 2)
        if not scale > 0:
            raise ValueError(f"scale must be positive; got {scale}")
        self.dim, self.scale = dim, scale

    def log_prob(self, x: Tensor) -> Tensor:
        first, rest = x[..., :1], x[..., 1:]
        z = torch.cat([first / self.scale, rest * (-0.5 * first).exp()], -1)
        return _log_normal(z) - math.log(self.scale) - 0.5 * (self.dim - 1) * first.squeeze(-1)

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        z = _noise(n, self.dim, seed)
        first = self.scale * z[:, :1]
        return torch.cat([first, (0.5 * first).exp() * z[:, 1:]], -1)


class SinhArcsinh(Target):
    """A normal with skewness and tail weight changed coordinate by coordinate (3)."""

    name = "skewed"
    normalised = True

    def __init__(self, dim: int = 3, *, skew: float = 0.5, tail: float = 1.0) -> None:
        check_count("dim", dim)
        if tail <= 0:
            raise ValueError(f"tail must be positive; got {tail}")
        self.dim, self.skew, self.tail = dim, skew, tail

    def log_prob(self, x: Tensor) -> Tensor:
        inner = self.tail * x.asinh() - self.skew
        log_jacobian = math.log(self.tail) + inner.cosh().log() - 0.5 * (1 + x.square()).log()
        return _log_normal(inner.sinh()) + log_jacobian.sum(-1)

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        return ((_noise(n, self.dim, seed).asinh() + self.skew) / self.tail).sinh()
