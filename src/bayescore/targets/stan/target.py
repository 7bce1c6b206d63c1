"""A Stan program with its data as a target on Stan's unconstrained space.

    log Phi(u) = log p(data, x(u)) + log |det dx/du|                                  (1)
where x(u) are the parameters that the program declares. The score is Stan's own reverse-mode gradient of (1);
second derivatives are central differences of it:
    grad^2 log Phi(u) v = (s(u + h v) - s(u - h v)) / (2 h) + O(h^2)                  (2)
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.reading import read_text
from bayescore.rng import Streams
from bayescore.targets.base import Target
from bayescore.targets.stan.bridgestan import BridgeStanModel
from bayescore.targets.stan.build import build_library
from bayescore.targets.stan.data import Data, data_text
from bayescore.targets.stan.library import CompiledModel, Model, Rejected
from bayescore.targets.stan.naming import coordinate_names
from bayescore.targets.stan.toolchain import declared, find_toolchain
from bayescore.targets.stan.variables import Variable, group, pack, readable, unpack, variables_of

__all__ = ["Stan"]

log = logging.getLogger(__name__)


class Stan(Target):
    """A Stan program and its data.

    Arguments:
        program: the path of a .stan file, or the program itself as text.
        data: a dict of numbers, lists, arrays or tensors, or the path of a JSON file; None if it takes none.
        propto: drop the constants of `~` statements. False by default (BridgeStan's default is True): with
            all constants an ELBO is a bound on the log evidence of the model as it is written.
        jacobian: include the log-Jacobian in (1); without it the density is that of x, not of u.
        threads: the most threads for one call; torch.get_num_threads() by default.
        seed: of the random numbers that transformed data may draw.
        cache_dir: where compiled programs are kept, by default $BAYESCORE_CACHE/stan or
            ~/.cache/bayescore/stan.

    The first use of a program compiles it, which takes about half a minute; later uses, in any process, take
    milliseconds. A draw that Stan rejects has the log density -inf and a NaN score, and `last_rejection`
    says why.

        target = bs.targets.Stan("model.stan", data="data.json")
        fit = bs.fit(target)
        fit.to_arviz()
    """

    name = "stan"

    #: what another process needs to make the target again: program, data, options
    _recipe: tuple[str | Path, str, dict[str, Any]] | None = None

    def __init__(
        self,
        program: str | os.PathLike[str],
        data: Data = None,
        *,
        propto: bool = False,
        jacobian: bool = True,
        threads: int | None = None,
        seed: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        threads = torch.get_num_threads() if threads is None else threads
        check_count("threads", threads)
        _check_seed(seed)
        text, self.label, include = _read(program)
        numbers, given = data_text(data)
        library = build_library(
            text, self.label, include, cache_dir, lambda: self._check(text, include, given)
        )
        try:
            model = CompiledModel(library, numbers, seed, threads)
        except ValueError as error:
            missing = _missing(text, include, given)
            hint = f"; missing: {', '.join(missing)}" if missing else ""
            words = " ".join(str(error).split())
            raise ValueError(f"{self.label} does not take these data: {words}{hint}") from error
        self._use_model(model, propto, jacobian)
        options = {"propto": propto, "jacobian": jacobian, "threads": threads}
        source = text if include is None else Path(program).resolve()
        self._recipe = (source, numbers, {**options, "seed": seed, "cache_dir": cache_dir})

    @classmethod
    def from_bridgestan(cls, model: Any, *, propto: bool = False, jacobian: bool = True) -> Self:
        """A target from a `bridgestan.StanModel`; nothing is compiled."""
        target = cls.__new__(cls)
        target.label = str(getattr(model, "name", "the model"))
        target._use_model(BridgeStanModel(model), propto, jacobian)
        return target

    def _check(self, program: str, include: Path | None, given: frozenset[str]) -> None:
        """Refuse, before half a minute of compiling, a program without parameters and missing data."""
        if not declared(find_toolchain(), program, include, "parameters"):
            raise self._nothing_to_infer()
        if missing := _missing(program, include, given):
            raise ValueError(f"{self.label} does not take these data: missing: {', '.join(missing)}")

    def _nothing_to_infer(self) -> ValueError:
        return ValueError(f"{self.label} has no parameters, so there is nothing to infer; declare some")

    def _use_model(self, model: Model, propto: bool, jacobian: bool) -> None:
        if model.dim == 0:
            raise self._nothing_to_infer()
        self.model, self.dim = model, model.dim
        self.propto, self.jacobian = bool(propto), bool(jacobian)
        #: Stan's message about the last draw that it rejected
        self.last_rejection: str | None = None

    # -- density ---------------------------------------------------------------------------------

    def log_prob(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            value: Tensor = _LogProb.apply(x, self.log_prob_and_score)  # type: ignore[no-untyped-call]
            return value
        value, _, rejected = self.model.log_density(self._points(x), self.propto, self.jacobian, False)
        self._note(rejected)
        return value

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, grad, rejected = self.model.log_density(self._points(x), self.propto, self.jacobian, True)
        self._note(rejected)
        assert grad is not None
        return value, grad

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        return self.log_prob_and_score(x)[1]

    def hessian_product(self, x: Tensor, v: Tensor) -> Tensor:
        """grad^2 log Phi(x) v by (2): two gradients per point, about eight correct digits."""
        length = v.norm(dim=-1, keepdim=True)
        step = torch.finfo(torch.float64).eps ** (1 / 3) * (1 + x.norm(dim=-1, keepdim=True))
        unit = v / length.clamp_min(torch.finfo(torch.float64).tiny)
        up, down = self.score(torch.stack([x + step * unit, x - step * unit]))
        return length * (up - down) / (2 * step)

    def _points(self, x: Tensor) -> Tensor:
        if x.dim() == 0 or x.size(-1) != self.dim:
            raise ValueError(f"points must have the shape (..., {self.dim}); got {tuple(x.shape)}")
        if x.dtype is not torch.float64 or not x.is_cpu:
            raise TypeError(f"Stan computes in torch.float64 on the CPU; got {x.dtype} on {x.device}")
        return x.contiguous()

    def _note(self, rejected: Rejected | None) -> None:
        if rejected is not None:
            self.last_rejection = rejected[1]
            log.debug("%s rejected %d draws; the first: %s", self.label, rejected[0], self.last_rejection)

    # -- variables -------------------------------------------------------------------------------

    @cached_property
    def names(self) -> list[str]:
        """The coordinates of the unconstrained space: "sigma" is log sigma if sigma is positive."""
        return [readable(name) for name in coordinate_names(self.model)]

    @cached_property
    def constrained_names(self) -> list[str]:
        """The names of all entries of parameters, transformed parameters and generated quantities."""
        return [readable(name) for name in self.model.names(3)]

    @cached_property
    def _layouts(self) -> list[list[Variable]]:
        return [variables_of(self.model.names(what)) for what in (1, 2, 3)]

    @property
    def data(self) -> dict[str, Any]:
        """The data as JSON types; empty for a model from BridgeStan, which keeps its own."""
        return {} if self._recipe is None else json.loads(self._recipe[1])

    def constrain(self, x: Tensor, *, everything: bool = False, seed: int = 0) -> dict[str, Tensor]:
        """Parameters at unconstrained points (..., D), each (..., *shape) with Stan's shapes.

        Arguments:
            x: the points.
            everything: also transformed parameters and generated quantities; NaN where Stan rejects them.
            seed: of the random numbers that generated quantities draw.
        """
        _check_seed(seed)
        points = self._points(x).reshape(-1, self.dim)
        include = 2 if everything else 0
        rows, rejected = self.model.constrain(points, include, seed)
        self._note(rejected)
        if rejected is not None:
            share = f"{rejected[0]} of {points.shape[0]} draws"
            log.warning("%s lacks variables for %s: %s", self.label, share, self.last_rejection)
        return unpack(rows.view(*x.shape[:-1], -1), self._layouts[include])

    def unconstrain(self, values: Mapping[str, Any]) -> Tensor:
        """Unconstrained points (..., D) from parameters by name, each (..., *shape); others are ignored."""
        rows = pack(values, self._layouts[0])
        points, rejected = self.model.unconstrain(rows.reshape(-1, rows.shape[-1]).contiguous())
        if rejected is not None:
            share = f"{rejected[0]} of {len(points)} draws"
            raise ValueError(f"{share} are outside the support of {self.label}: {rejected[1]}")
        return points.view(*rows.shape[:-1], self.dim)

    def to_posterior(self, draws: Tensor, seed: int = 0) -> dict[str, dict[str, Tensor]]:
        """ArviZ groups from unconstrained draws (..., D): every variable of the program, (..., *shape).

        `posterior` holds parameters, transformed parameters and generated quantities; of the latter log_lik*
        go to `log_likelihood`, and *_rep, *_hat, *_pred, *_sim and *_tilde to `posterior_predictive`.
        """
        values = self.constrain(draws, everything=True, seed=seed)
        before = {variable.name for variable in self._layouts[1]}
        return group(values, set(values) - before)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process makes the target again, from the cache."""
        if self._recipe is None:
            raise TypeError("a target from BridgeStan cannot be pickled; make it in each process")
        source, numbers, options = self._recipe
        return partial(type(self), **options), (source, json.loads(numbers))

    def __repr__(self) -> str:
        return f"Stan({self.label!r}, dim={self.dim}, propto={self.propto}, jacobian={self.jacobian})"


def _read(program: str | os.PathLike[str]) -> tuple[str, str, Path | None]:
    """The text of a program, its name for messages, and the folder of its includes."""
    if isinstance(program, str) and "{" in program:
        return program, "the Stan program", None
    if not isinstance(program, str | os.PathLike):
        raise TypeError(f"program must be the path of a .stan file or its text; got {type(program).__name__}")
    path = Path(program)
    return read_text(path, "Stan program"), path.name, path.resolve().parent


def _check_seed(seed: int) -> None:
    check_count("seed", seed, 0)
    if seed >= 2**32:
        raise ValueError(f"Stan takes seeds below 2^32; got {seed}")


def _missing(program: str, include: Path | None, given: frozenset[str]) -> list[str]:
    """The data that the program declares and that are not given."""
    return [name for name in declared(find_toolchain(), program, include, "inputs") if name not in given]


class _LogProb(torch.autograd.Function):
    """log Phi with Stan's gradient, for code that differentiates through `log_prob`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, both: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        value, grad = both(x)
        ctx.save_for_backward(grad)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (grad,) = ctx.saved_tensors
        return upstream.unsqueeze(-1) * grad, None
