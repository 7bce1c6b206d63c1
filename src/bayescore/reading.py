"""Reading what others wrote: files of limited size, compressed or not, and JSON.

A small compressed file can hold any amount of zeros, so its content is counted while it is read; a small JSON
text can become large in memory, so what it will take is estimated before it is parsed. No file of JSON takes
more than 600 MB. What is damaged, too large or of another kind raises ValueError, and what is not there
FileNotFoundError.
"""

from __future__ import annotations

import gzip
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

__all__ = ["check_json_memory", "json_memory", "parse_json", "read_content", "read_json", "read_text"]

TEXT_LIMIT = 128 * 2**20
WIDE_LIMIT = TEXT_LIMIT // 4  # one character beyond ASCII can make every character take four bytes
JSON_LIMIT = 300 * 2**20
#: bytes that Python takes, at most, for what begins or is separated by a sign: a list, an object with one
#: entry, half of a string with its place among the keys of an object, a number with its place in a list
JSON_COSTS = {"[": 90, "{": 120, '"': 60, ",": 40}
CHUNK = 2**20
# what zipfile, gzip and zlib raise for damage; RuntimeError is an encrypted file or an unknown compression
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    UnicodeDecodeError,
)
XZ_MEMORY = 128 * 2**20  # bytes that unpacking an .xz may take: its header can ask for gigabytes


def read_content(path: Path, limit: int, remedy: str = "replace it", what: str = "file") -> bytes:
    """The bytes of a file, uncompressed if it is a .gz, a .xz or a .zip (which must hold one file).

    Arguments:
        path: the file.
        limit: the most bytes that are read; a file that holds more is refused.
        remedy: what to do with a file that is refused.
        what: what a missing file is called.
    """
    try:
        there = path.is_file()
    except OSError:  # such as a name that is too long
        there = False
    if not there:
        raise FileNotFoundError(f"there is no {what} at {str(path)[:200]}")
    try:
        with _opened(path) as (file, size):
            parts, read = [], 0
            while size <= limit and (part := file.read(CHUNK)):
                parts.append(part)
                read += len(part)
                size = max(size, read)
            if size <= limit:
                return b"".join(parts)
    except DAMAGE as error:
        kind = {".zip": "zip", ".gz": "gzip", ".xz": "xz"}.get(path.suffix, "readable")
        raise ValueError(f"{path} is not a whole {kind} file ({error}); {remedy}") from error
    raise ValueError(f"{path} holds at least {size:,} bytes, and at most {limit:,} are expected; {remedy}")


def read_text(path: Path, what: str = "file") -> str:
    """The text of a file of at most 128 MB, which must be UTF-8."""
    content = read_content(path, TEXT_LIMIT, what=what)
    if len(content) > WIDE_LIMIT and not content.isascii():
        raise ValueError(
            f"{path} holds {len(content):,} bytes, and at most {WIDE_LIMIT:,} are read of a text with "
            "characters beyond ASCII; replace it"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error}); save it as such") from error


def read_json(path: Path) -> Any:
    """The value that a JSON file of at most 128 MB holds."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, label: str) -> Any:
    """The value that a JSON text holds; `label` says whose text it is."""
    check_json_memory(text, label)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{label} is not readable JSON: it is nested too deeply") from None
    except ValueError as error:  # also a whole number of thousands of digits
        raise ValueError(f"{label} is not readable JSON: {error}") from error


def check_json_memory(text: str | bytes, label: str) -> None:
    """Raise if the value of a JSON text would take more than 300 MB."""
    need = json_memory(text)
    if need > JSON_LIMIT:
        raise ValueError(
            f"{label} holds numbers, texts, lists and objects that could take {need / 2**20:,.0f} MB, and at "
            f"most {JSON_LIMIT / 2**20:,.0f} MB are read; replace it"
        )


def json_memory(text: str | bytes) -> int:
    """The most bytes that the value of a JSON text can take."""
    if isinstance(text, bytes):
        return len(text) + sum(cost * text.count(sign.encode()) for sign, cost in JSON_COSTS.items())
    return len(text) + sum(cost * text.count(sign) for sign, cost in JSON_COSTS.items())


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The uncompressed stream of a file, and the size that the file declares for it (0 if it does not)."""
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            yield cast(IO[bytes], file), 0
    elif path.suffix == ".xz":
        with path.open("rb") as packed:
            yield cast(IO[bytes], _Unpacked(packed)), 0
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) != 1:
                raise zipfile.BadZipFile(f"it must hold one file, and holds {len(members)}")
            (member,) = members
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # others can ask for gigabytes before the first byte
                raise zipfile.BadZipFile(f"its compression {member.compress_type} is not deflate")
            with archive.open(member) as file:
                yield file, member.file_size
    else:
        with path.open("rb") as file:
            yield file, path.stat().st_size


class _Unpacked:
    """The uncompressed stream of an .xz file, in limited memory."""

    def __init__(self, packed: IO[bytes]) -> None:
        self.packed = packed
        self.unpacker = lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def read(self, size: int) -> bytes:
        while not self.unpacker.eof:
            more = self.packed.read(CHUNK) if self.unpacker.needs_input else b""
            if self.unpacker.needs_input and not more:
                raise EOFError("it ends before its content does")
            if part := self.unpacker.decompress(more, size):
                return part
        return b""
