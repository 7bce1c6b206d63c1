"""What every target is: the density pi(x) = Phi(x)/Z that a fit approximates.

    log_prob(x)          log Phi(x), the log density up to a constant (absent if `has_density` is False)
    score(x, streams)    s(x) = grad log Phi(x), or an unbiased estimate of it if `stochastic`
    hessian_product      grad^2 log Phi(x) v
    sample(n, seed)      exact draws, if it can make them

Points are (..., D). A target may be a batch of F targets of one shape (`Target.stack`); points are then
(F, S, D). A single target serves any number of fits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayescore.rng import Streams

__all__ = ["Target", "as_batch"]


class Target(ABC):
    """A density known up to a constant, or only by its score."""

    #: a short name of the kind of target
    name: ClassVar[str]
    #: whether `log_prob` can be called
    has_density: bool = True
    #: whether `log_prob` integrates to one, so that an ELBO is minus a KL divergence
    normalised: bool = False
    #: whether `score` is a random estimate
    stochastic: bool = False

    dim: int
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """log Phi(x): (..., D) to (...)."""

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        """grad log Phi(x), or an unbiased estimate drawn from `streams`; (..., D)."""
        return self.log_prob_and_score(x)[1]

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both at once, by automatic differentiation."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = self.log_prob(x)
            if not value.requires_grad:
                raise TypeError(
                    "the log density cannot be differentiated: write it in torch operations on its points, "
                    "or give its gradient with ScoreFunction"
                )
            (grad,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), grad

    def hessian_product(self, x: Tensor, v: Tensor) -> Tensor:
        """grad^2 log Phi(x) v, (..., D)."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(self.log_prob(x).sum(), x, create_graph=True)
            if not grad.requires_grad:  # a linear log density
                return torch.zeros_like(x)
            (product,) = torch.autograd.grad(grad, x, v)
        return product

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        """n exact draws, (n, D), or (F, n, D) from a batch."""
        raise TypeError(f"{type(self).__name__} has no exact sampler (asked for {n} draws with seed {seed})")

    @property
    def has_samples(self) -> bool:
        """Whether `sample` works."""
        return type(self).sample is not Target.sample

    @property
    def batch_shape(self) -> torch.Size:
        """() for one target, (F,) for a batch."""
        return torch.Size()

    @classmethod
    def stack(cls, members: Sequence[Self]) -> Self:
        """A batch of single targets of the same shape."""
        raise TypeError(
            f"{cls.__name__} cannot be batched (asked for {len(members)}); fit the targets one by one"
        )

    @property
    def can_stack(self) -> bool:
        """Whether `stack` works."""
        return type(self).stack.__func__ is not Target.stack.__func__  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        batch = f", batch={self.batch_shape[0]}" if self.batch_shape else ""
        return f"{type(self).__name__}(dim={self.dim}{batch})"


def as_batch(targets: Sequence[Target]) -> Target:
    """One target for a batch of fits: the targets stacked if possible, else the one that all fits share."""
    first = targets[0]
    if any(type(target) is not type(first) for target in targets):
        raise TypeError("targets of different kinds cannot be batched; fit them one by one")
    if first.can_stack:
        return type(first).stack(targets)
    if all(target is first for target in targets):
        return first
    raise TypeError(f"different {type(first).__name__} targets cannot be batched; fit them one by one")
