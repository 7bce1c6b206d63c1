"""Targets made from a user's own functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.rng import Streams
from bayescore.targets.base import Target

__all__ = ["LogDensity", "ScoreFunction"]

Function = Callable[[Tensor], Tensor]


def call(fn: Function, x: Tensor, what: str, tail: tuple[int, ...]) -> Tensor:
    """fn at the points flattened to (n, D); its result is checked and gets the points' leading shape."""
    points = x.reshape(-1, x.shape[-1])  # (n, D)
    try:
        value = fn(points)
    except (IndexError, RuntimeError, TypeError) as error:
        if type(error) not in (IndexError, RuntimeError, TypeError):  # such as memory that is exhausted
            raise
        raise ValueError(
            f"{what} failed at points of the shape {tuple(points.shape)}: {error}; it must take rows of "
            "points, in operations of torch (torch.vmap(fn) takes rows if fn takes one point)"
        ) from error
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must return a torch.Tensor; it returned {type(value).__name__}")
    want = (points.shape[0], *tail)
    if value.shape != want:
        raise ValueError(
            f"{what} must map points {tuple(points.shape)} to {want}; it returned {tuple(value.shape)}"
        )
    if value.dtype != x.dtype:
        raise TypeError(
            f"{what} was given {x.dtype} and returned {value.dtype}; "
            f"pass dtype={value.dtype} to the target or cast inside the function"
        )
    return value.reshape(*x.shape[:-1], *tail)


def checked_dim(dim: int | None) -> int:
    """The number of coordinates; raises unless it is given, and a count."""
    if dim is None:
        raise TypeError("a function does not say how many coordinates it takes; pass dim=, such as dim=2")
    check_count("dim", dim)
    return dim


class LogDensity(Target):
    """A batched torch log density, up to a constant, with scores by automatic differentiation.

    Arguments:
        fn: maps points (n, D) to log densities (n,), row by row.
        dim: D.

    >>> target = LogDensity(lambda x: -0.5 * x.square().sum(-1), dim=2)
    >>> target.score(torch.ones(1, 2, dtype=torch.float64))
    tensor([[-1., -1.]], dtype=torch.float64)
    """

    name = "log-density"

    def __init__(
        self,
        fn: Function,
        dim: int | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function from points to log densities; got {type(fn).__name__}")
        self.fn, self.dim, self.dtype, self.device = fn, checked_dim(dim), dtype, torch.device(device)

    def log_prob(self, x: Tensor) -> Tensor:
        return call(self.fn, x, "the log density", ())


class ScoreFunction(Target):
    """A score function, with its log density if there is one.

    Arguments:
        fn: maps points (n, D) to grad log density (n, D).
        dim: D.
        log_density: optional, points (n, D) to (n,); `bs.fit` then checks the score against it.

    Without a log density ADVI uses scores only, Fisher and Score cannot run, and there is no ELBO or k-hat.
    """

    name = "score"

    def __init__(
        self,
        fn: Function,
        dim: int | None = None,
        *,
        log_density: Function | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function from points to scores; got {type(fn).__name__}")
        self.fn, self.log_density, self.dim = fn, log_density, checked_dim(dim)
        self.dtype, self.device, self.has_density = dtype, torch.device(device), log_density is not None

    def log_prob(self, x: Tensor) -> Tensor:
        if self.log_density is None:
            raise TypeError("this target has scores but no log density; give log_density= to ScoreFunction")
        return call(self.log_density, x, "the log density", ())

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        with torch.no_grad():
            return call(self.fn, x, "the score", (self.dim,))

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x).detach(), self.score(x)
