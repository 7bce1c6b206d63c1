"""Models written in torch with constrained parameters, as targets on an unconstrained space.

    log Phi(u) = log p(data, x(u)) + log |det dx/du|                                           (1)
where x(u) are the parameters, each computed from its own coordinates by its constraint. Coordinates are in
the order in which the parameters are declared; in a container the last index runs fastest.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bayescore.checks import check_shape
from bayescore.rng import generator
from bayescore.targets.base import Target
from bayescore.targets.constraints import Constraint
from bayescore.targets.stan.variables import group

__all__ = ["ConstrainedModel", "TorchModel"]

Values = dict[str, Tensor]


class ConstrainedModel(Target):
    """What models with constrained parameters share: names, and the maps between u and x.

    Arguments:
        parameters: the constraint of every parameter by name.
    """

    def __init__(
        self,
        parameters: Mapping[str, Constraint],
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        for name, constraint in parameters.items():
            if not isinstance(constraint, Constraint):
                kind = "the class" if isinstance(constraint, type) else "a"
                word = constraint.__name__ if isinstance(constraint, type) else type(constraint).__name__
                raise TypeError(
                    f"the parameter {name!r} needs a constraint such as Real(); got {kind} {word}"
                )
        if not parameters:
            raise ValueError("a model needs at least one parameter")
        self.parameters = dict(parameters)
        self.dtype, self.device = dtype, torch.device(device)
        self._sizes = [constraint.size for constraint in parameters.values()]
        self.dim = sum(self._sizes)

    @property
    def names(self) -> list[str]:
        """The coordinates of the unconstrained space: "beta[1]", or "sigma" for log sigma."""
        return [n for name, c in self.parameters.items() for n in _indexed(name, c.free_dims)]

    @property
    def constrained_names(self) -> list[str]:
        """The names of all entries of all parameters."""
        return [n for name, c in self.parameters.items() for n in _indexed(name, c.dims)]

    def constrain(self, x: Tensor, *, everything: bool = False, seed: int = 0) -> Values:
        """Parameters at unconstrained points (..., D), each (..., *shape).

        Arguments:
            x: the points.
            everything: also generated quantities.
            seed: of the random numbers that generated quantities draw.
        """
        check_shape("points", x, (self.dim,))
        values = self._constrain(x)
        return {**values, **self._generate(values, generator(seed, self.device))} if everything else values

    def _constrain(self, x: Tensor) -> Values:
        parts = x.split(self._sizes, -1)
        return {name: c.forward(u) for (name, c), u in zip(self.parameters.items(), parts, strict=True)}

    def log_jacobian(self, x: Tensor) -> Tensor:
        """log |det dx/du|, (..., D) to (...)."""
        parts = x.split(self._sizes, -1)
        terms = [c.log_jacobian(u) for c, u in zip(self.parameters.values(), parts, strict=True)]
        return torch.stack(terms).sum(0)

    def unconstrain(self, values: Mapping[str, Any]) -> Tensor:
        """Points (..., D) from parameters by name, each (..., *shape); other names are ignored."""
        parts = []
        for name, constraint in self.parameters.items():
            if name not in values:
                needed = ", ".join(self.parameters)
                raise ValueError(f"the parameter {name!r} is missing; the parameters are {needed}")
            value = torch.as_tensor(values[name], dtype=self.dtype, device=self.device)
            try:
                parts.append(constraint.inverse(value))
            except ValueError as error:
                raise ValueError(f"the parameter {name!r}: {error}") from error
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*batch, -1) for part in parts], -1)

    def _generate(self, values: Values, rng: torch.Generator) -> Values:  # noqa: ARG002
        """Quantities computed from the parameters, each (..., *shape)."""
        return {}

    def to_posterior(self, draws: Tensor, seed: int = 0) -> dict[str, Values]:
        """ArviZ groups from unconstrained draws (..., D): every quantity, (..., *shape).

        `posterior` holds parameters and generated quantities; of the latter log_lik* go to `log_likelihood`,
        and *_rep, *_hat, *_pred, *_sim and *_tilde to `posterior_predictive`.
        """
        with torch.no_grad():
            values = self.constrain(draws, everything=True, seed=seed)
        return group(values, set(values) - set(self.parameters))


class TorchModel(ConstrainedModel):
    """A model given by its parameters and the log density of their values.

    Arguments:
        parameters: the constraint of every parameter by name: Real(), Positive(), Lower(a), Upper(b),
            Interval(a, b), Ordered(K), Simplex(K); a shape makes a container, such as Real(5).
        log_density: takes the parameters of ONE draw by name, in their own shapes, and returns one number,
            log p(data, parameters); the log-Jacobian is added here. It is run over many draws at once by
            torch.vmap, so write torch.where instead of `if` on values.
        generated: takes the parameters of one draw by name, and `rng` (a torch.Generator) if it wants one;
            returns a dict of tensors: transformed parameters, log_lik for LOO, y_rep for predictive checks.
        batched: log_density takes all draws at once instead, parameters (n, *shape), and returns (n,).

    >>> from torch.distributions import HalfCauchy, Normal
    >>> from bayescore.targets.constraints import Positive, Real
    >>> y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
    >>> se = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
    >>> def log_density(mu, tau, theta):
    ...     prior = Normal(0, 5).log_prob(mu) + HalfCauchy(5).log_prob(tau)
    ...     return prior + Normal(mu, tau).log_prob(theta).sum() + Normal(theta, se).log_prob(y).sum()
    >>> schools = TorchModel({"mu": Real(), "tau": Positive(), "theta": Real(8)}, log_density)
    >>> schools.dim, schools.names[:3]
    (10, ['mu', 'tau', 'theta[1]'])
    >>> schools.score(torch.zeros(4, 10, dtype=torch.float64)).shape
    torch.Size([4, 10])
    """

    name = "torch-model"

    def __init__(
        self,
        parameters: Mapping[str, Constraint],
        log_density: Callable[..., Tensor],
        *,
        generated: Callable[..., Mapping[str, Tensor]] | None = None,
        batched: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(parameters, dtype=dtype, device=device)
        _check_names("log_density", log_density, list(parameters))
        self._draws_random = False
        if generated is not None:
            self._draws_random = "rng" in inspect.signature(generated).parameters
            _check_names("generated", generated, [*parameters, *(["rng"] if self._draws_random else [])])
        self.log_density, self.generated, self.batched = log_density, generated, batched
        self._check()

    def log_prob(self, x: Tensor) -> Tensor:
        points = x.reshape(-1, self.dim)  # (n, D)
        value = self._density(self._constrain(points)) + self.log_jacobian(points)  # (1)
        return value.reshape(x.shape[:-1])

    def _density(self, values: Values) -> Tensor:
        with _distributions(self.dtype):
            if self.batched:
                return self._one(values)
            return torch.vmap(self._one)(values)

    def _one(self, values: Values) -> Tensor:
        value = self.log_density(**values)
        if not isinstance(value, Tensor):
            raise TypeError(f"log_density must return a torch.Tensor; it returned {type(value).__name__}")
        return value

    def _generate(self, values: Values, rng: torch.Generator) -> Values:
        if self.generated is None:
            return {}
        shapes = {name: constraint.dims for name, constraint in self.parameters.items()}
        first = next(iter(shapes))
        lead = values[first].shape[: values[first].dim() - len(shapes[first])]
        flat = {name: value.reshape(-1, *shapes[name]) for name, value in values.items()}
        extra = {"rng": rng} if self._draws_random else {}
        rows = []
        with _distributions(self.dtype):
            for i in range(lead.numel()):
                rows.append(self.generated(**{name: value[i] for name, value in flat.items()}, **extra))
        stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}
        return {name: value.reshape((*lead, *value.shape[1:])) for name, value in stacked.items()}

    def _check(self) -> None:
        """Evaluate the density at u = 0, for two draws, so that mistakes show when the model is made."""
        values = self._constrain(torch.zeros(2, self.dim, dtype=self.dtype, device=self.device))
        try:
            with torch.no_grad():
                value = self._density(values)
        except RuntimeError as error:
            if "data-dependent" not in str(error):
                raise
            raise TypeError(
                "log_density cannot be run over many draws at once because it branches on values; "
                "replace `if` by torch.where, or write it for all draws and pass batched=True"
            ) from error
        if value.shape != (2,):
            per_draw = tuple(value.shape) if self.batched else tuple(value.shape[1:])
            want = "(n,) for n draws" if self.batched else "one number, () for one draw"
            raise ValueError(
                f"log_density must return {want}; it returned the shape {per_draw}: is a sum missing?"
            )
        if value.dtype != self.dtype:
            kinds = f"was given {self.dtype} and returned {value.dtype}"
            raise TypeError(f"log_density {kinds}; cast the data to {self.dtype}")


def _indexed(name: str, dims: tuple[int, ...]) -> Iterator[str]:
    if not dims:
        yield name
    for index in itertools.product(*(range(1, n + 1) for n in dims)) if dims else ():
        yield f"{name}[{','.join(map(str, index))}]"


def _check_names(what: str, fn: object, names: list[str]) -> None:
    """Raise unless the function takes exactly the given names."""
    if not callable(fn):
        raise TypeError(f"{what} must be a function of the parameters; got {type(fn).__name__}")
    signature = inspect.signature(fn)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(
            f"{what} must take the parameters by name, ({', '.join(names)}); it takes {signature}"
        ) from error


@contextmanager
def _distributions(dtype: torch.dtype) -> Iterator[None]:
    """Turn off the argument checks of torch.distributions and set torch's default dtype, for the block.

    The checks cannot run under vmap, and Normal(0, 0.1) would be a float32 distribution.
    """
    checks, before = Distribution._validate_args, torch.get_default_dtype()
    Distribution.set_default_validate_args(False)
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checks)
        torch.set_default_dtype(before)
