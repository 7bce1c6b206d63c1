"""A cache of files that are expensive to make: each is made once, by one process, and written atomically.

An entry is a file, with the SHA-256 of its content in a second file. An entry whose content does not match is
made again: the checksum detects damage. It cannot detect an attack, against which the folder is private (see
caches.py). Two processes that need the same entry take turns by a file lock, and the second finds it ready.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bayescore.caches import cache_place, open_own, private_folder

__all__ = ["cache_folder", "discard", "fetch"]

log = logging.getLogger(__name__)


def cache_folder(chosen: str | os.PathLike[str] | None = None) -> Path:
    """Where compiled programs are kept: `chosen`, $BAYESCORE_CACHE/stan, or ~/.cache/bayescore/stan."""
    folder = cache_place("stan") if chosen is None else Path(chosen)
    return private_folder(
        folder.absolute(),
        "give cache_dir= or set BAYESCORE_CACHE to a folder of your own for compiled programs",
    )


def fetch(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The entry `name`; if it is missing or damaged, `make(path)` writes it."""
    path = folder / name
    if _intact(path):
        return path
    with _locked(folder / f"{name}.lock"):
        if _intact(path):  # another process was faster
            return path
        if os.path.lexists(path):
            log.warning("the cache entry %s is damaged and is made anew", path)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{name}.", suffix=".part")
        os.close(handle)
        try:
            make(Path(temporary))
            os.chmod(temporary, 0o700)  # a compiler replaces its output, as the umask allows
            digest = _digest(Path(temporary))
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        _write(_checksum_file(path), digest)
    return path


def discard(path: Path) -> None:
    """Invalidate an entry that cannot be used."""
    _checksum_file(path).unlink(missing_ok=True)


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path) -> str:
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _intact(path: Path) -> bool:
    try:
        with open(open_own(_checksum_file(path), os.O_RDONLY), encoding="ascii") as file:
            return file.read(65) == _digest(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(temporary, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # not on Windows, where httpstan is not either

    with open(open_own(path, os.O_RDWR | os.O_CREAT), "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process is making %s; waiting for it", path.stem)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
