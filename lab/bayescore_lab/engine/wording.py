"""Numbers and intervals as rounded text; nothing else in the engine rounds."""

from __future__ import annotations

import math

from bayescore_lab.engine.statistics import Interval

__all__ = ["counted", "duration", "interval_text", "number", "short_time", "time_interval_text"]


def number(value: float, digits: int = 4) -> str:
    """`value` with `digits` significant digits; whole numbers are written out."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) < 1e9 and value == int(value):
        return f"{int(value):,}" if abs(value) >= 1e5 else str(int(value))
    if 10**digits <= abs(value) < 1e9:
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.0f}"
    return f"{value:.{digits}g}"


def interval_text(interval: Interval, digits: int = 4) -> str:
    """The estimate with its interval, or alone if the interval is not known."""
    if not interval.known:
        return number(interval.estimate, digits)
    return (
        f"{number(interval.estimate, digits)} "
        f"[{number(interval.low, digits)}, {number(interval.high, digits)}]"
    )


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 run", "20 runs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def short_time(seconds: float) -> str:
    """A measured time with two digits: 0.45 ms, 12 ms, 1.3 s."""
    value, unit = (1e3 * seconds, "ms") if seconds < 0.1 else (seconds, "s")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def time_interval_text(interval: Interval) -> str:
    """A measured time and its interval in one unit."""
    unit, scale = ("s", 1.0) if interval.estimate >= 1 else ("ms", 1e3)
    low, middle, high = (f"{scale * value:.3g}" for value in (interval.low, interval.estimate, interval.high))
    return f"{middle} {unit}" if low == high else f"{middle} {unit} [{low}, {high}]"
