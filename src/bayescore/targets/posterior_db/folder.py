"""A PosteriorDB folder: posteriors, their data, programs and reference draws.

Both the layout of the database itself and a flat one are read; <data>, <model> and <name> are in the
posterior's description:
    posteriors/<posterior>.json
    data/data/<data>.json.zip                          or data/<data>.json.zip
    models/stan/<model>.stan                           or programs/<model>.stan
    reference_posteriors/draws/draws/<name>.json.zip   or reference_draws/<name>.json.zip
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.checks import unknown_name
from bayescore.targets.stan.variables import unpack, variables_of

__all__ = ["Entry", "Folder"]

DATA = ("data/data/{}.json.zip", "data/{}.json.zip", "data/data/{}.json", "data/{}.json")
PROGRAMS = ("models/stan/{}.stan", "programs/{}.stan")
DRAWS = ("reference_posteriors/draws/draws/{}.json.zip", "reference_draws/{}.json.zip")


class Folder:
    """The folder at `path`, by default $BAYESCORE_DATA/posteriordb.

    Arguments:
        path: the folder that holds `posteriors`, or a copy of the PosteriorDB repository.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is None:
            root = os.environ.get("BAYESCORE_DATA")
            if not root:
                raise ValueError("no PosteriorDB folder is known; give path= or set BAYESCORE_DATA")
            path = Path(root, "posteriordb")
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
        return Entry(self, _json(self.path / "posteriors" / f"{name}.json"))

    def find(self, patterns: tuple[str, ...], name: str) -> Path | None:
        """The first file of that name, if there is one."""
        files = (self.path / pattern.format(name) for pattern in patterns)
        return next((file for file in files if file.is_file()), None)


@dataclass(frozen=True)
class Entry:
    """One posterior of a folder; its files are read when they are needed."""

    folder: Folder
    description: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.description["name"])

    @property
    def model_name(self) -> str:
        return str(self.description["model_name"])

    @cached_property
    def data(self) -> dict[str, Any]:
        """The data by name, as Stan takes them."""
        data: dict[str, Any] = _json(self._file("data", DATA, str(self.description["data_name"])))
        return data

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
        chains: list[dict[str, list[float]]] = _json(self._file("reference draws", DRAWS, name))
        columns = list(chains[0])
        rows = torch.tensor([[chain[c] for c in columns] for chain in chains], dtype=torch.float64)
        # beta[2,1] is beta.2.1 to Stan; the order of the columns is Stan's too
        flat = [re.sub(r"\[(.*)\]", lambda m: "." + m[1].replace(",", "."), c) for c in columns]
        return unpack(rows.transpose(-1, -2), variables_of(flat))

    def _file(self, what: str, patterns: tuple[str, ...], name: str) -> Path:
        file = self.folder.find(patterns, name)
        if file is None:
            places = " or ".join(pattern.format(name) for pattern in patterns[:2])
            raise FileNotFoundError(f"{self.folder.path} holds no {what} of {self.name}: expected {places}")
        return file


def _json(path: Path) -> Any:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return json.loads(archive.read(archive.namelist()[0]))
        return json.loads(path.read_text(encoding="utf-8"))
    except (zipfile.BadZipFile, json.JSONDecodeError, IndexError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from error
