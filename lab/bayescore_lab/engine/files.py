"""Writing whole files: each appears complete or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["prepare_folder", "write_file"]


def prepare_folder(folder: Path) -> None:
    """Make a folder and try that files can be written there; OSError says what to do where they cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise OSError(
            problem.errno, f"cannot write to the folder ({reason}); choose another with --out", str(folder)
        ) from problem


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file in one step, so that a reader sees the old content or the new."""
    data = content.encode() if isinstance(content, str) else content
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(name, 0o644)  # mkstemp makes it private to the user
        os.replace(name, path)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise OSError(
            problem.errno,
            f"could not be written ({reason}); the records are safe, the same command draws again",
            str(path),
        ) from problem
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
