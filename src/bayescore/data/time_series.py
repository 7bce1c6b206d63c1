"""Time series: the six benchmark sets by name, any CSV with a column of dates, data frames and arrays.

A CSV begins with a line of column names; one column holds dates, the others numbers. An empty cell, NA, NaN
or null is a missing value.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescore.checks import unknown_name
from bayescore.data.dates import Dates, is_date, parse_dates
from bayescore.data.files import Source, read
from bayescore.reading import read_content

__all__ = ["NOWHERE", "SERIES", "Series", "as_series", "date_text", "read_series", "series"]

CSV_LIMIT = 512 * 2**20
DATE_NAMES = ("date", "time", "timestamp", "datetime", "ds")
LARGEST = 1e100  # of a number, whose square must be a number too
NOWHERE = -1  # the place of a row that is not in the file
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?"})


@dataclass(frozen=True)
class Series:
    """One or more series on common dates.

    values: (n, C) in float64, NaN where a value is missing.  dates: (n,), or None for an array without dates.
    rows: how many rows from the first on are for training, validation and test, where a benchmark says so.
    reading: the arguments of `read_series` with which its file was read.  notes: what was done in reading, in
    sentences.  origin: (n,), where each row was in what was given, from 0 on; None: they are all there.
    """

    values: Tensor = field(repr=False)
    columns: tuple[str, ...]
    dates: Dates | None = field(default=None, repr=False)
    name: str = "the series"
    rows: tuple[int, int, int] | None = None
    reading: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    origin: NDArray[np.int64] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Where each row was in what was given, (n,); NOWHERE for a row that was not there."""
        return np.arange(len(self)) if self.origin is None else self.origin

    def label(self, row: int) -> str:
        """The number of a row in what was given, counted from 1, with its date."""
        number = self.numbers[row]
        if number == NOWHERE:
            return f"the missing row of {self.date(row)}"
        return f"row {number + 1}" + ("" if self.dates is None else f" ({self.date(row)})")

    def date(self, row: int) -> str:
        """The date of a row as a text, with its time unless that is midnight."""
        return "" if self.dates is None else date_text(self.dates[row])

    def take(self, rows: Any) -> Series:
        """The same columns, of some rows."""
        return replace(
            self,
            values=self.values[rows],
            dates=None if self.dates is None else self.dates[rows],
            rows=None,
            origin=self.numbers[rows],
        )

    def choose(self, columns: Sequence[str]) -> Series:
        """Some of the columns, in the given order."""
        for column in columns:
            if column not in self.columns:
                raise unknown_name(f"column of {self.name}", column, self.columns)
        index = [self.columns.index(column) for column in columns]
        return replace(self, values=self.values[:, index], columns=tuple(columns))


def date_text(date: np.datetime64) -> str:
    """A date, with its time unless that is midnight."""
    return str(date).replace("T", " ").removesuffix(":00").removesuffix(" 00:00")


@dataclass(frozen=True)
class _Benchmark:
    source: Source
    shape: tuple[int, int]
    rows: tuple[int, int, int] | None = None


def _file(name: str, sha256: str | None, size: int) -> Source:
    return Source(f"timeseries/{name}.csv", sha256, size)


_ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/1d16c8f4f943005d613b5bc962e9eeb06058cf07/ETT-small/"
SERIES = {
    "ECL": _Benchmark(_file("electricity", None, 128 * 10**6), (26_304, 321)),
    "ETTh2": _Benchmark(
        Source(
            "timeseries/ETTh2.csv",
            "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
            2_417_960,
            (_ETT + "ETTh2.csv",),
            licence="CC BY-ND 4.0",
        ),
        (17_420, 7),
        (8_640, 2_880, 2_880),
    ),
    "Exchange": _Benchmark(
        _file("exchange_rate", "48b4d9d3d508f5104162e85b9a6042e3557fde11aa9f2944eba8c0d0efc89842", 637_800),
        (7_588, 8),
    ),
    "ILI": _Benchmark(
        _file("national_illness", "93601f64d2566dc796ca4305adad8b8560c2db1a1ff04543c3bd813a7263570a", 67_620),
        (966, 7),
    ),
    "Traffic": _Benchmark(_file("traffic", None, 256 * 10**6), (17_544, 862)),
    "Weather": _Benchmark(
        _file("weather", "34ee981d07313e51da2a50bb600072c8ae4a69cb4b0651f4cb93a069d7a2ba63", 7_235_425),
        (52_696, 21),
    ),
}


def series(name: str, missing: Iterable[float] = ()) -> Series:
    """A benchmark set: "ECL", "ETTh2", "Exchange", "ILI", "Traffic" or "Weather".

    Arguments:
        missing: numbers that stand for a missing value. Weather has the number -9999 in 81 cells, which the
            benchmark keeps; `missing=[-9999]` makes them NaN.
    """
    if name not in SERIES:
        raise unknown_name("forecasting data set", name, SERIES)
    known = SERIES[name]
    found = _parse_csv(read(known.source), known.source.path, "date", None, missing)
    if found.values.shape != known.shape:
        raise ValueError(
            f"{known.source.path} has {found.values.shape[0]} rows and {found.values.shape[1]} columns of "
            f"numbers, and {name} has {known.shape[0]} and {known.shape[1]}; put the published file there"
        )
    return replace(found, name=name, rows=known.rows)


def read_series(
    path: str | os.PathLike[str],
    *,
    date: str | None = None,
    columns: Sequence[str] | None = None,
    date_format: str | None = None,
    missing: Iterable[float] = (),
) -> Series:
    """The series in a CSV file, which may be compressed (.gz, .xz, .zip).

    Arguments:
        date: the column of dates; by default the column called "date" (or "time", "timestamp", "datetime",
            "ds"), or else the first.
        columns: the columns of numbers; by default all others that have a name.
        date_format: how dates are written, as `strptime` takes it; by default the year comes first.
        missing: numbers that stand for a missing value, such as -9999.
    """
    place = Path(path)
    content = read_content(place, CSV_LIMIT, "cut it into smaller files")
    return _parse_csv(content, place.name, date, columns, missing, date_format)


def _parse_csv(
    content: bytes,
    what: str,
    date: str | None,
    columns: Sequence[str] | None,
    missing: Iterable[float],
    date_format: str | None = None,
) -> Series:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not text in UTF-8 ({error}); save it as such") from error
    lines = _lines(text, what)
    header = [name.strip() for name in next(lines, [])]
    if not header:
        raise ValueError(f"{what} is empty")
    if len(header) < 2:
        raise ValueError(
            f"{what} has no line of column names with commas between them, one for dates and one or more for "
            f"numbers, as date,load,price; it begins with {text[:40]!r}"
        )
    _check_distinct([name for name in header if name], what)
    where = _date_column(header, date, what)
    if date is None and is_date(header[where]):
        raise ValueError(
            f"{what} begins with the row of {header[where]}; put a line of column names above it, as "
            "date,load,price"
        )
    nameless = sum(not name for i, name in enumerate(header) if i != where)
    notes: tuple[str, ...] = ()
    if columns is not None:
        wanted = list(columns)
        _check_distinct(wanted, f"what is to be read of {what}")
        for name in wanted:
            if name not in header:
                raise unknown_name(f"column of {what}", name, filter(None, header))
    else:
        wanted = [name for i, name in enumerate(header) if name and i != where]
        if not wanted:
            raise ValueError(f"{what} has no column of numbers with a name")
        if nameless:
            notes = (f"{nameless} column{'s' * (nameless > 1)} without a name left out",)
    index = [header.index(name) for name in wanted]
    texts, rows = [], []
    for row, cells in enumerate(lines):  # one at a time: the cells of a large file would fill the memory
        if len(cells) != len(header):
            raise ValueError(
                f"{what}: row {row + 1} has {len(cells)} cells, and the line of column names has "
                f"{len(header)}; put text with commas in quotation marks"
            )
        texts.append(cells[where])
        try:
            rows.append(np.array([float(cells[i]) for i in index]))
        except ValueError:
            rows.append(np.array([_number(cells[i], row, header[i], what) for i in index]))
    if not rows:
        raise ValueError(f"{what} has no rows below its line of column names")
    values = np.stack(rows)
    dates, more = parse_dates(texts, date_format, f"{what}, column {header[where]!r}")
    numbers = [float(number) for number in missing]
    reading = {"date": header[where], "date_format": date_format, "missing": numbers}
    found = Series(torch.from_numpy(values), tuple(wanted), dates, what, None, reading, notes + more)
    return _with_missing(found, numbers)


def _check_distinct(names: Sequence[str], what: str) -> None:
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ValueError(f"{what} has two columns called {twice!r}; rename or leave out one of them")


def _lines(text: str, what: str) -> Iterator[list[str]]:
    """The cells of every line of a CSV that is not empty."""
    try:
        yield from (line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line)
    except csv.Error as error:
        raise ValueError(f"{what} is not a readable CSV file: {error}") from error


def _date_column(header: list[str], date: str | None, what: str) -> int:
    if date is not None:
        if date not in header:
            raise unknown_name(f"column of {what}", date, header)
        return header.index(date)
    lower = [name.lower() for name in header]
    return next((lower.index(name) for name in DATE_NAMES if name in lower), 0)


def _number(cell: str, row: int, column: str, what: str) -> float:
    if cell.strip().lower() in MISSING:
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        remedy = "name the columns to read (columns=, in a shell --columns)"
        if is_date(cell):
            remedy = f"say that these are the dates (date={column!r}, in a shell --date {column!r})"
        raise ValueError(
            f"{what}: row {row + 1} has {cell[:40]!r} in column {column!r} where a number is needed; correct "
            f"it, or {remedy}"
        ) from None


def _with_missing(found: Series, missing: Iterable[float]) -> Series:
    """The series with NaN in place of the numbers that stand for missing values; infinities are refused."""
    if bool(found.values.isinf().any()):
        row, column = found.values.isinf().nonzero()[0].tolist()
        raise ValueError(
            f"{found.name}: {found.label(row)} has an infinite number in column {found.columns[column]!r}; "
            "correct it, or leave the cell empty"
        )
    values = found.values
    for number in missing:
        values = torch.where(values == number, torch.nan, values)
    if bool((values.abs() > LARGEST).any()):
        row, column = (values.abs() > LARGEST).nonzero()[0].tolist()
        raise ValueError(
            f"{found.name}: {found.label(row)} has {float(values[row, column]):g} in column "
            f"{found.columns[column]!r}, more than {LARGEST:g}; give it in a larger unit"
        )
    return replace(found, values=values)


def as_series(data: Any, date: str | None = None) -> Series:
    """A `Series` from what a user has.

    Arguments:
        data: a Series, the path of a CSV file, a pandas data frame or series (its dates in the index or in a
            column), or an array (n,) or (n, C).
        date: the column of dates, if it has another name than "date".
    """
    if isinstance(data, Series):
        return data
    if isinstance(data, str | os.PathLike):
        return read_series(data, date=date)
    if hasattr(data, "to_frame") and hasattr(data, "index"):
        data = data.to_frame()
    if hasattr(data, "columns") and hasattr(data, "index"):
        return _of_frame(data, date)
    if isinstance(data, Tensor):
        data = data.detach().cpu().numpy()
    try:
        if np.iscomplexobj(data):
            raise TypeError
        values = np.array(data, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"series are a data frame, an array of numbers, a CSV file or a Series; got {type(data).__name__}"
        ) from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or not values.size:
        raise ValueError(f"an array of series has the shape (rows, columns); got {values.shape}")
    columns = tuple(str(i) for i in range(values.shape[1]))
    return _with_missing(Series(torch.from_numpy(values), columns, name="the array"), ())


def _of_frame(frame: Any, date: str | None) -> Series:
    """From a pandas data frame, which is not imported here."""
    what = "the data frame"
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise ValueError(f"{what} has two columns of one name; rename one of them")
    found, chosen = _frame_dates(frame, date, names)
    names = [name for name in names if name != chosen]
    dates, notes = (None, ()) if found is None else _dates_of(found, what)
    if not names:
        raise ValueError(f"{what} has no column of numbers")
    values = np.empty((len(frame), len(names)))
    own = [str(name) for name in frame.columns]
    for i, name in enumerate(names):
        cells = frame.iloc[:, own.index(name)]
        if _is_dated(cells):
            raise ValueError(
                f"{what} has dates in column {name!r} where numbers are needed; leave it out, or say that "
                f"these are the dates of its rows (date={name!r})"
            )
        try:
            values[:, i] = np.asarray(cells, dtype=np.float64)
        except (TypeError, ValueError):
            values[:, i] = [_number(str(cell), row, name, what) for row, cell in enumerate(cells)]
    return _with_missing(Series(torch.from_numpy(values), tuple(names), dates, what, notes=notes), ())


def _frame_dates(frame: Any, date: str | None, names: list[str]) -> tuple[Any, str | None]:
    """What holds the dates of a data frame, None if nothing does, and its name if it is a column."""
    index = frame.index
    if date is None and _is_dated(index):
        return index, None
    dated = [name for i, name in enumerate(names) if _is_dated(frame.iloc[:, i])]
    usual = [name for wanted in DATE_NAMES for name in names if name.lower() == wanted]
    if date is not None and date not in names:
        raise unknown_name("column of the data frame", date, names)
    chosen = next((name for name in (date, *usual, *(dated if len(dated) == 1 else ())) if name), None)
    return (None, None) if chosen is None else (frame.iloc[:, names.index(chosen)], chosen)


def _is_dated(cells: Any) -> bool:
    """Whether these are dates: kind M, with or without a time zone, or an index of periods."""
    return getattr(cells.dtype, "kind", "") == "M" or str(cells.dtype).startswith("period[")


def _dates_of(cells: Any, what: str) -> tuple[Dates, tuple[str, ...]]:
    """The dates in an index or a column of pandas, and what was done to them."""
    if str(cells.dtype).startswith("period["):
        cells = cells.to_timestamp() if hasattr(cells, "to_timestamp") else cells.dt.to_timestamp()
    raw = np.asarray(cells)
    if np.issubdtype(raw.dtype, np.datetime64):
        dates = raw.astype("datetime64[s]")
        if bool(np.isnat(dates).any()):
            raise ValueError(f"{what} has no date in row {int(np.isnat(dates).argmax()) + 1}; correct it")
        return dates, ()
    return parse_dates([str(text) for text in raw], None, f"{what}, its column of dates")
