"""A posterior of PosteriorDB as a target: its density, its data and its reference draws."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from bayescore.rng import Streams
from bayescore.targets.base import Target
from bayescore.targets.model import ConstrainedModel
from bayescore.targets.posterior_db.folder import Entry, Folder
from bayescore.targets.posterior_db.garch import Garch
from bayescore.targets.posterior_db.gaussian_process import GaussianProcessCounts
from bayescore.targets.posterior_db.gp_normal import GaussianProcessNormal
from bayescore.targets.posterior_db.hierarchical import CentredSchools, NonCentredSchools
from bayescore.targets.posterior_db.linear_models import BayesianRegression, KidScores, LogEarnings, Mesquite
from bayescore.targets.posterior_db.normal_mixture import NormalMixture
from bayescore.targets.posterior_db.regression import AutoRegression, Diamonds
from bayescore.targets.stan import Stan

__all__ = ["FURTHER", "NATIVE", "PosteriorDB", "posteriordb"]

#: the paper's models, written here in torch so that they need no compiler
NATIVE: dict[
    str, type[AutoRegression] | type[Diamonds] | type[GaussianProcessCounts] | type[NormalMixture]
] = {
    "arK": AutoRegression,
    "diamonds": Diamonds,
    "gp_pois_regr": GaussianProcessCounts,
    "low_dim_gauss_mix": NormalMixture,
}
#: further models that are written here
FURTHER: dict[
    str,
    type[BayesianRegression]
    | type[CentredSchools]
    | type[Garch]
    | type[GaussianProcessNormal]
    | type[KidScores]
    | type[LogEarnings]
    | type[Mesquite]
    | type[NonCentredSchools],
] = {
    "blr": BayesianRegression,
    "eight_schools_centered": CentredSchools,
    "eight_schools_noncentered": NonCentredSchools,
    "garch11": Garch,
    "gp_regr": GaussianProcessNormal,
    "kidscore_interaction": KidScores,
    "logearn_interaction": LogEarnings,
    "mesquite": Mesquite,
}


def posteriordb(
    name: str,
    path: str | os.PathLike[str] | None = None,
    *,
    program: str | os.PathLike[str] | None = None,
    propto: bool = False,
) -> PosteriorDB:
    """A posterior of a PosteriorDB folder.

    Arguments:
        name: such as "diamonds-diamonds"; an unknown one is an error that suggests the nearest.
        path: the folder, by default $BAYESCORE_DATA/posteriordb.
        program: a Stan program to use for the density. By default the density is the torch version if there
            is one (NATIVE, FURTHER), else the Stan program of the folder.
        propto: drop the constants of `~` statements (see Stan).

        target = bs.targets.posteriordb("arK-arK")
        print(bs.fit(target).compare())
    """
    entry = Folder(path)[name]
    data = entry.data
    native = NATIVE.get(entry.model_name) or FURTHER.get(entry.model_name)
    density: ConstrainedModel | Stan
    if program is None and native is not None:
        try:
            density = native.from_data(data, propto=propto)
        except ValueError as error:
            raise _unfit(entry, error) from error
    else:
        source = program if program is not None else entry.program
        if source is None:
            raise ValueError(
                f"there is no density for {name}: the folder holds no program of {entry.model_name}; "
                "pass your own with program="
            )
        try:
            density = Stan(source, data, propto=propto)
        except TypeError as error:
            raise _unfit(entry, error) from error
    draws = entry.reference_draws if entry.has_reference else None
    return PosteriorDB(entry.name, density, data, draws)


def _unfit(entry: Entry, problem: Exception) -> ValueError:
    return ValueError(f"the data of {entry.name} do not fit the model {entry.model_name}: {problem}")


class PosteriorDB(Target):
    """A density with its data and reference draws; made by `posteriordb`.

    Arguments:
        title: the posterior's name.
        density: the target itself, on its unconstrained space.
        data: as Stan takes them.
        reference_draws: by name, (chains, draws, *shape); None if there are none.
    """

    name = "posteriordb"

    def __init__(
        self,
        title: str,
        density: ConstrainedModel | Stan,
        data: Mapping[str, Any],
        reference_draws: dict[str, Tensor] | None,
    ) -> None:
        self.title, self.density, self.data = title, density, dict(data)
        self.dim, self.dtype, self.device = density.dim, density.dtype, density.device
        self._reference = reference_draws
        self.constrain, self.unconstrain = density.constrain, density.unconstrain
        self.to_posterior = density.to_posterior

    @property
    def names(self) -> list[str]:
        """The coordinates of the unconstrained space."""
        return self.density.names

    @property
    def constrained_names(self) -> list[str]:
        """The names of all entries of all parameters."""
        return self.density.constrained_names

    @property
    def has_reference(self) -> bool:
        """Whether there are reference draws."""
        return self._reference is not None

    @property
    def reference_draws(self) -> dict[str, Tensor]:
        """Reference draws by name, (chains, draws, *shape)."""
        if self._reference is None:
            raise ValueError(f"PosteriorDB has no reference draws of {self.title}")
        return self._reference

    @cached_property
    def reference_points(self) -> Tensor:
        """The reference draws on the unconstrained space, (chains * draws, D)."""
        try:
            points = self.unconstrain(self.reference_draws)
        except ValueError as error:
            raise ValueError(
                f"the reference draws of {self.title} do not determine its parameters: {error}"
            ) from error
        return points.reshape(-1, self.dim)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.density.log_prob(x)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        return self.density.score(x, streams)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.density.log_prob_and_score(x)

    def hessian_product(self, x: Tensor, v: Tensor) -> Tensor:
        return self.density.hessian_product(x, v)

    def __repr__(self) -> str:
        return f"PosteriorDB({self.title!r}, {self.density!r})"
