"""The file of a fit: one safetensors file of tensors with a JSON text in its header.

Nothing is pickled, and a file is written whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

__all__ = ["encode", "read", "write"]

FORMAT = "bayescore-fit-1"

_KINDS: dict[str, type] = {
    "format": str,
    "family": dict,
    "method": dict,
    "step": int,
    "horizon": int,
    "outcome": str,
    "status": str,
    "history": dict,
    "counts": dict,
    "seconds": float,
    "seed": int,
    "pending": list,
}


def encode(value: float) -> float | str:
    """A number as strict JSON has it: NaN and infinities as words."""
    return value if math.isfinite(value) else str(value)


def write(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write beside the destination, then move into place."""
    text = json.dumps({"format": FORMAT, **header}, allow_nan=False)
    data = save(
        {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}, {"json": text}
    )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to save {path.name} in; make it first")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header, checked, and the tensors."""
    with safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})["json"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if not isinstance(header, dict):
        raise ValueError(f"its header is {type(header).__name__}, not an object")
    for key, kind in _KINDS.items():
        if type(header.get(key)) is not kind:
            raise ValueError(f"its header has no {key} of the kind {kind.__name__}")
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
    lengths = {len(values) for values in header["history"].values()}
    if len(lengths) > 1:
        raise ValueError("the columns of its history differ in length")
    return header, tensors
