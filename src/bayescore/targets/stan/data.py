"""The data of a Stan program as JSON text."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Data", "data_text"]

Data = Mapping[str, Any] | str | os.PathLike[str] | None


def data_text(data: Data) -> str:
    """JSON from a dict (numbers, lists, arrays, tensors), from a file, or {} for a program without data."""
    if data is None:
        return "{}"
    if isinstance(data, Mapping):
        return json.dumps({_name(name): _plain(name, value) for name, value in data.items()})
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if not path.is_file():
            raise FileNotFoundError(f"there is no data file at {path}")
        text = path.read_text(encoding="utf-8")
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not readable JSON: {error}") from error
        if not isinstance(found, dict):
            kind = type(found).__name__
            raise ValueError(f"{path} must hold a JSON object, the data by name; it holds a {kind}")
        return text
    raise TypeError(f"data must be a dict, the path of a JSON file or None; got {type(data).__name__}")


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the names of data must be strings; got {name!r}")
    return name


def _plain(name: str, value: Any) -> Any:
    """Numbers and nested lists only; True and False are 1 and 0, as Stan has no logical type."""
    if hasattr(value, "tolist"):  # NumPy arrays and numbers, tensors, pandas series
        value = value.tolist()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(name, part) for part in value]
    if isinstance(value, Mapping):  # Stan's tuples
        return {str(key): _plain(name, part) for key, part in value.items()}
    kind = type(value).__name__
    raise TypeError(f"the data {name!r} must be numbers, lists, arrays or tensors; got {kind}")
