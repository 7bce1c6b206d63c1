"""From cells to numbers: what a column is, is decided on the rows to learn from, and kept as JSON types.

number     its value; if cells are missing, the mean stands for them, and a second column says so
boolean    1 for true or yes, 0 for false or no; the same for missing cells
date       days since the first date, and the phase of the year and of the week; of the day, if there are
           times
category   one column for each text, and one for missing cells; a text that was never seen has none
left out   one value only, or almost as many texts as rows
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayescore.data.dates import parse_dates
from bayescore.data.tables import is_missing, looks_like_names, number

__all__ = ["Column", "encode", "learn_columns"]

Floats = NDArray[np.float64]
BOOLEANS = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0}
MOST_CATEGORIES = 100  # the most frequent ones of a column; others count as never seen
KINDS = ("number", "boolean", "date", "category")
YEAR, WEEK, DAY = 365.2425, 7.0, 1.0  # in days


@dataclass(frozen=True)
class Column:
    """A column and how its cells become numbers.

    fill: what stands for a missing number.  missing: whether cells were missing, so that a column says so.
    categories: of a category, most frequent first.
    start: the first date, in days since 1970; times: whether dates have times of day.
    """

    name: str
    kind: str
    fill: float = 0.0
    missing: bool = False
    categories: tuple[str, ...] = ()
    start: float = 0.0
    times: bool = False

    def as_json(self) -> dict[str, Any]:
        """JSON types, from which `Column.from_json` makes it again."""
        return {**asdict(self), "categories": list(self.categories)}

    @classmethod
    def from_json(cls, entry: Any) -> Column:
        found = cls(**{**entry, "categories": tuple(entry["categories"])})
        if found.kind not in KINDS or not all(isinstance(word, str) for word in found.categories):
            raise ValueError(f"the column {found.name!r} is of an unknown kind, {found.kind!r}")
        return found

    def encode(self, cells: Sequence[str], what: str, rows: Sequence[int] = ()) -> list[Floats]:
        """The columns of numbers; `what` says whose cells they are, and `rows` in which rows, for errors."""
        gone = np.array([is_missing(cell) for cell in cells])
        if self.kind == "category":
            words = np.array(list(cells), dtype=object)
            unknown = sorted(set(words[~gone]) - set(self.categories))
            if unknown:
                shown = ", ".join(map(repr, unknown[:5]))
                warnings.warn(
                    f"{what}: the column {self.name!r} has categories that were not learned from ({shown}); "
                    "they count as none of the known ones",
                    stacklevel=2,
                )
            return [(words == word) * 1.0 for word in self.categories] + [gone * 1.0]
        if self.kind == "date":
            return self._dates(cells, gone, what)
        read = BOOLEANS.get if self.kind == "boolean" else number
        found = [None if hole else read(cell.lower()) for cell, hole in zip(cells, gone, strict=True)]
        for i, (value, hole) in enumerate(zip(found, gone, strict=True)):
            if value is None and not hole:
                raise ValueError(
                    f"{what}, row {rows[i] if rows else i + 1}: {cells[i][:40]!r} in the column "
                    f"{self.name!r} is no {self.kind}; correct it, or leave the cell empty"
                )
        return self._filled(np.array([np.nan if v is None else v for v in found], dtype=np.float64), gone)

    def _filled(self, values: Floats, gone: NDArray[np.bool_]) -> list[Floats]:
        if gone.any() and not self.missing:
            warnings.warn(
                f"the column {self.name!r} has missing cells, and had none in the rows that were learned "
                "from; the mean stands for them",
                stacklevel=3,
            )
        whole: Floats = np.where(gone, self.fill, values)
        return [whole, gone.astype(np.float64)] if self.missing else [whole]

    def _dates(self, cells: Sequence[str], gone: NDArray[np.bool_], what: str) -> list[Floats]:
        texts = ["1970-01-01" if hole else cell for cell, hole in zip(cells, gone, strict=True)]
        days = _days(texts, f"{what}, column {self.name!r}")
        found = self._filled(days - self.start, gone)
        for period in (YEAR, WEEK) + ((DAY,) if self.times else ()):
            phase = 2 * math.pi * days / period
            found += [np.where(gone, 0.0, np.sin(phase)), np.where(gone, 0.0, np.cos(phase))]
        return found


def learn_columns(columns: Mapping[str, Sequence[str]]) -> tuple[list[Column], list[str]]:
    """What the columns are, from the rows to learn from, and sentences about those that are left out."""
    found, notes = [], []
    for name, cells in columns.items():
        column = _learned(name, cells)
        if isinstance(column, Column):
            found.append(column)
        else:
            notes.append(column)
    if not found:
        raise ValueError(f"no column is left to predict from: {'; '.join(notes)}")
    return found, notes


def _learned(name: str, cells: Sequence[str]) -> Column | str:
    there = [cell for cell in cells if not is_missing(cell)]
    distinct = Counter(there)
    complete = len(there) == len(cells)
    if not there:
        return f"the column {name!r} is empty and left out"
    if len(distinct) == 1 and complete:
        return f"the column {name!r} is the same in all rows ({there[0][:40]!r}) and left out"
    numbers = [number(cell) for cell in there]
    if all(value is not None for value in numbers):
        values = np.array(numbers, dtype=np.float64)
        return Column(name, "number", float(values.mean()), not complete)
    if all(word.lower() in BOOLEANS for word in distinct) and len(distinct) <= 2:
        values = np.array([BOOLEANS[cell.lower()] for cell in there])
        return Column(name, "boolean", float(values.mean()), not complete)
    try:
        days = _days(there, name)
    except ValueError:
        if looks_like_names(len(distinct), len(there)):
            remedy = "; numbers would be written as 1234.5, dates as 2024-01-31" if _has_digits(there) else ""
            return (
                f"the column {name!r} has {len(distinct):,} different texts in {len(there):,} rows, such as "
                f"{there[0][:40]!r}, names rather than categories, and is left out{remedy}"
            )
        return Column(name, "category", categories=tuple(w for w, _ in distinct.most_common(MOST_CATEGORIES)))
    start = float(days.min())
    times = bool((days % 1 != 0).any())
    return Column(name, "date", float(days.mean()) - start, not complete, (), start, times)


def _has_digits(cells: Sequence[str]) -> bool:
    """Whether half of all signs are digits, as in numbers and dates that are not written as such."""
    signs = "".join(cells)
    return 2 * sum(sign.isdigit() for sign in signs) > len(signs)


def _days(texts: Sequence[str], what: str) -> Floats:
    dates, _ = parse_dates(list(texts), None, what)
    return dates.astype(np.int64) / 86_400


def encode(
    known: Sequence[Column], cells: Mapping[str, Sequence[str]], what: str, rows: Sequence[int] = ()
) -> Floats:
    """Rows of numbers (n, D) from the cells of a table; a column that it lacks is named.

    Arguments:
        what, rows: the table and the numbers of these rows in it, for errors.
    """
    lacking = [column.name for column in known if column.name not in cells]
    if lacking:
        raise ValueError(
            f"{what} has no column {', '.join(map(repr, lacking[:5]))}, which the model learned from; "
            f"its columns are {', '.join(cells)[:200]}"
        )
    return np.stack([found for c in known for found in c.encode(cells[c.name], what, rows)], 1)
