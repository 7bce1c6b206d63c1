"""Records: strict JSON, one line per run, and the finished runs as tables, figures and verdicts use them.

JSON has no NaN and no infinities. They are written as the strings "NaN", "Infinity" and "-Infinity" and read
back as floats, everywhere; no setting may use these three strings for anything else. Every other float is
written with enough digits to be read back bitwise.

A file of records is append-only and safe against kills, full disks and a second process. A record is one
line, written under an exclusive lock by a single write and flushed to the disk. A last line without its
newline was cut off by a kill, or is being written now: reading ignores it, the next append, which holds the
lock, removes it. Any other bad line is damage from outside: it is reported by its number and left alone.
Reading never writes; appending refuses what is not a regular file of this user (`engine.files`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from bayescore.reading import check_json_memory, json_memory
from bayescore_lab.engine.files import SIZE_LIMIT, open_to_append, open_to_read
from bayescore_lab.engine.shapes import Each, OneOf, check_shape

try:
    import fcntl
except ImportError:  # a system without file locks: one process per folder
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "Lines",
    "Metric",
    "Record",
    "RecordStore",
    "Records",
    "by_method",
    "check_outcome",
    "dumps",
    "encode",
    "loads",
    "prepare_folder",
    "run_id",
]

_log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
T = TypeVar("T")

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DEPTH = 64  # far more than any record needs, far less than Python's stack holds
_TOO_DEEP = f"lists and objects are nested more than {_DEPTH} levels deep"
MEMORY_LIMIT = 400 * 2**20  # of the items of one file, which are read together
_WHOLE = range(-(2**63), 2**64)  # the whole numbers that every reader of JSON may be expected to hold


def encode(value: Any, where: str = "value", *, nonfinite: Literal["word", "null"] = "word") -> Any:
    """`value` in JSON types; arrays and tensors become lists, mappings get string keys.

    A float that is not finite becomes its word, or None with `nonfinite="null"`.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        if nonfinite == "null":
            return None
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {
            str(key): encode(entry, f"{where}[{key!r}]", nonfinite=nonfinite) for key, entry in value.items()
        }
    if hasattr(value, "tolist"):  # numpy scalars and arrays, torch tensors
        return encode(value.tolist(), where, nonfinite=nonfinite)
    if isinstance(value, Sequence | set | frozenset):
        entries = value if isinstance(value, Sequence) else sorted(value)
        return [
            encode(entry, f"{where}[{place}]", nonfinite=nonfinite) for place, entry in enumerate(entries)
        ]
    raise TypeError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold; "
        "use numbers, strings, lists, arrays or dicts"
    )


def dumps(value: Any, **options: Any) -> str:
    """Strict JSON text of any value `encode` takes."""
    return json.dumps(encode(value), allow_nan=False, ensure_ascii=False, **options)


def loads(text: str | bytes) -> Any:
    """The value behind `dumps`, with the three words back as floats; ValueError for what is no such text."""
    check_json_memory(text, "the text")
    try:
        value = json.loads(text)
    except RecursionError as problem:
        raise ValueError(_TOO_DEEP) from problem
    return _decode(value)


def run_id(experiment: str, method: str, seed: int, config: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that change with anything that defines the run."""
    text = dumps([experiment, method, seed, config], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _decode(value: Any, depth: int = 0) -> Any:
    """Put the three floats in place of their words, in the lists and objects that were just parsed."""
    if isinstance(value, str):
        _check_text(value)
        return _WORDS.get(value, value)
    if isinstance(value, int) and value not in _WHOLE:
        raise ValueError(f"a whole number has {value.bit_length()} bits; expected at most 64")
    if isinstance(value, dict | list):
        if depth == _DEPTH:
            raise ValueError(_TOO_DEEP)
        for place, entry in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(place, str):
                _check_text(place)
            value[place] = _decode(entry, depth + 1)
    return value


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as problem:  # half of a surrogate pair: legal JSON that no file can hold
            raise ValueError("a string holds a character that is not in Unicode") from problem


@dataclass(frozen=True)
class Record:
    """One run: its definition, its results, and where and when it ran."""

    experiment: str
    run: str
    method: str
    seed: int
    config: dict[str, Any]
    metrics: dict[str, Any]
    trace: dict[str, list[float]]
    score_calls: int
    seconds: float
    status: dict[str, str]
    commit: str
    versions: dict[str, str]
    machine: dict[str, Any]
    started: str

    @property
    def done(self) -> bool:
        """Whether the run came to its end; one that raised or was killed is not done."""
        return self.status.get("state") == "done"

    def line(self) -> bytes:
        """The record as one line of strict JSON, with its newline."""
        return (dumps(vars(self), separators=(",", ":")) + "\n").encode()

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The inverse of `line`; ValueError says why the line is not a record."""
        values = loads(line)
        check_shape(values, _RECORD, "the record")
        if strange := values.keys() - _RECORD.keys():
            raise ValueError(f"the record has the unknown field {min(strange)!r:.40}")
        check_outcome(values["metrics"], values["trace"])
        reason = "ended" if values["status"]["state"] == "done" else "error"
        check_shape(values["status"], {reason: str}, "the record['status']")
        return cls(**values)


_RECORD = {
    "experiment": str,
    "run": str,
    "method": str,
    "seed": int,
    "config": dict,
    "metrics": dict,
    "trace": dict,
    "score_calls": int,
    "seconds": float,
    "status": {"state": OneOf("done", "failed")},
    "commit": str,
    "versions": Each(str),
    "machine": dict,
    "started": str,
}


def check_outcome(metrics: Mapping[str, Any], trace: Mapping[str, Sequence[float]]) -> None:
    """Raise ValueError unless metrics and trace, in JSON types, are what a record may hold."""
    check_shape(metrics, Each((float, bool, str, dict)), "metrics")
    check_shape(trace, Each([float]), "trace")
    lengths = {name: len(values) for name, values in trace.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the lists of a trace must have one length; got {lengths}")


#: the name of a metric, or a function that reads a number from a record
Metric = str | Callable[[Record], float]


def by_method(record: Record) -> str:
    """The usual arm of a record: its method."""
    return record.method


def _number(record: Record, metric: Metric) -> float:
    if callable(metric):
        return float(metric(record))
    value = record.metrics.get(metric, math.nan)
    if not isinstance(value, int | float):
        raise ValueError(
            f"{metric} of {record.method}, seed {record.seed} is {value!r:.40}; expected a number"
        )
    return float(value)


class Records(Sequence[Record]):
    """Finished runs in the order of the grid, grouped into arms: lines of a figure, rows of a table.

    `missing` are the runs of the grid that are not finished, as records without metrics.
    """

    def __init__(
        self,
        records: Iterable[Record],
        arm: Callable[[Record], str] = by_method,
        missing: Iterable[Record] = (),
    ) -> None:
        self._records = tuple(records)
        self._arm = arm
        self.missing = tuple(missing)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        if isinstance(index, slice):
            return Records(self._records[index], self._arm)
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @property
    def arms(self) -> dict[str, Records]:
        """The records of each arm that has some, arms in the order of the grid."""
        found, missing = self._by_arm(self._records), self._by_arm(self.missing)
        return {name: Records(records, self._arm, missing.get(name, ())) for name, records in found.items()}

    @property
    def empty_arms(self) -> list[str]:
        """The arms of the grid of which no run is finished."""
        return [name for name in self._by_arm(self.missing) if name not in self._by_arm(self._records)]

    def _by_arm(self, records: Iterable[Record]) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in records:
            found.setdefault(self._arm(record), []).append(record)
        return found

    @property
    def seeds(self) -> list[int]:
        """The distinct seeds, sorted."""
        return sorted({record.seed for record in self._records})

    @property
    def budget(self) -> int:
        """The largest number of score calls any run spent."""
        return max((record.score_calls for record in self._records), default=0)

    def select(self, keep: Callable[[Record], bool]) -> Records:
        """The records for which `keep` holds, without what is missing: it may read metrics."""
        return Records(filter(keep, self._records), self._arm)

    def where(self, **config: Any) -> Records:
        """The records whose config has these entries."""

        def fits(record: Record) -> bool:
            return all(k in record.config and record.config[k] == v for k, v in config.items())

        return Records(filter(fits, self._records), self._arm, filter(fits, self.missing))

    def values(self, metric: Metric, broken: float = math.nan) -> Floats:
        """One number per record; a metric that is missing or NaN counts as `broken`."""
        values = np.array([_number(record, metric) for record in self._records], dtype=np.float64)
        return np.where(np.isnan(values), broken, values)

    def pairs(self, metric: Metric, one: str, other: str) -> tuple[Floats, Floats]:
        """The metric of two arms on the seeds that both have; a seed that an arm has twice is averaged.

        A metric that is missing or NaN counts as +inf: a run that broke down is worse than any other.
        """
        arms = self.arms
        if one not in arms or other not in arms:
            return np.empty(0), np.empty(0)
        seeds = sorted(set(arms[one].seeds) & set(arms[other].seeds))
        sides = []
        for name in (one, other):
            values = arms[name].values(metric, math.inf)
            owner = np.array([record.seed for record in arms[name]])
            sides.append(np.array([np.mean(values[owner == seed]) for seed in seeds], dtype=np.float64))
        return sides[0], sides[1]


class Lines(Generic[T]):
    """An append-only file of JSON lines, made when the first line arrives.

    Arguments:
        path: the file.
        parse: from a line to an item; raises ValueError if the line does not hold one.
        line: the inverse, with the newline.
        name: the name of an item, which can be added only once, or None if it may be repeated.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], T],
        line: Callable[[T], bytes],
        name: Callable[[T], str | None] = lambda _: None,
    ) -> None:
        self.path = path
        #: the lines that could not be read, counted from 1, and why
        self.corrupt: dict[int, str] = {}
        self._parse, self._line, self._name = parse, line, name
        self._names: set[str] = set()
        self._offset = 0
        self._count = 0
        self._memory = 0  # of the items, at most

    def names(self) -> set[str]:
        """The names of all items, including what other processes have added by now."""
        self._read_file()
        return set(self._names)

    def read(self) -> list[T]:
        """Every readable item, in the order of the file."""
        self._forget()
        return self._read_file()

    def check(self) -> None:
        """Raise the OSError that `append` would; make nothing."""
        with suppress(FileNotFoundError):
            os.close(open_to_append(self.path, create=False))

    def append(self, *items: T) -> bool:
        """Add items unless a name among them is taken; on any error the file is as it was before."""
        lines = [self._line(item) for item in items]
        if (longest := max(map(len, lines), default=0)) > SIZE_LIMIT:
            words = f"a line of {longest:,} bytes is longer than the {SIZE_LIMIT:,} that are read back"
            raise OSError(errno.EFBIG, f"{words}; record less", str(self.path))
        data = b"".join(lines)
        with self._locked() as file:
            _, half = self._read_new(file)
            if half:
                os.ftruncate(file, self._offset)
                _log.info("%s: dropped a half-written line at the end", self.path)
            if any(self._name(item) in self._names for item in items):
                return False
            try:
                written = os.write(file, data)
                if written != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file)
            except OSError:
                with suppress(OSError):  # a half-written line that remains is dropped by the next read
                    os.ftruncate(file, self._offset)
                raise
            for item, line in zip(items, lines, strict=True):
                self._note(item, len(line))
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = open_to_append(self.path)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)  # releases the lock

    def _read_file(self) -> list[T]:
        """Read what was added since the last look, if there is a file."""
        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            return []
        try:
            return self._read_new(file)[0]
        finally:
            os.close(file)

    def _read_new(self, file: int) -> tuple[list[T], bool]:
        """The items added since the last look, and whether a half-written line follows them."""
        if os.fstat(file).st_size < self._offset:  # someone replaced the file
            self._forget()
        items: list[T] = []
        with os.fdopen(os.dup(file), "rb") as stream:
            stream.seek(self._offset)
            while line := stream.readline(SIZE_LIMIT):
                length, end = len(line), line[-1:]
                while end != b"\n" and (rest := stream.readline(SIZE_LIMIT)):
                    length, end = length + len(rest), rest[-1:]
                if end != b"\n":
                    return items, True
                try:
                    if length > len(line):
                        raise ValueError(f"it has more than {SIZE_LIMIT:,} bytes")
                    item = self._parse(line)
                except ValueError as problem:
                    self._count += 1
                    self._offset += length
                    self.corrupt[self._count] = str(problem)
                    continue
                self._memory += json_memory(line)
                if self._memory > MEMORY_LIMIT:
                    words = f"could take more than {MEMORY_LIMIT / 2**20:,.0f} MB in memory; move it away"
                    raise OSError(errno.EFBIG, words, str(self.path))
                self._note(item, length)
                items.append(item)
        return items, False

    def _note(self, item: T, length: int) -> None:
        self._count += 1
        self._offset += length
        if (name := self._name(item)) is not None:
            self._names.add(name)

    def _forget(self) -> None:
        self.corrupt, self._names, self._offset, self._count, self._memory = {}, set(), 0, 0, 0


class RecordStore(Lines[Record]):
    """The records of one experiment: `folder/records.jsonl`, and `records-*.jsonl`, which are only read."""

    def __init__(self, folder: Path) -> None:
        def lines_of(path: Path) -> tuple[Any, ...]:
            return path, Record.parse, Record.line, lambda record: record.run if record.done else None

        super().__init__(*lines_of(folder / "records.jsonl"))
        self._parts = [Lines[Record](*lines_of(path)) for path in sorted(folder.glob("records-*.jsonl"))]

    def done(self) -> set[str]:
        """The ids of the runs that are finished."""
        return self.names().union(*(part.names() for part in self._parts))

    def read(self) -> list[Record]:
        return [record for part in self._parts for record in part.read()] + super().read()

    @property
    def damage(self) -> list[tuple[Path, int, str]]:
        """The lines that could not be read: their file, number and reason."""
        files: list[Lines[Record]] = [*self._parts, self]
        return [(file.path, line, reason) for file in files for line, reason in file.corrupt.items()]


def prepare_folder(folder: Path) -> None:
    """Make a folder and check that files can be written there; the OSError says what to do if not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise OSError(
            problem.errno, f"cannot write to the folder ({reason}); choose another with --out", str(folder)
        ) from problem
