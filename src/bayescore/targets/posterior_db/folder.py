"""A PosteriorDB folder: posteriors, their data, programs and reference draws.

Both the layout of the database itself and a flat one are read; <data>, <model> and <name> are in the
posterior's description:
    posteriors/<posterior>.json
    data/data/<data>.json.zip                          or data/<data>.json.zip
    models/stan/<model>.stan                           or programs/<model>.stan
    reference_posteriors/draws/draws/<name>.json.zip   or reference_draws/<name>.json.zip
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.checks import unknown_name
from bayescore.reading import read_json
from bayescore.targets.posterior_db.named_arrays import arrays
from bayescore.targets.stan.variables import Variable, unpack, variables_of

__all__ = ["Entry", "Folder"]

DATA = ("data/data/{}.json.zip", "data/{}.json.zip", "data/data/{}.json", "data/{}.json")
PROGRAMS = ("models/stan/{}.stan", "programs/{}.stan")
NAME = re.compile(r"[A-Za-z0-9_+.-]{1,200}")
COLUMN = re.compile(r"[\w.:]{1,100}(\[[\d,]{1,100}\])?", re.ASCII)
DRAWS = ("reference_posteriors/draws/draws/{}.json.zip", "reference_draws/{}.json.zip")


class Folder:
    """The folder at `path`, by default $BAYESCORE_POSTERIORDB or $BAYESCORE_DATA/posteriordb.

    Arguments:
        path: the folder that holds `posteriors`, or a copy of the PosteriorDB repository.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is None:
            own, root = os.environ.get("BAYESCORE_POSTERIORDB"), os.environ.get("BAYESCORE_DATA")
            if not own and not root:
                raise ValueError("no PosteriorDB folder is known; give path= or set BAYESCORE_DATA")
            path = Path(own) if own else Path(str(root), "posteriordb")
        inner = Path(path, "posterior_database")
        self.path = inner if inner.is_dir() else Path(path)
        if not (self.path / "posteriors").is_dir():
            raise FileNotFoundError(f"{self.path} is not a PosteriorDB folder: it has no folder `posteriors`")

    @property
    def names(self) -> list[str]:
        """The posteriors."""
        return sorted(file.stem for file in (self.path / "posteriors").glob("*.json"))

    def __getitem__(self, name: str) -> Entry:
        if name not in self.names:
            raise unknown_name("posterior", name, self.names)
        return Entry(self, _object(self.path / "posteriors" / f"{name}.json"))

    def find(self, patterns: tuple[str, ...], name: str) -> Path | None:
        """The first file of that name, if there is one."""
        files = (self.path / pattern.format(name) for pattern in patterns)
        return next((file for file in files if file.is_file()), None)


@dataclass(frozen=True)
class Entry:
    """One posterior of a folder; its files are read when they are needed."""

    folder: Folder
    description: dict[str, Any]

    def __post_init__(self) -> None:
        """Its names become names of files, so they must be such and lead nowhere else."""
        for key in ("name", "model_name", "data_name", "reference_posterior_name"):
            value = self.description.get(key)
            if value is None and key == "reference_posterior_name":
                continue
            if not isinstance(value, str) or not NAME.fullmatch(value):
                raise ValueError(
                    f"a posterior of {self.folder.path} must be described by names of files, in letters, "
                    f"digits and the signs _ - + .; its {key!r} is {str(value)[:80]!r}"
                )

    @property
    def name(self) -> str:
        return str(self.description["name"])

    @property
    def model_name(self) -> str:
        return str(self.description["model_name"])

    @cached_property
    def data(self) -> dict[str, Any]:
        """The data by name, as Stan takes them."""
        return _object(self._file("data", DATA, str(self.description["data_name"])))

    @property
    def program(self) -> Path | None:
        """The Stan program, if the folder holds it."""
        return self.folder.find(PROGRAMS, self.model_name)

    @property
    def has_reference(self) -> bool:
        """Whether there are reference draws."""
        name = self.description.get("reference_posterior_name")
        return bool(name) and self.folder.find(DRAWS, str(name)) is not None

    @cached_property
    def reference_draws(self) -> dict[str, Tensor]:
        """Reference draws by name, (chains, draws, *shape)."""
        name = str(self.description.get("reference_posterior_name") or self.name)
        path = self._file("reference draws", DRAWS, name)
        chains = read_json(path)
        if not isinstance(chains, list) or not all(isinstance(chain, dict) and chain for chain in chains):
            raise ValueError(f"{path} must hold a list of chains, each with draws by name; replace it")
        if not chains or any(chain.keys() != chains[0].keys() for chain in chains):
            raise ValueError(f"{path} must hold at least one chain, each with the same names; replace it")
        columns = list(chains[0])
        # beta[2,1] is beta.2.1 to Stan; the order of the columns is Stan's too
        flat = [re.sub(r"\[(.*)\]", lambda m: "." + m[1].replace(",", "."), name) for name in columns]
        layout = variables_of(flat) if all(COLUMN.fullmatch(name) for name in columns) else []
        if sum(math.prod(v.shape) for v in layout) != len(flat) or [*_flat_names(layout)] != flat:
            raise ValueError(f"{path} must hold every number of a parameter, in Stan's order; replace it")
        try:
            values = [torch.stack(arrays(chain, dict.fromkeys(columns, 1))) for chain in chains]
        except ValueError as error:
            raise ValueError(f"{path} must hold equally many draws of every parameter: {error}") from error
        if len({value.shape for value in values}) > 1:
            raise ValueError(f"{path} must hold equally many draws in every chain; replace it")
        rows = torch.stack(values)  # (chains, columns, draws)
        return unpack(rows.transpose(-1, -2), layout)

    def _file(self, what: str, patterns: tuple[str, ...], name: str) -> Path:
        file = self.folder.find(patterns, name)
        if file is None:
            places = " or ".join(pattern.format(name) for pattern in patterns[:2])
            raise FileNotFoundError(f"{self.folder.path} holds no {what} of {self.name}: expected {places}")
        return file


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object; it holds a {type(found).__name__}; replace it")
    return found


def _flat_names(layout: list[Variable]) -> Iterator[str]:
    """The names of all numbers of all variables in Stan's order, the first index running fastest."""
    for variable in layout:
        for index in itertools.product(*(range(1, n + 1) for n in reversed(variable.shape))):
            yield ".".join([variable.name, *map(str, reversed(index))])
