"""The data of a Stan program as JSON text."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayescore.reading import parse_json, read_text

__all__ = ["Data", "data_text"]

NAN = "NaN"  # in JSON with Python's or Stan's extension

Data = Mapping[str, Any] | str | os.PathLike[str] | None


def data_text(data: Data) -> tuple[str, frozenset[str]]:
    """JSON from a dict (numbers, lists, arrays, tensors), from a file, or {} for a program without data; and
    the names in it."""
    if data is None:
        return "{}", frozenset()
    if isinstance(data, Mapping):
        try:
            plain = {_name(name): _plain(name, value) for name, value in data.items()}
            text = json.dumps(plain)
        except RecursionError:
            raise ValueError(
                "the data are nested too deeply, or a list holds itself; give flat arrays"
            ) from None
        _warn_of_nan(text, plain)
        return text, frozenset(plain)
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        text = read_text(path, "data file")
        found = parse_json(text, str(path))
        if not isinstance(found, dict):
            kind = type(found).__name__
            raise ValueError(f"{path} must hold a JSON object, the data by name; it holds a {kind}")
        _warn_of_nan(text, found)
        return text, frozenset(found)
    raise TypeError(f"data must be a dict, the path of a JSON file or None; got {type(data).__name__}")


def _warn_of_nan(text: str, data: Mapping[str, Any]) -> None:
    """Name the data that hold NaN, as a number or as the word that Stan reads as one."""
    if NAN in text:
        names = [name for name, value in data.items() if _holds_nan(value)]
        if names:
            warnings.warn(
                f"the data {', '.join(names)[:200]} hold NaN, and a density of NaN is rejected everywhere; "
                "leave missing values out, or make them parameters",
                UserWarning,
                stacklevel=4,
            )


def _holds_nan(value: Any) -> bool:
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, list | dict):
            parts.extend(part.values() if isinstance(part, dict) else part)
        elif part == NAN or (isinstance(part, float) and math.isnan(part)):
            return True
    return False


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
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        digits = round(value.bit_length() * math.log10(2))
        raise ValueError(f"the data {name!r} must be numbers up to 1e308; got one of about {digits} digits")
    if isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(name, part) for part in value]
    if isinstance(value, Mapping):  # Stan's tuples
        return {str(key): _plain(name, part) for key, part in value.items()}
    kind = type(value).__name__
    raise TypeError(f"the data {name!r} must be numbers, lists, arrays or tensors; got {kind}")
