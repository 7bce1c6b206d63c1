"""What every method is: frozen hyper-parameters with `init` and `step`.

    state       = method.init(family, steps)
    state, info = method.step(state, oracle, streams)

`State` is what the next step needs, `Info` what a person reads. A step is a pure function: it returns a new
state and leaves the old one intact. Every tensor has a leading dimension F, the number of fits that run
together, and no operation mixes fits. The oracle counts every score it computes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from bayescore.checks import check_keywords
from bayescore.families.base import Family
from bayescore.rng import Streams
from bayescore.targets.base import Target

__all__ = ["Info", "Method", "Oracle", "State"]


class Oracle(Protocol):
    """Scores of the target at points (F, S, D), counted."""

    has_density: bool

    def score(self, x: Tensor) -> Tensor:
        """s(x), (F, S, D)."""

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log Phi(x), (F, S), and s(x)."""

    def hessian_product(self, x: Tensor, v: Tensor) -> Tensor:
        """grad s(x) v, (F, S, D)."""


@dataclass(frozen=True)
class State:
    """What the next step needs. Methods add tensors with a leading dimension F as further fields."""

    family: Family
    step: int
    horizon: int

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, the family's parameters included."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        found = {k: v for k, v in own.items() if isinstance(v, Tensor)}
        return {**{f"family.{k}": v for k, v in self.family.parameters().items()}, **found}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """The same state with other tensors."""
        family = {k.removeprefix("family."): v for k, v in tensors.items() if k.startswith("family.")}
        own: dict[str, Any] = {k: v for k, v in tensors.items() if not k.startswith("family.")}
        return dataclasses.replace(self, family=self.family.replace(family), **own)

    def member(self, i: int) -> Self:
        """The state of fit i alone, with F = 1."""
        return self.with_tensors({k: v[i : i + 1].clone() for k, v in self.tensors().items()})

    def except_where(self, mask: Tensor, other: Self) -> Self:
        """This state, with the tensors of `other` for the fits in `mask` (F,)."""
        theirs = other.tensors()
        chosen = {
            k: torch.where(mask.reshape(-1, *[1] * (v.dim() - 1)), theirs[k], v)
            for k, v in self.tensors().items()
        }
        return self.with_tensors(chosen)


@dataclass(frozen=True)
class Info:
    """What a step tells a person; tensors (F,)."""

    loss: Tensor


@dataclass(frozen=True)
class Method(ABC):
    """A variational method: hyper-parameters and a step."""

    #: name on the command line and in saved files
    name: ClassVar[str]
    #: which factor of a Gaussian the method works in
    form: ClassVar[str] = "covariance"
    #: families it can serve, by class name, for messages
    serves: ClassVar[tuple[str, ...]]
    #: whether it differentiates the score (Hessian products)
    needs_hessian: ClassVar[bool] = False

    def __new__(cls, *args: Any, **options: Any) -> Self:  # noqa: ARG004
        check_keywords(cls, options, (f.name for f in dataclasses.fields(cls) if f.init))
        return super().__new__(cls)

    def check(self, family: Family, target: Target) -> None:
        """Refuse a family or target this method cannot serve."""
        if type(family).__name__ not in self.serves:
            raise TypeError(
                f"{type(self).__name__} cannot fit a {type(family).__name__}; "
                f"it serves {', '.join(self.serves)}"
            )
        if self.needs_hessian and (not target.has_density or target.stochastic):
            what = "noisy scores" if target.stochastic else "scores but no density"
            raise TypeError(
                f"{type(self).__name__} differentiates the score and {type(target).__name__} has {what}; "
                "use ProximalDescent, ADVI, GSM or BaM"
            )

    @abstractmethod
    def init(self, family: Family, steps: int) -> State:
        """The state before the first of `steps` steps, from a family with batch shape (F,)."""

    @abstractmethod
    def step(self, state: Any, oracle: Oracle, streams: Streams) -> tuple[State, Info]:
        """One iteration."""

    def config(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
