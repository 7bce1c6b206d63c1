"""Dates of a series: reading them, and the frequency at which they follow each other.

A frequency is a fixed number of seconds, of calendar months (on one day of the month, or on the last), or of
business days (Monday to Friday). Positions count its steps from the first date on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayescore.checks import check_count, unknown_name

__all__ = ["Dates", "Frequency", "is_date", "parse_dates"]

Dates = NDArray[np.datetime64]

_YEAR_FIRST = re.compile(
    r"(\d{4})(?:[-/.](\d{1,2})(?:[-/.](\d{1,2})"
    r"(?:[ T](?=\d{1,2}:|\d{2}(?:Z|[+-]|$))(\d{1,2})(?::(\d{2})(?::(\d{2})(?:\.\d{1,9})?)?)?"
    r"(?:Z|([+-]\d{2}):?(\d{2})?)?)?)?)?"
)
_UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_DAY = 86_400
_KINDS = ("seconds", "months", "business days")


def parse_dates(texts: list[str], date_format: str | None, what: str) -> tuple[Dates, tuple[str, ...]]:
    """Dates in seconds, and what was done to them, in sentences.

    Texts are such as 2020-01-31, 2020/1/31 7:30, 2020-01-31T07:30:00+01:00, 2020-01-31T07, 2020-01 or 2020.
    An offset from UTC is left out, so that dates stay as they are written. Where it changes, by daylight
    saving time, dates without a fixed time of day become those of UTC, on which rows are equally spaced.

    Arguments:
        date_format: of other texts, as Python's `strptime` takes it, such as "%d.%m.%Y".
        what: whose dates they are, for errors.
    """
    local = np.empty(len(texts), dtype="datetime64[s]")
    offsets = np.zeros(len(texts), dtype="timedelta64[s]")
    for row, text in enumerate(texts):
        try:
            date, offset = _parse(text.strip(), date_format)
        except (ValueError, OverflowError):
            wanted = f"a date like {date_format!r}" if date_format else "a date with the year first"
            raise ValueError(
                f"{what}: row {row + 1} has {text[:40]!r} where {wanted} is needed; correct it, or say how "
                "dates are written (date_format='%d.%m.%Y', in a shell --date-format %d.%m.%Y)"
            ) from None
        local[row], offsets[row] = np.datetime64(date, "s"), np.timedelta64(offset, "s")
    times = local - local.astype("datetime64[D]")
    if len(np.unique(offsets)) < 2 or len(np.unique(times)) == 1:
        return local, ()
    return local - offsets, ("dates are those of UTC, because their offsets from it change",)


def is_date(text: str) -> bool:
    """Whether a text is a date with the year first."""
    try:
        _parse(text.strip(), None)
    except (ValueError, OverflowError):
        return False
    return True


def _parse(text: str, date_format: str | None) -> tuple[datetime, timedelta]:
    """A date, and its offset from UTC, which is 0 if none is given."""
    if date_format is not None:
        found = datetime.strptime(text, date_format)
        return found.replace(tzinfo=None), found.utcoffset() or timedelta(0)
    match = _YEAR_FIRST.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, hours, minutes = (
        int(part) if part else None for part in match.groups()
    )
    sign = -1 if (match[7] or "").startswith("-") else 1
    offset = timedelta(hours=hours or 0, minutes=sign * (minutes or 0))
    month = 1 if month is None else month
    day = 1 if day is None else day
    return datetime(year or 0, month, day, hour or 0, minute or 0, second or 0), offset


@dataclass(frozen=True)
class Frequency:
    """How far apart the dates of a series are.

    kind: "seconds", "months" or "business days".  count: how many of them make a step.
    """

    kind: str
    count: int

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise unknown_name("kind of frequency", self.kind, _KINDS)
        check_count("count of a frequency", self.count)

    @classmethod
    def of(cls, dates: Dates) -> Frequency:
        """The most common step of sorted dates without duplicates, also in months or business days."""
        if len(dates) < 3:
            raise ValueError(f"a frequency can be seen from three dates on; got {len(dates)}")
        months, days = dates.astype("datetime64[M]"), dates.astype("datetime64[D]")
        last = (months + 1).astype("datetime64[D]") - 1 == days
        one_day = len(np.unique(days - months.astype("datetime64[D]"))) == 1
        one_time = len(np.unique(dates - days)) == 1
        if one_time and (one_day or bool(last.all())) and len(np.unique(months)) == len(dates):
            return cls("months", _most_common(np.diff(months)))
        step = _most_common(np.diff(dates))
        if (
            step == _DAY
            and one_time
            and bool(np.is_busday(days).all())
            and int(np.diff(dates).max().astype(int)) > _DAY
        ):
            return cls("business days", 1)
        return cls("seconds", step)

    def positions(self, dates: Dates) -> NDArray[np.float64]:
        """Steps from the first date to every date; not whole for a date between two steps."""
        if self.kind == "months":
            months = dates.astype("datetime64[M]")
            return (months - months[0]).astype(np.int64) / self.count
        if self.kind == "business days":
            days = dates.astype("datetime64[D]")
            return np.busday_count(days[0], days).astype(np.float64)
        return (dates - dates[0]).astype(np.int64) / self.count

    def steps_from(self, date: np.datetime64, count: int, month_end: bool = False) -> Dates:
        """The `count` dates that follow `date`; months end on their last day if `month_end`."""
        steps = np.arange(1, count + 1)
        day = date.astype("datetime64[D]")
        if self.kind == "business days":
            return np.busday_offset(day, steps, roll="forward").astype("datetime64[s]") + (date - day)
        if self.kind == "months":
            month = date.astype("datetime64[M]")
            months = month + steps * self.count
            ends = (months + 1).astype("datetime64[D]") - 1
            same_day = months.astype("datetime64[D]") + (day - month.astype("datetime64[D]"))
            found = ends if month_end else np.minimum(same_day, ends)
            return found.astype("datetime64[s]") + (date - day)
        return date + steps * np.timedelta64(self.count, "s")

    def __str__(self) -> str:
        if self.kind == "months" and self.count % 12 == 0:
            return _number(self.count // 12, "year")
        if self.kind != "seconds":
            return _number(self.count, self.kind.removesuffix("s"))
        unit, size = next((unit, size) for unit, size in _UNITS if self.count % size == 0)
        return _number(self.count // size, unit)


def _number(count: int, unit: str) -> str:
    return f"1 {unit}" if count == 1 else f"{count} {unit}s"


def _most_common(steps: NDArray[Any]) -> int:
    values, counts = np.unique(steps.astype(np.int64), return_counts=True)
    return int(values[counts.argmax()])
