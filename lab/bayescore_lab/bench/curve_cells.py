"""The cells of a curve: one line per size and arm, with what was derived from its time."""

from __future__ import annotations

from bayescore_lab.bench.profile_cells import spread_words
from bayescore_lab.bench.rows import Part
from bayescore_lab.bench.timing import median_interval

__all__ = ["curve_cells"]

#: columns of derived numbers, and how they are written
SHOWN = {
    "ns_per_weight": ("ns per\nweight", "{:.3g}"),
    "noise_ns": ("noise, ns\nper number", "{:.3g}"),
    "gigabytes_per_second": ("GB/s", "{:.1f}"),
    "share_of_copy": ("share of\ncopy_", "{:.0%}"),
    "seconds_per_sample": ("seconds per\nsample", "{:.3g}"),
    "overhead_per_sample": ("of it beyond\nforward and draw", "{:.3g}"),
}


def curve_cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, in the order of measurement."""
    shown = [key for key in SHOWN if any(key in row.numbers for row in part.rows)]
    columns = ["problem", "what", "time\nmedian [interval]", *(SHOWN[key][0] for key in shown)]
    lines, last = [], ""
    for row in part.rows:
        times = [s for s in row.seconds if s is not None]
        time = spread_words(median_interval(times)) if times else row.note
        numbers = [SHOWN[key][1].format(row.numbers[key]) if key in row.numbers else "" for key in shown]
        lines.append([row.problem if row.problem != last else "", row.arm, time, *numbers])
        last = row.problem
    return columns, lines
