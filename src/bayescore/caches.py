"""The cache: folders of this user's own, which nobody else can write.

What lies there may run as code, so a folder is used only if this user owns it, nobody else may write into it,
and nobody else can exchange it: the folders above it belong to this user or to the system, and others cannot
write them, except a sticky one such as /tmp, where only the owner of an entry can move it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["cache_place", "make_private", "open_own", "private_folder"]

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: root, and what the files of the system's root belong to inside a container that does not know it
SYSTEM = (0, 65534)


def cache_place(kind: str) -> Path:
    """Where files of a kind are kept: $BAYESCORE_CACHE/kind, or ~/.cache/bayescore/kind."""
    if root := os.environ.get("BAYESCORE_CACHE"):
        return Path(root, kind)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bayescore", kind)


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, each for this user alone (0700)."""
    for place in (*reversed(folder.parents), folder):
        if not place.is_dir():
            place.mkdir(mode=0o700, exist_ok=True)  # another process may have been faster


def private_folder(folder: Path, remedy: str) -> Path:
    """The folder, made if it is missing, without links in its path; PermissionError if it is not private.

    `remedy` says how to name another folder.
    """
    try:
        make_private(folder)
        folder = folder.resolve(strict=True)
        found = os.stat(folder)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise PermissionError(f"nothing can be kept in {folder} ({error.strerror}); {remedy}") from error
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} belongs to the user number {found.st_uid}, who could plant programs in it; it must "
            f"belong to you, number {os.geteuid()}: {remedy}"
        )
    if found.st_mode & OTHERS_WRITE:
        raise PermissionError(
            f"{folder} can be written by others (its mode is {_mode(found)}), who could have planted "
            f"programs in it; empty it and run `chmod 700 {folder}`, or {remedy}"
        )
    for above in folder.parents:
        status = os.stat(above)
        loose = status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
        if loose or status.st_uid not in (os.geteuid(), *SYSTEM):
            raise PermissionError(
                f"{above} can be written by others (its owner is the user number {status.st_uid}, its mode "
                f"{_mode(status)}), who could exchange {folder} below it; make it yours and run "
                f"`chmod 700 {above}`, or {remedy}"
            )
    if not writable:
        raise PermissionError(f"nothing can be kept in {folder}, which you cannot write; {remedy}")
    return folder


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a file of this user's own; a link, a pipe, or a file of or for others is refused."""
    try:
        # without O_NONBLOCK, a pipe would be waited for
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _foreign(path, "is a link" if path.is_symlink() else f"cannot be opened ({error})") from error
    found = os.fstat(handle)
    problem = None
    if not stat.S_ISREG(found.st_mode):
        problem = "is not a file"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to the user number {found.st_uid}"
    elif found.st_mode & OTHERS_WRITE:
        problem = f"can be written by others (its mode is {_mode(found)})"
    if problem is not None:
        os.close(handle)
        raise _foreign(path, problem)
    return handle


def _foreign(path: Path, problem: str) -> PermissionError:
    return PermissionError(
        f"the cache entry {path} {problem}, and only a file of yours that nobody else can write is used; "
        "remove it to have it made anew"
    )


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
