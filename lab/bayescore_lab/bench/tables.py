"""The tables of a benchmark, for the terminal and in Markdown."""

from __future__ import annotations

import statistics

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from bayescore_lab.bench.curve_cells import curve_cells
from bayescore_lab.bench.profile_cells import profile_cells
from bayescore_lab.bench.rows import Part, Ratio, Row
from bayescore_lab.bench.timing import Spread
from bayescore_lab.engine.tables import Table as MarkdownTable

__all__ = ["duration", "part_markdown", "part_table", "ratio_words"]

_STYLES = {"met": "green", "missed": "red"}  # by the last word of a cell


def part_table(part: Part) -> Group:
    """One table with its title and notes, for the terminal."""
    table = Table(
        box=SIMPLE_HEAD, title=f"{part.name}: {part.title}", title_justify="left", title_style="bold"
    )
    columns, rows = _cells(part)
    for column in columns:
        words = column in ("problem", "method", "bar", "setting", "what")
        table.add_column(Text(column), justify="left" if words else "right")
    for i, row in enumerate(rows):
        ends = part.kind in ("race", "curve") and (i + 1 == len(rows) or bool(rows[i + 1][0]))
        table.add_row(
            *(Text(cell, _STYLES.get(cell.rpartition(" ")[-1], "")) for cell in row), end_section=ends
        )
    return Group(table, *(Text(f"  {note}", "dim") for note in part.notes))


def part_markdown(part: Part) -> str:
    """The same in Markdown."""
    columns, rows = _cells(part)
    note = "; ".join(note.rstrip(";") for note in part.notes)
    return MarkdownTable(f"{part.name}: {part.title}", columns, rows, note=note).markdown()


def _cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """Columns and rows as people read them."""
    kinds = {"pairs": _pair_cells, "race": _race_cells, "profile": profile_cells, "curve": curve_cells}
    return kinds[part.kind](part)


def _pair_cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """One line per ratio: what was measured on both sides, the ratio, and its bar."""
    rows = {(row.problem, row.arm): row for row in part.rows}
    first = part.ratios[0]
    measured = [f"{name}\nmedian [range]" for name in (first.over, first.under, "ratio")]
    lines = []
    for ratio in part.ratios:
        times = [_seconds(rows[ratio.problem, arm]) for arm in (ratio.over, ratio.under)]
        lines.append([ratio.problem, *times, ratio_words(ratio.spread), _bar(ratio)])
    return ["problem", *measured, "bar"], lines


def _race_cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """One line per method and problem, the fastest first."""
    columns = ["problem", "method", "time\nmedian [range]", "ratio to our\nfastest"]
    ratios = {(ratio.problem, ratio.over): ratio for ratio in part.ratios}
    lines = []
    for problem in dict.fromkeys(row.problem for row in part.rows):
        rows = sorted((row for row in part.rows if row.problem == problem), key=_order)
        for i, row in enumerate(rows):
            ratio = ratios.get((row.problem, row.arm))
            lines.append(
                [
                    problem if i == 0 else "",
                    row.arm,
                    _seconds(row),
                    ratio_words(ratio.spread) if ratio else "",
                    _calls(row),
                    f"{statistics.median(row.gaps):.2g}" if row.gaps else "",
                    duration(row.compile_seconds) if row.compile_seconds is not None else "",
                    row.setting,
                ]
            )
    return [*columns, "score\ncalls", "gap\nnats", "compile", "setting"], lines


def _order(row: Row) -> tuple[int, float]:
    """First those at the goal by their time, then the others by their gap, then those that did not run."""
    if row.spread is not None:
        return 0, row.spread.median
    return (1, statistics.median(row.gaps)) if row.gaps else (2, 0.0)


def _calls(row: Row) -> str:
    counted = [calls for calls in row.score_calls if calls is not None]
    return f"{statistics.median(counted):,.0f}" if counted else ""


def _seconds(row: Row) -> str:
    if row.spread is None:
        return row.note
    if len(row.seconds) == 1:
        return duration(row.spread.median)
    return f"{duration(row.spread.median)} [{duration(row.spread.low)}, {duration(row.spread.high)}]"


def _bar(ratio: Ratio) -> str:
    if ratio.bar is None:
        return "none"
    sign = ">=" if ratio.at_least else "<="
    return f"{sign} {ratio.bar:g}: {'met' if ratio.holds else 'missed'}"


def ratio_words(found: Spread) -> str:
    """A ratio for people, with its range where there is one."""
    median = f"{found.median:.3g}"
    return median if found.low == found.high else f"{median} [{found.low:.3g}, {found.high:.3g}]"


def duration(seconds: float) -> str:
    """Seconds for people: 0.45 ms, 12 ms, 1.3 s."""
    return f"{_short(1e3 * seconds)} ms" if seconds < 0.1 else f"{_short(seconds)} s"


def _short(value: float) -> str:
    """Two significant digits, never an exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
