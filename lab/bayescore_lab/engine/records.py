"""The append-only file of records, safe against kills, full disks and a second process.

A record is one line, written under an exclusive lock by a single write and flushed to the disk. Whoever
holds the lock may rely on this: a last line without its newline, or that is not JSON, was cut off by a
kill, and is removed; a bad line further up is damage from outside, and is reported by its number and left
alone.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayescore_lab.engine.record import Record

try:
    import fcntl
except ImportError:  # a system without file locks: one process per folder
    fcntl = None  # type: ignore[assignment]

__all__ = ["RecordStore"]

_log = logging.getLogger(__name__)


class RecordStore:
    """The records of one experiment: `folder/records.jsonl`, made when the first record arrives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records.jsonl"
        #: numbers of the lines that could not be read, counted from 1
        self.corrupt: list[int] = []
        self._done: set[str] = set()
        self._offset = 0
        self._lines = 0

    def done(self) -> set[str]:
        """The ids of the runs that are finished, including what other processes have added by now."""
        if self.path.exists():
            with self._locked() as file:
                self._catch_up(file)
        return set(self._done)

    def read(self) -> list[Record]:
        """Every readable record, in the order of the file."""
        if not self.path.exists():
            return []
        self._forget()
        with self._locked() as file:
            return self._catch_up(file)

    def append(self, record: Record) -> bool:
        """Add a record unless its run is finished already; on any error the file is as it was before."""
        line = record.line()
        with self._locked() as file:
            self._catch_up(file)
            if record.run in self._done:
                return False
            try:
                written = os.write(file, line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file)
            except OSError:
                with suppress(OSError):  # what cannot be cut off now is dropped at the next start
                    os.ftruncate(file, self._offset)
                raise
            self._note(record, len(line))
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)  # gives the lock back

    def _catch_up(self, file: int) -> list[Record]:
        """Read what was added since the last look; drop a half-written end. The caller holds the lock."""
        size = os.fstat(file).st_size
        if size < self._offset:  # someone replaced the file
            self._forget()
        with os.fdopen(os.dup(file), "rb") as stream:
            stream.seek(self._offset)
            lines = stream.readlines()
        if lines and not (lines[-1].endswith(b"\n") and _is_json(lines[-1])):
            half = lines.pop()
            os.ftruncate(file, size - len(half))
            _log.info("%s: dropped a half-written record at the end", self.path)
        records = []
        for line in lines:
            try:
                record = Record.parse(line)
            except ValueError:
                self._lines += 1
                self._offset += len(line)
                self.corrupt.append(self._lines)
                continue
            self._note(record, len(line))
            records.append(record)
        return records

    def _note(self, record: Record, length: int) -> None:
        self._lines += 1
        self._offset += length
        if record.done:
            self._done.add(record.run)

    def _forget(self) -> None:
        self.corrupt, self._done, self._offset, self._lines = [], set(), 0, 0


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
