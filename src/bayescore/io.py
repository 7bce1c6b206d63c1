"""Files: one atomic write for the whole library, and one format, safetensors with a JSON text in its header.

Nothing is pickled. A write is atomic: the file is written into a private folder next to its destination,
flushed to the disk, and moved into place, so that a reader sees a complete file or none.
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
    """Give the path of a file for the block to write; it replaces `path` if the block raises nothing.

    The file is in a private folder with a random name next to `path`, so that no other user can replace it by
    a link. It is created like any other file, with the permissions of the umask.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to save {path.name} in; make it first")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".bayescore-") as folder:
        part = Path(folder) / path.name
        yield part
        with part.open("rb+") as file:  # some systems refuse to flush a file that is open for reading only
            os.fsync(file.fileno())
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
    """Header and tensors of a file; raises unless its header names this format."""
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get("json")
        if text is None:
            raise ValueError("it has no JSON header")
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError(f"its header is a {type(header).__name__}, not an object")
        if header.get("format") != format:
            raise ValueError(f"its format is {header.get('format')!r}, not {format!r}")
        return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
