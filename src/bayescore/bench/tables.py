"""The tables of a benchmark, for the terminal."""

from __future__ import annotations

import statistics

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from bayescore.bench.rows import Part, Ratio, Row
from bayescore.bench.timing import Spread

__all__ = ["duration", "part_table", "ratio_words"]


def part_table(part: Part) -> Group:
    """One table with its title and notes."""
    table = Table(
        box=SIMPLE_HEAD, title=f"{part.name}: {part.title}", title_justify="left", title_style="bold"
    )
    if part.pairs:
        _fill_pairs(table, part)
    else:
        _fill_race(table, part)
    return Group(table, *(Text(f"  {note}", "dim") for note in part.notes))


def _fill_pairs(table: Table, part: Part) -> None:
    """One line per ratio: what was measured on both sides, the ratio, and its bar."""
    rows = {(row.problem, row.arm): row for row in part.rows}
    first = part.ratios[0]
    table.add_column("problem")
    for name in (first.over, first.under, "ratio"):
        table.add_column(Text(f"{name}\nmedian [range]"), justify="right")
    table.add_column("bar")
    for ratio in part.ratios:
        cells = [_seconds(rows[ratio.problem, arm]) for arm in (ratio.over, ratio.under)]
        table.add_row(Text(ratio.problem), *map(Text, cells), Text(ratio_words(ratio.spread)), _bar(ratio))


def _fill_race(table: Table, part: Part) -> None:
    """One line per method and problem, the fastest first."""
    ratios = {(ratio.problem, ratio.over): ratio for ratio in part.ratios}
    table.add_column("problem")
    table.add_column("method")
    table.add_column(Text("time\nmedian [range]"), justify="right")
    table.add_column("ratio to our\nfastest", justify="right")
    table.add_column("score\ncalls", justify="right")
    table.add_column("gap\nnats", justify="right")
    table.add_column("compile", justify="right")
    table.add_column("setting")
    for problem in dict.fromkeys(row.problem for row in part.rows):
        rows = sorted((row for row in part.rows if row.problem == problem), key=_order)
        for i, row in enumerate(rows):
            ratio = ratios.get((row.problem, row.arm))
            cells = (
                problem if i == 0 else "",
                row.arm,
                _seconds(row),
                ratio_words(ratio.spread) if ratio else "",
                _calls(row),
                f"{statistics.median(row.gaps):.2g}" if row.gaps else "",
                duration(row.compile_seconds) if row.compile_seconds is not None else "",
                row.setting,
            )
            table.add_row(*map(Text, cells), end_section=i == len(rows) - 1)


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


def _bar(ratio: Ratio) -> Text:
    if ratio.bar is None:
        return Text("none", "dim")
    sign = ">=" if ratio.at_least else "<="
    return Text(
        f"{sign} {ratio.bar:g}: {'met' if ratio.holds else 'missed'}", "green" if ratio.holds else "red"
    )


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
