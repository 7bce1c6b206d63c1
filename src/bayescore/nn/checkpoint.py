"""A run's file: nested state as safetensors and JSON, written whole after every epoch.

A killed run loses the epoch it was in, no more; continued from the file it is bitwise the run that was never
interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bayescore.nn.storage import write_whole

__all__ = ["read_state", "write_state"]

FORMAT = "bayescore-run-1"


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, texts and None."""
    tensors: dict[str, Tensor] = {}
    tree = _told(state, tensors)
    write_whole(Path(path), save(tensors, {"json": json.dumps({"format": FORMAT, "tree": tree})}))


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_state` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["json"])
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
            found: dict[str, Any] = _heard(header["tree"], file)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a readable checkpoint of a run (truncated, or written by something else): {error}"
        ) from error
    return found


def _told(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; tensors are put aside under a number."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[key, _told(part, tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_told(part, tensors) for part in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}: {value!r}")


def _heard(tree: Any, file: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        found: Tensor = file.get_tensor(value)
        return found
    if kind == "dict":
        return {key: _heard(part, file) for key, part in value}
    parts = [_heard(part, file) for part in value]
    return tuple(parts) if kind == "tuple" else parts
