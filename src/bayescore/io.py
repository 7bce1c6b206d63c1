"""Files: one atomic write for the whole library, and one form, safetensors with a JSON text in its header.

Nothing is pickled. A file appears complete or not at all: it is written under a random name beside its
destination, flushed to the disk, and moved into place.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

__all__ = ["read_tensors", "replacing", "write_bytes", "write_tensors"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a file to write in the block, which takes the place of `path` when the block ends well.

    It lies in a private folder beside `path`, so that nobody can plant a link under its name.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to save {path.name} in; make it first")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".bayescore-") as folder:
        part = Path(folder) / path.name
        yield part
        descriptor = os.open(part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file by these bytes: a reader sees the old content or the new."""
    with replacing(path) as part:
        part.write_bytes(data)


def write_tensors(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a header of JSON types; NaN and infinities are refused in the header."""
    text = json.dumps(dict(header), allow_nan=False)
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_bytes(path, save(plain, {"json": text}))


def read_tensors(path: Path, format: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file whose header says that it has this format."""
    with safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})["json"])
        if not isinstance(header, dict):
            raise ValueError(f"its header is a {type(header).__name__}, not an object")
        if header.get("format") != format:
            raise ValueError(f"its format is {header.get('format')!r}, not {format!r}")
        return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
