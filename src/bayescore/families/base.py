"""What every variational family offers.

A family is a density q_lambda(x) on R^D with unconstrained parameters lambda. It may carry a batch
of F densities at once: every parameter then has a leading dimension F, and points have the shape
(F, S, D), S points for each density. A family without a batch takes points (S, D), any (..., D), or one
point (D,).

    x = transform(e), e ~ N(0, I)      sampling; differentiable in lambda where `reparametrised`
    log_prob(x)                        log q(x)
    score(x)                           grad_x log q(x)
    score_and_pullback(x)              the score g, and the map e -> grad_lambda sum_s e_s . g_lambda(x_s)

The pullback is what score matching differentiates: x stays fixed while lambda moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayescore.families.matching import Matching
from bayescore.rng import Streams, generator

__all__ = ["Family", "Parameters", "Pullback"]

Parameters = dict[str, Tensor]
Pullback = Callable[[Tensor], Parameters]


class Family(ABC):
    """A parametric density on R^D, or a batch of F of them."""

    #: name on the command line and in saved files
    name: ClassVar[str]
    #: whether `transform` is differentiable in the parameters
    reparametrised: ClassVar[bool] = True
    #: whether `score_and_pullback` needs no automatic differentiation
    closed_form: ClassVar[bool] = False
    #: the default learning rate for its parameters
    lr: ClassVar[float] = 0.01

    dim: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004
        if args and isinstance(args[0], int):
            raise TypeError(
                f"{cls.__name__} is made of tensors; {cls.__name__}.init({args[0]}) makes one of a dimension"
            )
        return super().__new__(cls)

    # -- parameters ------------------------------------------------------------------------------

    @abstractmethod
    def parameters(self) -> Parameters:
        """The unconstrained parameters by name, each (*batch, ...)."""

    @abstractmethod
    def replace(self, parameters: Parameters) -> Self:
        """The same family with other parameters (not copied, not checked)."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON types; `rebuild` needs it and `parameters()`."""

    @classmethod
    @abstractmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:
        """The inverse of `config()` and `parameters()`."""

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size:
        """() for one density, (F,) for a batch."""

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.parameters().values())).dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters().values())).device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast the parameters, as `torch.Tensor.to`."""
        return self.replace({k: v.to(*args, **kwargs) for k, v in self.parameters().items()})

    def flat(self) -> Tensor:
        """All parameters as one new tensor (*batch, P)."""
        batch = self.batch_shape
        return torch.cat([v.reshape(*batch, -1) for v in self.parameters().values()], -1)

    def from_flat(self, flat: Tensor) -> Self:
        """The family whose parameters are views into `flat` (*batch, P)."""
        parameters, offset = {}, 0
        batch = self.batch_shape
        for key, value in self.parameters().items():
            shape = value.shape[len(batch) :]
            size = shape.numel()
            part = flat[..., offset : offset + size]
            parameters[key] = part.unflatten(-1, shape) if shape else part.squeeze(-1)
            offset += size
        return self.replace(parameters)

    @classmethod
    def stack(cls, members: Sequence[Self]) -> Self:
        """A batch of single families, which must have the same class, configuration and shapes."""
        first = members[0]
        if any(type(m) is not type(first) or m.config() != first.config() for m in members):
            raise ValueError("families of one batch must have the same class and configuration")
        keys = first.parameters()
        for key, value in keys.items():
            if any(m.parameters()[key].shape != value.shape for m in members):
                raise ValueError(
                    f"families of one batch must have the same class and configuration; {key} differs"
                )
        return first.replace({k: torch.stack([m.parameters()[k] for m in members]) for k in keys})

    def __getitem__(self, index: int) -> Self:
        """One density of a batch."""
        if not self.batch_shape:
            raise TypeError(f"{type(self).__name__} holds one density, not a batch: it cannot be indexed")
        return self.replace({k: v[index] for k, v in self.parameters().items()})

    def in_form(self, form: str) -> Self:  # noqa: ARG002
        """The same density stored by a factor of its "covariance" or "precision".

        Families that have only one form return themselves.
        """
        return self

    # -- density ---------------------------------------------------------------------------------

    @property
    def noise_dim(self) -> int:
        """How many standard normal numbers one draw takes."""
        return self.dim

    @abstractmethod
    def transform(self, noise: Tensor) -> Tensor:
        """Draws (*batch, S, D) from standard normal noise (*batch, S, noise_dim)."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """log q(x): (..., D) to (...)."""

    @abstractmethod
    def score(self, x: Tensor) -> Tensor:
        """grad_x log q(x): (..., D) to (..., D)."""

    def score_and_pullback(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """The score g at x, and its pullback e -> grad_lambda sum_s e_s . g(x_s) (by autograd)."""
        parameters = {k: v.detach().requires_grad_() for k, v in self.parameters().items()}
        with torch.enable_grad():
            g = self.replace(parameters).score(x.detach())

        def pullback(e: Tensor) -> Parameters:
            grads = torch.autograd.grad(g, list(parameters.values()), e, retain_graph=True, allow_unused=True)
            return {
                k: torch.zeros_like(v) if d is None else d
                for (k, v), d in zip(parameters.items(), grads, strict=True)
            }

        return g.detach(), pullback

    def matching(self, x: Tensor) -> Matching:
        """Score and pullback at fixed points (F, S, D) while the parameters, views into one tensor, move."""
        return Matching(self, x)

    def entropy(self) -> Tensor | None:
        """The entropy (*batch,) if it has a closed form, else None."""
        return None

    # -- draws and representation ----------------------------------------------------------------

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        """n draws, (n, D), or (F, n, D) from a batch."""
        if n < 1:
            raise ValueError(f"the number of draws must be at least 1; got {n}")
        shape = (*self.batch_shape, n, self.noise_dim)
        rng = generator(seed, self.device)
        noise = torch.randn(shape, generator=rng, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            return self.transform(noise)

    def _points(self, x: Tensor) -> Tensor:
        """x itself; raises if its last dimension is not D."""
        if x.dim() < 1 or x.shape[-1] != self.dim:
            raise ValueError(f"points must have the shape (..., {self.dim}); got {tuple(x.shape)}")
        return x

    def noise(self, streams: Streams, n: int) -> Tensor:
        """Noise for n draws of every member of a batch, (F, n, noise_dim)."""
        return streams.normal(n, self.noise_dim)

    def _describe(self) -> str:
        return f"dim={self.dim}"

    def __repr__(self) -> str:
        batch = f", batch={self.batch_shape[0]}" if self.batch_shape else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({self._describe()}{batch}, {dtype}, {self.device})"
