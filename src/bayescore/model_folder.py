"""The folder of a trained model: one format for images, texts, tables and forecasters; nothing is pickled.

    model.json               what the model is: kind, network, preprocessing, outputs, settings, metrics
    posterior.safetensors    its weights, as `Posterior.save` writes them

`model.json` names the SHA-256 of the file of weights, so that the two cannot be mixed up, and is written
last: a folder without it is no model. A kind of model builds its own module from the description; only names
that it knows are built, so that reading a folder runs no code of whoever wrote it.

    description = ModelDescription("images", "resnet18", {"classes": 2}, {"size": 96}, ["cat", "dog"])
    write_model("model", description, posterior)

    saved = read_model("model")
    posterior = saved.posterior(build(saved.description))
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from hashlib import file_digest
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bayescore.checks import unknown_name
from bayescore.io import plain_number, write_bytes
from bayescore.posteriors.base import Posterior
from bayescore.reading import read_json

__all__ = ["KINDS", "ModelDescription", "SavedModel", "read_model", "write_model"]

FORMAT, VERSION = "bayescore-model", 1
KINDS = ("images", "text", "table", "forecast")
DESCRIPTION, WEIGHTS = "model.json", "posterior.safetensors"


@dataclass(frozen=True)
class ModelDescription:
    """What a model is, as JSON types.

    Arguments:
        kind: "images", "text", "table" or "forecast".
        network: a name from which the kind builds the module.
        arguments: of the network.
        preprocessing: from a user's files to the module's inputs, in words of the kind.
        outputs: the classes, or the columns of values, in the order of the module's outputs.
        settings: of the training, for the reader.
        metrics: on held-out data, for the reader.
    """

    kind: str
    network: str
    arguments: dict[str, Any] = field(default_factory=dict)
    preprocessing: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("kind of model", self.kind, KINDS)


@dataclass(frozen=True)
class SavedModel:
    """A model as it lies in its folder; its weights are read by `posterior`."""

    folder: Path
    description: ModelDescription
    sha256: str

    def posterior(
        self, module: nn.Module, likelihood: Callable[[Any, Any], Tensor] | None = None
    ) -> Posterior:
        """Read the weights into the module that the description describes; both as in `Posterior.load`."""
        path = self.folder / WEIGHTS
        if not path.is_file():
            raise FileNotFoundError(f"the model in {self.folder} has no weights: {WEIGHTS} is missing")
        found = _sha256(path)
        if found != self.sha256:
            raise ValueError(
                f"{path} does not belong to the {DESCRIPTION} beside it (its SHA-256 is {found}, expected "
                f"{self.sha256}): one of the two is damaged or of another model; take an undamaged copy"
            )
        return Posterior.load(path, module, likelihood)


def write_model(
    folder: str | os.PathLike[str], description: ModelDescription, posterior: Posterior
) -> SavedModel:
    """Write a model into a folder, which is made if it is missing; other files in it stay.

    A model that was there is replaced: a reader sees the old model, none, or the new one, never a mixture.
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(f"{place} is a file, and a model is a folder; name another")
    content = {
        "format": FORMAT,
        "version": VERSION,
        **asdict(description),
        "weights_sha256": "0" * 64,
        "written_by": f"bayescore {version('bayescore')}",
    }
    _json(content)  # what cannot be written is refused before anything is replaced
    place.mkdir(parents=True, exist_ok=True)
    (place / DESCRIPTION).unlink(missing_ok=True)
    posterior.save(place / WEIGHTS)
    content["weights_sha256"] = _sha256(place / WEIGHTS)
    write_bytes(place / DESCRIPTION, _json(content))
    return SavedModel(place, description, content["weights_sha256"])


def read_model(folder: str | os.PathLike[str]) -> SavedModel:
    """Read the description of a model; a folder without one, or with a damaged one, is refused."""
    place = Path(folder)
    path = place / DESCRIPTION
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {str(place)[:200]}, in which a model could be")
    if not path.is_file():
        raise FileNotFoundError(
            f"{place} is not the folder of a model: it has no {DESCRIPTION}; "
            "`bayescore train` and `bayescore forecast` write one with --output FOLDER"
        )
    content = read_json(path)
    try:
        return _saved(place, content)
    except (LookupError, TypeError, ValueError) as problem:
        what = f"it lacks {problem}" if isinstance(problem, KeyError) else problem
        raise ValueError(f"{path} does not describe a model that can be read: {what}") from problem


def _saved(place: Path, content: Any) -> SavedModel:
    """The model that a description describes; raises unless every entry is what it should be."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not of the format {FORMAT!r}")
    if content["version"] != VERSION:
        raise ValueError(
            f"its version is {content['version']!r}, and this bayescore reads {VERSION}; install the "
            f"bayescore that wrote it ({content.get('written_by', 'unknown')})"
        )
    _json(content)  # NaN and infinities are no JSON
    kinds = {"dict": dict, "list": list, "str": str}
    entries = {}
    for entry in fields(ModelDescription):
        kind = kinds[str(entry.type).split("[")[0]]
        entries[entry.name] = value = content[entry.name]
        if not isinstance(value, kind):
            raise TypeError(f"{entry.name} must be a {kind.__name__}; it is a {type(value).__name__}")
    if not all(isinstance(name, str) for name in entries["outputs"]):
        raise TypeError("outputs must be texts")
    for name, value in entries["metrics"].items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"the metric {name} must be a number; it is {value!r:.100}")
    sha256 = content["weights_sha256"]
    if not isinstance(sha256, str):
        raise TypeError(f"weights_sha256 must be a text; it is {sha256!r:.100}")
    return SavedModel(place, ModelDescription(**entries), sha256)


def _json(content: dict[str, Any]) -> bytes:
    return (
        json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False, default=plain_number) + "\n"
    ).encode()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
