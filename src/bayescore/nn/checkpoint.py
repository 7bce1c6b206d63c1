"""A run's file: nested state as safetensors and JSON; never a pickle, always written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bayescore.posteriors.storage import write_whole

__all__ = ["load_state", "save_state"]

FORMAT = "bayescore-run-1"


def save_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write state dicts of models, optimizers, schedules to one file, whole or not at all.

    Arguments:
        state: nested dicts, lists and tuples of tensors, numbers, texts and None.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state(f"{folder}/run.safetensors", {"model": model.state_dict(), "epoch": 3})
    ...     saved = load_state(f"{folder}/run.safetensors")
    >>> model.load_state_dict(saved["model"])
    <All keys matched successfully>
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a checkpoint holds a dict, such as {{'model': ...}}; got a {type(state).__name__}")
    tensors: dict[str, Tensor] = {}
    tree = _told(state, tensors)
    write_whole(Path(path), save(tensors, {"json": json.dumps({"format": FORMAT, "tree": tree})}))


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save_state` wrote; tensors come back on the CPU."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["json"])
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
            found = _heard(header["tree"], file)
        if not isinstance(found, dict):
            raise ValueError("it holds no dict")
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a readable checkpoint (truncated, or written by something else): {error}"
        ) from error
    return found


def _told(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; tensors are put aside under a number."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"a checkpoint cannot hold a dict with the key {key!r}: use texts or numbers")
        return {"dict": [[key, _told(part, tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_told(part, tensors) for part in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}: {value!r}")


def _heard(tree: Any, file: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return file.get_tensor(value)
    if kind == "dict":
        return {key: _heard(part, file) for key, part in value}
    if kind not in ("list", "tuple"):
        raise ValueError(f"it holds a {kind!r}")
    parts = [_heard(part, file) for part in value]
    return tuple(parts) if kind == "tuple" else parts
