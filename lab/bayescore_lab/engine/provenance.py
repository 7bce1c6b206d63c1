"""Where a record comes from: the commit of the source, the versions of the libraries, the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["commit", "machine", "usable_cores", "versions"]


def commit(source: Path = Path(__file__).parents[1]) -> str:
    """The commit of the tree that contains `source`, with "-dirty" if it was changed since, or "unknown".

    It is "unknown" for a package inside some repository that does not track it (such as an environment).
    """
    try:
        tracked = _git(source, "ls-files", "--", ".")
        head = _git(source, "rev-parse", "--short=12", "HEAD")
        changed = _git(source, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    if not tracked:
        return "unknown"
    return f"{head}-dirty" if changed else head


def versions(more: Iterable[str] = ()) -> dict[str, str]:
    """The versions of Python, of the numerical libraries, and of `more`; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in ("bayescore", "torch", "numpy", "scipy", *more):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The processor, its cores and the system; nothing that names the machine or its user."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def usable_cores() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
