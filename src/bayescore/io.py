"""Files: one atomic write for the whole library, and one format, safetensors with a JSON text in its header.

Nothing is pickled. A write is atomic: the file is written into a private folder next to its destination,
flushed to the disk, and moved into place, so that a reader sees a complete file or none. A file carries a
SHA-256 of its header and tensors, and is read only if it still has that content.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayescore.reading import check_json_memory

__all__ = ["read_tensors", "refusing_damage", "replacing", "write_bytes", "write_tensors"]

#: the names of kinds of numbers in safetensors files
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.bool: "BOOL",
}  # fmt: skip
ATTEMPTS = 20  # to read a file that is replaced meanwhile
MAX_HEADER = 64 * 2**20  # bytes: a header beyond is no file of ours, and parsing it would fill the memory


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


def plain_number(value: Any) -> int | float:
    """A number of numpy as one of Python, for JSON."""
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def write_tensors(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a header of JSON types; NaN and infinities are refused in the header."""
    text = json.dumps(dict(header), allow_nan=False, default=plain_number)
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    # wide numbers first, so that all are aligned; the same content is always the same bytes
    names = sorted(plain, key=lambda name: (-plain[name].element_size(), name))
    places: dict[str, Any] = {"__metadata__": {"json": text, "sha256": _checksum(text, plain)}}
    end = 0
    for name in names:
        value = plain[name]
        begin, end = end, end + value.numel() * value.element_size()
        places[name] = {"dtype": _dtype_name(value), "shape": list(value.shape), "data_offsets": [begin, end]}
    outer = json.dumps(places, sort_keys=True, separators=(",", ":")).encode()
    outer += b" " * (-len(outer) % 8)
    start = len(outer).to_bytes(8, "little")
    _check_header_size(start)
    check_json_memory(outer, "the header of the file")
    with replacing(path) as part, part.open("wb") as file:
        file.writelines([start, outer])
        for name in names:  # from the tensors' own memory: a copy of a large network would not fit beside it
            file.write(_memory(plain[name]))


def read_tensors(path: Path, format: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of an undamaged file whose header says that it has this format."""
    for _ in range(ATTEMPTS):
        found = _identity(path)
        try:
            return _read_tensors(path, format)
        except (OSError, SafetensorError, ValueError):
            # safetensors opens the file by its name more than once, and another process may have replaced it
            if _identity(path) == found:
                raise
    return _read_tensors(path, format)


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read_tensors(path: Path, format: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with path.open("rb") as start:
        size = _check_header_size(start.read(8))
        check_json_memory(start.read(size), "its header")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        text, checksum = metadata.get("json"), metadata.get("sha256")
        if text is None:
            raise ValueError("it has no JSON header")
        if checksum is None:
            raise ValueError("it has no checksum to show that it is whole; write it again")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if checksum != _checksum(text, tensors):
        raise ValueError("its contents do not match their checksum; take an undamaged copy")
    header = json.loads(text, parse_float=_finite, parse_constant=_refuse_constant)
    if not isinstance(header, dict):
        raise ValueError(f"its header is a {type(header).__name__}, not an object")
    if header.get("format") != format:
        raise ValueError(f"its format is {header.get('format')!r}, not {format!r}")
    return header, tensors


@contextmanager
def refusing_damage(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Whatever reading a damaged or foreign file raises becomes one sentence: it is no readable `what`."""
    try:
        yield
    except (
        SafetensorError,
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{path} is not a readable {what} (damaged, cut short, or written by something else): "
            f"{_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, RecursionError):
        return "its header is nested too deeply"
    return next(iter(str(error).splitlines()), type(error).__name__)


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the header, then names, kinds and shapes, then the bytes of all tensors in order of name."""
    names = sorted(tensors)
    kinds = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = sha256(json.dumps([text, kinds]).encode())
    for name in names:
        digest.update(_memory(tensors[name]))
    return digest.hexdigest()


def _memory(value: Tensor) -> memoryview:
    """The bytes of a tensor, not a copy of them."""
    found: memoryview = value.reshape(-1).view(torch.uint8).numpy().data
    return found


def _dtype_name(value: Tensor) -> str:
    """The name of a tensor's kind of numbers in safetensors files."""
    if value.dtype not in DTYPES:
        raise TypeError(f"a file cannot hold a tensor of {value.dtype}; convert it first")
    return DTYPES[value.dtype]


def _check_header_size(start: bytes) -> int:
    """The size of the header, with which a file begins; raise unless it is small enough to be read."""
    size = int.from_bytes(start, "little")
    if size > MAX_HEADER:
        raise ValueError(f"its header has {size:,} bytes, more than the {MAX_HEADER:,} that a file may have")
    return size


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"its header holds the number {text[:40]}, which is too large")
    return number


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"its header holds {word}, which is no JSON")
