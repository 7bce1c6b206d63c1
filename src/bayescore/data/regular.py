"""A user's series on a regular grid: sorted, one row per step, short gaps filled; or the reason why not.

Rows that are out of order are sorted. Missing rows and missing values are filled on a straight line between
their neighbours if at most `max_gap` are missing in a row; a longer gap is refused, because a line over it
would be an invention. What was done is said in notes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from bayescore.checks import check_count
from bayescore.data.dates import Frequency
from bayescore.data.time_series import NOWHERE, Series

__all__ = ["RegularSeries", "regular_series"]

FEW = 3  # columns whose missing values are noted one by one
MOST_GAPS = 0.1  # share of the steps: with more, the dates have no common frequency


@dataclass(frozen=True)
class RegularSeries:
    """A series without gaps.

    frequency: of its dates, or None for an array without dates.  month_end: whether its months end on their
    last day.  notes: what was done to the series, in sentences.
    """

    series: Series
    frequency: Frequency | None
    month_end: bool
    notes: tuple[str, ...]


def regular_series(series: Series, max_gap: int = 24, frequency: Frequency | None = None) -> RegularSeries:
    """The series on a regular grid.

    Arguments:
        max_gap: the most missing rows or values in a row that are filled.
        frequency: of the dates, if it is known; by default the most common step between them.
    """
    check_count("max_gap", max_gap, least=0)
    if not len(series):
        raise ValueError(f"{series.name} has no rows")
    notes = [*series.notes]
    month_end = False
    if series.dates is not None:
        series = _sorted(series, notes)
        assert series.dates is not None
        if len(series) < 3 and frequency is None:
            raise ValueError(
                f"{series.name} has {len(series)} rows; a frequency can be seen from three rows on"
            )
        if frequency is None:
            frequency = Frequency.of(series.dates)
        elif len(series) > 2 and float(np.median(np.diff(frequency.positions(series.dates)))) != 1:
            found = Frequency.of(series.dates)
            raise ValueError(
                f"{series.name} has rows {found} apart where rows {frequency} apart are needed, as in "
                f"{series.label(0)} and {series.label(1)}; give rows of that frequency"
            )
        days = series.dates.astype("datetime64[D]")
        ends = (series.dates.astype("datetime64[M]") + 1).astype("datetime64[D]") - 1
        month_end = frequency.kind == "months" and bool((days == ends).all())
        series = _without_date_gaps(series, frequency, month_end, max_gap, notes)
    else:
        frequency = None
    series = _filled(series, max_gap, notes)
    spread = series.values.max(0).values - series.values.min(0).values
    still = [name for name, width in zip(series.columns, spread.tolist(), strict=True) if width == 0]
    if still:
        notes.append(f"{_names(still)} never changed: the forecast there does not either")
    return RegularSeries(series, frequency, month_end, tuple(notes))


def _sorted(series: Series, notes: list[str]) -> Series:
    dates = series.dates
    assert dates is not None
    order = np.argsort(dates, kind="stable")
    same = np.flatnonzero(dates[order][1:] == dates[order][:-1])
    if len(same):
        first, second = order[same[0]], order[same[0] + 1]
        raise ValueError(
            f"{series.name}: rows {first + 1} and {second + 1} have the same date, "
            f"{series.date(int(first))}; keep one of them, or give every series a column of its own"
        )
    back = np.flatnonzero(np.diff(dates) < np.timedelta64(0, "s"))
    if not len(back):
        return series
    notes.append(f"rows were sorted by date ({series.label(int(back[0]) + 1)} was before the row above it)")
    return series.take(order)


def _without_date_gaps(
    series: Series, frequency: Frequency, month_end: bool, max_gap: int, notes: list[str]
) -> Series:
    """The series with a row of NaN for every missing date."""
    dates = series.dates
    assert dates is not None
    where = frequency.positions(dates)
    steps = np.diff(where)
    between = np.flatnonzero((np.abs(steps - np.round(steps)) > 1e-6) | (steps < 0.5))
    total = round(float(where[-1])) + 1
    inserted = total - len(series)
    longest = int(np.argmax(steps)) if len(steps) else 0
    gaps = np.flatnonzero(steps > 1.5)
    if len(between) or len(gaps) > max(1, MOST_GAPS * len(steps)):
        odd = int(between[0] if len(between) else gaps[0])
        raise ValueError(
            f"{series.name} has no common frequency: rows are most often {frequency} apart, and "
            f"{series.label(odd + 1)} is not {frequency} after {series.label(odd)}; give one row per step, "
            "with empty cells where nothing is known"
        )
    gap = round(float(steps[longest])) - 1 if inserted else 0
    if gap > max_gap:
        raise ValueError(
            f"{series.name}: {gap} rows are missing between {series.label(longest)} and "
            f"{series.label(longest + 1)}, and at most {max_gap} are filled in; give the rows, cut the "
            "series there, or allow longer gaps (max_gap=, in a shell --max-gap)"
        )
    if not inserted:
        return series
    index = torch.from_numpy(np.round(where).astype(np.int64))
    values = torch.full((total, len(series.columns)), torch.nan, dtype=torch.float64)
    values[index] = series.values
    grid = np.concatenate([dates[:1], frequency.steps_from(dates[0], total - 1, month_end)])
    origin = np.full(total, NOWHERE)
    origin[index.numpy()] = series.numbers
    notes.append(
        f"{_counted(inserted, 'missing row')} filled in, the first after {series.label(int(gaps[0]))}"
    )
    return replace(series, values=values, dates=grid, rows=None, origin=origin)


def _filled(series: Series, max_gap: int, notes: list[str]) -> Series:
    """Missing values on a straight line between their neighbours; at the ends, the nearest value."""
    holes = series.values.isnan().numpy()
    if not holes.any():
        return series
    values = series.values.numpy().copy()
    rows, given = np.arange(len(values)), series.numbers != NOWHERE
    filled: list[tuple[str, int, str]] = []
    for column in np.flatnonzero(holes.any(0)):
        missing = holes[:, column]
        name = series.columns[column]
        if missing.all():
            raise ValueError(f"{series.name}: column {name!r} has no values; leave it out")
        start, length = _longest(missing)
        if length > max_gap:
            raise ValueError(
                f"{series.name}: column {name!r} has no values from {series.label(start)} on for {length} "
                f"rows, and at most {max_gap} are filled in; leave the column out, cut the series there, or "
                "allow longer gaps (max_gap=, in a shell --max-gap)"
            )
        values[missing, column] = np.interp(rows[missing], rows[~missing], values[~missing, column])
        if (cells := np.flatnonzero(missing & given)).size:
            filled.append((name, cells.size, series.label(int(cells[0]))))
    if len(filled) > FEW:
        total, (name, _, label) = sum(count for _, count, _ in filled), filled[0]
        notes.append(
            f"{_counted(total, 'missing value')} filled in, in {len(filled)} columns, the first of them "
            f"{name!r} from {label} on"
        )
    else:
        notes += [
            f"{_counted(count, 'missing value', f' of {name!r}')} filled in, the first in {label}"
            for name, count, label in filled
        ]
    return replace(series, values=torch.from_numpy(values))


def _counted(count: int, noun: str, more: str = "") -> str:
    """Such as "1 missing row was" and "3 missing rows were"."""
    return f"1 {noun}{more} was" if count == 1 else f"{count:,} {noun}s{more} were"


def _longest(missing: NDArray[np.bool_]) -> tuple[int, int]:
    """Where the longest run of True begins, and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(np.int8), [0]])))
    starts, stops = edges[::2], edges[1::2]
    longest = int(np.argmax(stops - starts))
    return int(starts[longest]), int(stops[longest] - starts[longest])


def _names(names: list[str]) -> str:
    return f"column {names[0]!r}" if len(names) == 1 else f"columns {', '.join(map(repr, names))}"
