"""Constrained parameters: smooth maps from free coordinates u to values x, with their log-Jacobians.

    Real      x = u                                              log|J| = 0                               (1)
    Positive  x = exp(u)                                         log|J| = u                               (2)
    Lower     x = low + exp(u)                                   log|J| = u                               (3)
    Upper     x = high - exp(u)                                  log|J| = u                               (4)
    Interval  x = low + (high - low) s(u)                        log|J| = log(high - low) s(u) s(-u)      (5)
    Ordered   x_1 = u_1,  x_k = x_{k-1} + exp(u_k)               log|J| = u_2 + ... + u_K                 (6)
    Simplex   z_k = s(u_k - log(K - k)),  r_k = prod_{j<k} (1 - z_j),
              x_k = r_k z_k for k < K,  x_K = r_K                log|J| = sum_k log r_k z_k (1 - z_k)     (7)
with s(u) = 1/(1 + exp(-u)). (1)-(5) hold for each number of a container, whose log-Jacobians add up. These
are Stan's transforms (the simplex as in Stan up to 2.36).

Coordinates are the last dimension of a tensor (..., size); values are (..., *shape).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

__all__ = ["Constraint", "Interval", "Lower", "Ordered", "Positive", "Real", "Simplex", "Upper"]

Shape = int | tuple[int, ...]


class Constraint(ABC):
    """A parameter: a number by default, a vector of 5 for shape 5, a matrix for shape (2, 3)."""

    shape: Shape

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in shape):
            raise TypeError(f"a shape is a whole number or a tuple of them; got {self.shape!r}")
        if any(n < 1 for n in shape):
            raise ValueError(f"a shape holds numbers of at least 1; got {self.shape!r}")
        object.__setattr__(self, "shape", shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of a value."""
        assert isinstance(self.shape, tuple)
        return self.shape

    @property
    def free_dims(self) -> tuple[int, ...]:
        """The shape of its coordinates."""
        return self.dims

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return math.prod(self.free_dims)

    def forward(self, u: Tensor) -> Tensor:
        """Values (..., *shape) at coordinates (..., size)."""
        return self._forward(u.reshape((*u.shape[:-1], *self.free_dims)))

    def log_jacobian(self, u: Tensor) -> Tensor:
        """log |det dx/du| at coordinates (..., size), (...)."""
        terms = self._log_jacobian(u.reshape((*u.shape[:-1], *self.free_dims)))
        return terms.reshape(*u.shape[:-1], -1).sum(-1)

    def inverse(self, x: Tensor) -> Tensor:
        """Coordinates (..., size) of values (..., *shape); values outside raise ValueError."""
        lead = x.dim() - len(self.dims)
        if lead < 0 or x.shape[lead:] != self.dims:
            raise ValueError(f"{self} takes values (..., *{self.dims}); got the shape {tuple(x.shape)}")
        inside = self._inside(x)
        if not inside.all():
            raise ValueError(f"{int((~inside).sum())} values lie outside of {self}")
        return self._inverse(x).reshape(*x.shape[:lead], self.size)

    @abstractmethod
    def _forward(self, u: Tensor) -> Tensor: ...

    @abstractmethod
    def _log_jacobian(self, u: Tensor) -> Tensor: ...

    @abstractmethod
    def _inverse(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _inside(self, x: Tensor) -> Tensor: ...


def _check_vector(constraint: Constraint) -> None:
    if not constraint.dims or constraint.dims[-1] < 2:
        raise ValueError(f"the last dimension of {constraint} must be at least 2")


@dataclass(frozen=True)
class Real(Constraint):
    """Any number (1)."""

    shape: Shape = ()

    def _forward(self, u: Tensor) -> Tensor:
        return u

    def _log_jacobian(self, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def _inverse(self, x: Tensor) -> Tensor:
        return x

    def _inside(self, x: Tensor) -> Tensor:
        return x.isfinite()


@dataclass(frozen=True)
class Positive(Constraint):
    """Numbers above 0 (2)."""

    shape: Shape = ()

    def _forward(self, u: Tensor) -> Tensor:
        return u.exp()

    def _log_jacobian(self, u: Tensor) -> Tensor:
        return u

    def _inverse(self, x: Tensor) -> Tensor:
        return x.log()

    def _inside(self, x: Tensor) -> Tensor:
        return (x > 0) & x.isfinite()


@dataclass(frozen=True)
class Lower(Constraint):
    """Numbers above `low` (3)."""

    low: float
    shape: Shape = ()

    def _forward(self, u: Tensor) -> Tensor:
        return self.low + u.exp()

    def _log_jacobian(self, u: Tensor) -> Tensor:
        return u

    def _inverse(self, x: Tensor) -> Tensor:
        return (x - self.low).log()

    def _inside(self, x: Tensor) -> Tensor:
        return (x > self.low) & x.isfinite()


@dataclass(frozen=True)
class Upper(Constraint):
    """Numbers below `high` (4)."""

    high: float
    shape: Shape = ()

    def _forward(self, u: Tensor) -> Tensor:
        return self.high - u.exp()

    def _log_jacobian(self, u: Tensor) -> Tensor:
        return u

    def _inverse(self, x: Tensor) -> Tensor:
        return (self.high - x).log()

    def _inside(self, x: Tensor) -> Tensor:
        return (x < self.high) & x.isfinite()


@dataclass(frozen=True)
class Interval(Constraint):
    """Numbers between `low` and `high` (5)."""

    low: float
    high: float
    shape: Shape = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise ValueError(f"an interval needs low < high; got {self.low} and {self.high}")

    def _forward(self, u: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * u.sigmoid()

    def _log_jacobian(self, u: Tensor) -> Tensor:
        return math.log(self.high - self.low) + logsigmoid(u) + logsigmoid(-u)

    def _inverse(self, x: Tensor) -> Tensor:
        return (x - self.low).log() - (self.high - x).log()

    def _inside(self, x: Tensor) -> Tensor:
        return (x > self.low) & (x < self.high)


@dataclass(frozen=True)
class Ordered(Constraint):
    """Vectors whose entries increase (6); in a larger shape, along the last dimension."""

    shape: Shape

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_vector(self)

    def _forward(self, u: Tensor) -> Tensor:
        return torch.cat([u[..., :1], u[..., 1:].exp()], -1).cumsum(-1)

    def _log_jacobian(self, u: Tensor) -> Tensor:
        return u[..., 1:]

    def _inverse(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1], x.diff(dim=-1).log()], -1)

    def _inside(self, x: Tensor) -> Tensor:
        return (x.diff(dim=-1) > 0).all(-1) & x.isfinite().all(-1)


@dataclass(frozen=True)
class Simplex(Constraint):
    """Positive vectors that add up to 1 (7); in a larger shape, along the last dimension."""

    shape: Shape

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_vector(self)

    @property
    def free_dims(self) -> tuple[int, ...]:
        return (*self.dims[:-1], self.dims[-1] - 1)

    def _sticks(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log z_k and log (1 - z_k) for k < K, and log r_k for k <= K."""
        offset = torch.arange(self.dims[-1] - 1, 0, -1, dtype=u.dtype, device=u.device).log()
        taken, left = logsigmoid(u - offset), logsigmoid(offset - u)
        rest = torch.cat([torch.zeros_like(u[..., :1]), left.cumsum(-1)], -1)
        return taken, left, rest

    def _forward(self, u: Tensor) -> Tensor:
        taken, _, rest = self._sticks(u)
        return torch.cat([rest[..., :-1] + taken, rest[..., -1:]], -1).exp()

    def _log_jacobian(self, u: Tensor) -> Tensor:
        taken, left, rest = self._sticks(u)
        return rest[..., :-1] + taken + left

    def _inverse(self, x: Tensor) -> Tensor:
        after = x.flip(-1).cumsum(-1).flip(-1)[..., 1:]  # x_{k+1} + ... + x_K
        offset = torch.arange(self.dims[-1] - 1, 0, -1, dtype=x.dtype, device=x.device).log()
        return x[..., :-1].log() - after.log() + offset

    def _inside(self, x: Tensor) -> Tensor:
        return (x > 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6)
