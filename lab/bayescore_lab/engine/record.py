"""One line of a record file, and a set of them as tables, figures and verdicts see it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from bayescore_lab.engine.encoding import dumps, loads

__all__ = ["Metric", "Record", "Records", "by_method"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """What one run was, what it found, and where and when it ran."""

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
        """The inverse of `line`; ValueError where the line is not JSON or not a record."""
        values = loads(line)
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise ValueError("the line is JSON but not a record")
        if not all(isinstance(values[name], dict) for name in ("config", "metrics", "trace", "status")):
            raise ValueError("the line has the fields of a record, but not their kinds")
        return cls(**values)


#: the name of a metric, or a function that reads a number from a record
Metric = str | Callable[[Record], float]


def by_method(record: Record) -> str:
    """The usual arm of a record: its method."""
    return record.method


class Records(Sequence[Record]):
    """Finished runs in the order of the grid, grouped into arms: lines of a figure, rows of a table."""

    def __init__(self, records: Iterable[Record], arm: Callable[[Record], str] = by_method) -> None:
        self._records = tuple(records)
        self._arm = arm

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
        """The records of each arm, arms in the order of the grid."""
        found: dict[str, list[Record]] = {}
        for record in self._records:
            found.setdefault(self._arm(record), []).append(record)
        return {name: Records(records, self._arm) for name, records in found.items()}

    @property
    def seeds(self) -> list[int]:
        """The distinct seeds, sorted."""
        return sorted({record.seed for record in self._records})

    @property
    def budget(self) -> int:
        """The largest number of score calls any run spent."""
        return max((record.score_calls for record in self._records), default=0)

    def select(self, keep: Callable[[Record], bool]) -> Records:
        """The records for which `keep` holds."""
        return Records(filter(keep, self._records), self._arm)

    def where(self, **config: Any) -> Records:
        """The records whose config has these entries."""
        return self.select(lambda r: all(k in r.config and r.config[k] == v for k, v in config.items()))

    def values(self, metric: Metric, broken: float = math.nan) -> Floats:
        """One number per record; a metric that is missing or NaN counts as `broken`."""
        read = metric if callable(metric) else lambda record: record.metrics.get(metric, math.nan)
        values = np.array([float(read(record)) for record in self._records], dtype=np.float64)
        return np.where(np.isnan(values), broken, values)
