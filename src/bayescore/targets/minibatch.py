"""Bayesian posterior whose score is estimated from mini-batches of the data.

    log Phi(theta) = log p(theta) + sum_{i=1..N} log p(y_i | theta)                                 (1)
    s_hat(theta) = grad [ log p(theta) + (N / |B|) sum_{i in B} log p(y_i | theta) ]                (2)

B is drawn without replacement, and E s_hat = grad log Phi. All S points of one step share the mini-batch, as
in network training; of fits that run together, each draws its own. Sums over all data go over slices of them,
so that the data may be larger than memory (a memory-mapped file).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Self

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.rng import Streams, generator
from bayescore.targets.base import Target
from bayescore.targets.functions import Function, call

__all__ = ["MiniBatchPosterior"]

Likelihood = Callable[..., Tensor]

MOST_NUMBERS = 2**22  # log likelihoods of one slice, points times data


class MiniBatchPosterior(Target):
    """Posterior of a small model, scored on mini-batches (2), evaluated on all data (1).

    Arguments:
        log_likelihood: (points (n, D), *data) to (n, b), one column per datum.
        data: a tensor or a tuple of tensors that share their first dimension N.
        log_prior: points (n, D) to (n,).
        dim: D.
        batch_size: |B|; None means all data, and exact scores.

    >>> y = torch.randn(100, dtype=torch.float64)
    >>> like = lambda theta, y: -0.5 * (y - theta) ** 2
    >>> prior = lambda theta: -0.5 * theta.square().sum(-1)
    >>> MiniBatchPosterior(like, y, prior, dim=1, batch_size=10)
    MiniBatchPosterior(dim=1, data=100, batch_size=10)
    """

    name = "minibatch"

    def __init__(
        self,
        log_likelihood: Likelihood,
        data: Tensor | tuple[Tensor, ...],
        log_prior: Function,
        dim: int,
        *,
        batch_size: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        check_count("dim", dim)
        self.data = (data,) if isinstance(data, Tensor) else tuple(data)
        sizes = {len(part) for part in self.data}
        if len(sizes) != 1 or sizes == {0}:
            raise ValueError(
                f"the parts of data must share a first dimension of at least 1; got {sorted(sizes)}"
            )
        self.num_data = sizes.pop()
        if batch_size is not None:
            check_count("batch_size", batch_size)
            if batch_size > self.num_data:
                raise ValueError(f"batch_size {batch_size} exceeds the {self.num_data} data")
        self.log_likelihood, self.log_prior, self.dim, self.batch_size = (
            log_likelihood,
            log_prior,
            dim,
            batch_size,
        )
        self.dtype, self.device = dtype, torch.device(device)
        self.stochastic = batch_size is not None and batch_size < self.num_data

    def subset(self, rows: int, seed: int | torch.Generator) -> Self:
        """The exact posterior of `rows` data drawn at random, each of which stands for N/rows."""
        rng = generator(seed, self.device, "subset")
        chosen = torch.randperm(self.num_data, generator=rng, device=self.device)[:rows]
        part = copy.copy(self)
        part.data = tuple(values[chosen] for values in self.data)
        part.batch_size, part.stochastic = None, False
        return part

    def _log_prob(self, x: Tensor, data: tuple[Tensor, ...]) -> Tensor:
        """(2) without the gradient."""
        return self._prior(x) + (self.num_data / len(data[0])) * self._sum(x, data)

    def _prior(self, x: Tensor) -> Tensor:
        return call(self.log_prior, x, "log_prior", ())

    def _sum(self, x: Tensor, data: tuple[Tensor, ...]) -> Tensor:
        """The sum of log likelihoods (...) at points (..., D)."""
        size = len(data[0])
        return call(lambda p: self.log_likelihood(p, *data), x, "log_likelihood", (size,)).sum(-1)

    def _slices(self, x: Tensor) -> Iterator[tuple[Tensor, ...]]:
        rows = max(1, MOST_NUMBERS // max(1, x.shape[:-1].numel()))
        for start in range(0, len(self.data[0]), rows):
            yield tuple(part[start : start + rows] for part in self.data)

    def log_prob(self, x: Tensor) -> Tensor:
        total = sum((self._sum(x, part) for part in self._slices(x)), start=torch.zeros_like(x[..., 0]))
        return self._prior(x) + (self.num_data / len(self.data[0])) * total  # (1)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(1) and its gradient, slice by slice."""
        if x.shape[:-1].numel() * len(self.data[0]) <= MOST_NUMBERS:
            return super().log_prob_and_score(x)
        scale = self.num_data / len(self.data[0])
        value, score = _differentiate(self._prior, x)
        for data in self._slices(x):
            more, gradient = _differentiate(lambda p, data=data: scale * self._sum(p, data), x)  # type: ignore[misc]
            value, score = value + more, score + gradient
        return value, score

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        if not self.stochastic:
            return self.log_prob_and_score(x)[1]
        if streams is None:
            raise TypeError("a mini-batch score needs `streams`, the random numbers of the fit")
        assert self.batch_size is not None
        chosen = streams.subsets(self.num_data, self.batch_size)  # (F, |B|)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            rows = [
                self._log_prob(points, tuple(part[index] for part in self.data))
                for points, index in zip(x, chosen, strict=True)
            ]
            (grad,) = torch.autograd.grad(torch.stack(rows).sum(), x)  # (2)
        return grad

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim}, data={self.num_data}, batch_size={self.batch_size})"


def _differentiate(fn: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values (...) and gradients (..., D) of a function of points; zeros where it is constant."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = fn(x)
        if not value.requires_grad:
            return value, torch.zeros_like(x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient
