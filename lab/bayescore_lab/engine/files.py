"""Opening files in a folder that others may have written to: regular files only, and only so many bytes.

A link may lead to somebody's data, a device or a FIFO may never end. `open_to_read` follows a link, because
reading changes nothing, and refuses all that is not a regular file; `open_to_append` takes only a file that
belongs to this user and has no other name. Each refusal is an OSError with the file and a sentence.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["SIZE_LIMIT", "open_to_append", "open_to_read", "read_bounded"]

#: bytes of the largest file, or line of a file, that is taken into memory
SIZE_LIMIT = 16_000_000

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # systems without these flags have no FIFOs to wait for
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_to_read(path: Path, *, follow: bool = True) -> int:
    """A descriptor for reading; where `follow` is false, a symbolic link is refused too."""
    _check_kind(path, os.stat(path, follow_symlinks=follow))
    return _open(path, os.O_RDONLY | (0 if follow else _NOFOLLOW))


def open_to_append(path: Path, *, create: bool = True) -> int:
    """A descriptor for reading and appending; the file is made where `create` is true and there is none."""
    try:
        _check_kind(path, os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        if not create:
            raise
    file = _open(path, os.O_RDWR | os.O_APPEND | _NOFOLLOW | (os.O_CREAT if create else 0))
    try:
        found = os.fstat(file)
        if found.st_nlink > 1:
            raise _refusal(
                path, f"has {found.st_nlink} names (hard links), and what is written would appear in all"
            )
        if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
            raise _refusal(path, f"belongs to another user (number {found.st_uid})")
    except OSError:
        os.close(file)
        raise
    return file


def read_bounded(path: Path) -> bytes:
    """The content of a file that is no link and has at most `SIZE_LIMIT` bytes."""
    with os.fdopen(open_to_read(path, follow=False), "rb") as stream:
        data = stream.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise OSError(errno.EFBIG, f"has more than the {SIZE_LIMIT:,} bytes that are read", str(path))
    return data


def _open(path: Path, flags: int) -> int:
    # between the look at its name and its opening, another file may have taken its place
    file = os.open(path, flags | _NONBLOCK, 0o644)
    try:
        _check_kind(path, os.fstat(file))
    except OSError:
        os.close(file)
        raise
    return file


def _check_kind(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise _refusal(path, f"is {kind} where a regular file is expected")


def _refusal(path: Path, what: str) -> OSError:
    words = f"{what}; put a copy in its place, move it away, or choose another folder"
    return OSError(errno.EINVAL, words, str(path))
