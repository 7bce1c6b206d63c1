"""Plain values in strict JSON: what a record may hold, and the name a run gets from it.

JSON has no word for the three floats that are not numbers. They are written as the strings "NaN", "Infinity"
and "-Infinity" and read back as floats, everywhere; no setting may use these three words for anything else.
Every other float is written with the digits that give it back bitwise.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["dumps", "encode", "loads", "run_id"]

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any, where: str = "value") -> Any:
    """`value` in JSON types; arrays and tensors become lists, mappings get string keys."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): encode(entry, f"{where}[{key!r}]") for key, entry in value.items()}
    if hasattr(value, "tolist"):  # numpy scalars and arrays, torch tensors
        return encode(value.tolist(), where)
    if isinstance(value, Sequence | set | frozenset):
        entries = value if isinstance(value, Sequence) else sorted(value)
        return [encode(entry, f"{where}[{place}]") for place, entry in enumerate(entries)]
    raise TypeError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold; "
        "use numbers, strings, lists, arrays or dicts"
    )


def dumps(value: Any, **options: Any) -> str:
    """Strict JSON text of any value `encode` takes."""
    return json.dumps(encode(value), allow_nan=False, ensure_ascii=False, **options)


def loads(text: str | bytes) -> Any:
    """The value behind `dumps`, with the three words back as floats."""
    return _decode(json.loads(text))


def run_id(experiment: str, method: str, seed: int, config: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that change with anything that defines the run."""
    text = dumps([experiment, method, seed, config], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _decode(value: Any) -> Any:
    if isinstance(value, str):
        return _WORDS.get(value, value)
    if isinstance(value, dict):
        return {key: _decode(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_decode(entry) for entry in value]
    return value
