"""The cells of a profile: one line per method, its time, its ratios, where the time goes, its memory."""

from __future__ import annotations

import statistics

from bayescore_lab.bench.phases import PHASES
from bayescore_lab.bench.rows import Part, Ratio, Row
from bayescore_lab.bench.step_methods import ANCHOR, BASELINES
from bayescore_lab.bench.timing import Spread, median_interval

__all__ = ["profile_cells"]


def profile_cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """Columns and rows; a method that did not run has its reason in the place of its time."""
    bases = [b for b in BASELINES if any(ratio.under == b for ratio in part.ratios)]
    ratios = {(ratio.over, ratio.under): ratio for ratio in part.ratios}
    anchor = next((row.numbers.get("peak") for row in part.rows if row.arm == ANCHOR), None)
    columns = ["method", "step\nmedian [interval]", *(f"ratio to\n{base}" for base in bases)]
    columns += [*PHASES, "peak\nGB", f"memory\n/ {ANCHOR}", "first step +\ncold, warm"]
    lines = []
    for row in part.rows:
        if not row.seconds:
            lines.append([row.arm, row.note, *[""] * (len(columns) - 2)])
            continue
        peak = row.numbers.get("peak")
        memory = f"{peak / anchor:.2f}" if peak and anchor else ""
        lines.append(
            [
                row.arm,
                _time(row),
                *(_ratio(ratios.get((row.arm, base)), row.arm == base) for base in bases),
                *(_phase(row, name) for name in PHASES),
                f"{peak / 1e9:.2f}" if peak else "",
                memory,
                _latency(row),
            ]
        )
    return columns, lines


def _time(row: Row) -> str:
    words = spread_words(median_interval([s for s in row.seconds if s is not None]))
    return f"{words} ({row.note})" if row.note else words


def spread_words(found: Spread) -> str:
    """A duration and its interval in one unit."""
    unit, scale = ("s", 1.0) if found.median >= 1 else ("ms", 1e3)
    low, middle, high = (f"{scale * value:.3g}" for value in (found.low, found.median, found.high))
    return f"{middle} {unit}" if low == high else f"{middle} {unit} [{low}, {high}]"


def _ratio(ratio: Ratio | None, itself: bool) -> str:
    if ratio is None:
        return "1" if itself else ""
    found = median_interval(ratio.values)
    words = f"{found.median:.2f}"
    if found.low != found.high:
        words += f" [{found.low:.2f}, {found.high:.2f}]"
    if ratio.bar is None:
        return words
    return f"{words} <= {ratio.bar:g}: {'met' if ratio.holds else 'missed'}"


def _phase(row: Row, name: str) -> str:
    values = row.phases.get(name, ())
    if not values or max(values) == 0:
        return ""
    median = statistics.median(values)
    return f"{median:.3g} s" if median >= 1 else f"{1e3 * median:.3g} ms"


def _latency(row: Row) -> str:
    found = [row.numbers.get(f"{state}_latency_seconds") for state in ("cold", "warm")]
    return ", ".join(f"{value:.1f} s" for value in found if value is not None)
