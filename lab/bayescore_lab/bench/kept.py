"""Measured rows in a file, one line of JSON each: an interrupted benchmark goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Kept", "KeptRow"]


@dataclass(frozen=True)
class KeptRow:
    """One method on one network.

    Arguments:
        key: what was measured and with which code; rows of another key do not count.
        block: names the set of processes among which it was measured.
        anchor: the anchor's seconds in the same rounds; empty where it was not there.
        done: whether it need not be measured again.
    """

    key: dict[str, Any]
    method: str
    block: str
    seconds: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    anchor: list[float] = field(default_factory=list)
    note: str = ""
    done: bool = True


class Kept:
    """The rows of a benchmark; with a file they outlive the process."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._rows: list[KeptRow] = []
        if path is not None and path.exists():
            self._rows = [row for row in map(_read, path.read_text().splitlines()) if row is not None]

    def add(self, rows: Sequence[KeptRow]) -> None:
        """Keep further rows; of two with the same key and method the later counts."""
        self._rows += rows
        if self.path is not None:
            whole = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write("" if whole else "\n")  # a line that a killed process left unfinished
                file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)

    def rows(self, key: dict[str, Any]) -> dict[str, KeptRow]:
        """The rows of a key by method."""
        return {row.method: row for row in self._rows if row.key == key}


def _read(line: str) -> KeptRow | None:
    """A row; None for a line that was cut off or comes from another version."""
    try:
        return KeptRow(**json.loads(line))
    except (ValueError, TypeError):
        return None
