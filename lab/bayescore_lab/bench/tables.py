"""The tables of a benchmark, and everything it measured as a file.

A file is JSON with everything, CSV with one line per repeat, or the tables in Markdown.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayescore_lab.bench.choices import ANCHOR, BASELINES
from bayescore_lab.bench.results import Part, Ratio, Row
from bayescore_lab.bench.timing import PHASES, interval_or_range
from bayescore_lab.engine.drawing import write_file
from bayescore_lab.engine.statistics import Interval
from bayescore_lab.engine.tables import Table
from bayescore_lab.engine.wording import short_time, time_interval_text

__all__ = ["COLUMNS", "part_table", "write_results"]

COLUMNS = (
    "part",
    "problem",
    "arm",
    "setting",
    "repeat",
    "seconds",
    "score_calls",
    "gap",
    "compile_seconds",
    "note",
)
LEFT = ("problem", "method", "bar", "setting", "what")  # columns of words
#: columns of derived numbers, and how they are written
SHOWN = {
    "ns_per_weight": ("ns per\nweight", "{:.3g}"),
    "noise_ns": ("noise, ns\nper number", "{:.3g}"),
    "gigabytes_per_second": ("GB/s", "{:.1f}"),
    "share_of_copy": ("share of\ncopy_", "{:.0%}"),
    "seconds_per_sample": ("seconds per\nsample", "{:.3g}"),
    "overhead_per_sample": ("of it beyond\nforward and draw", "{:.3g}"),
}


def part_table(part: Part) -> Table:
    """A part as one table with its title and notes."""
    kinds = {"pairs": _pair_cells, "goal": _goal_cells, "profile": _profile_cells, "curve": _curve_cells}
    columns, rows = kinds[part.kind](part)
    note = "; ".join(note.rstrip(";") for note in part.notes)
    return Table(f"{part.name}: {part.title}", columns, rows, note=note, left=LEFT)


def write_results(path: Path, found: dict[str, Any], parts: Sequence[Part]) -> None:
    """Write a record and the parts it was made of, whole or not at all, as the ending of the file says."""
    if path.suffix == ".md":
        text = "\n".join([_origin(found), *(part_table(part).markdown() for part in parts)])
    else:
        text = json.dumps(found, indent=1) + "\n" if path.suffix == ".json" else _csv(found)
    write_file(path, text)


def _origin(found: dict[str, Any]) -> str:
    """Where the numbers come from, in a sentence."""
    machine = found["machine"]
    libraries = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"`bayescore bench {found['benchmark']}` at commit {found['commit']} on {machine['processor']} "
        f"({machine['cores']} cores): {libraries}.\n"
    )


def _csv(found: dict[str, Any]) -> str:
    rows = [row for part in found["parts"] for row in part["rows"]]
    more = dict.fromkeys(key for row in rows for key in (*row["phases"], *row["numbers"]))
    columns, lines = (*COLUMNS, *more), []
    for part in found["parts"]:
        for row in part["rows"]:
            shared = {"part": part["name"], **{k: row[k] for k in COLUMNS if k in row and k != "seconds"}}
            shared |= row["numbers"]
            shared.pop("score_calls")
            for i in range(max(1, len(row["seconds"]))):
                lists = {"seconds": row["seconds"], "score_calls": row["score_calls"], "gap": row["gaps"]}
                lists |= row["phases"]
                each = {name: values[i] for name, values in lists.items() if i < len(values)}
                line = {**shared, "repeat": i if row["seconds"] else "", **each}
                lines.append([line.get(column) for column in columns])
    return Table("", columns, lines).csv()


def _pair_cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """One line per ratio: what was measured on both sides, the ratio, and its bar."""
    rows = {(row.problem, row.arm): row for row in part.rows}
    first = part.ratios[0]
    measured = [f"{name}\nmedian [range]" for name in (first.over, first.under, "ratio")]
    lines = []
    for ratio in part.ratios:
        times = [_seconds(rows[ratio.problem, arm]) for arm in (ratio.over, ratio.under)]
        lines.append([ratio.problem, *times, _ratio_text(ratio.spread), _bar(ratio)])
    return ["problem", *measured, "bar"], lines


def _goal_cells(part: Part) -> tuple[list[str], list[list[str]]]:
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
                    _ratio_text(ratio.spread) if ratio else "",
                    _calls(row),
                    f"{statistics.median(row.gaps):.2g}" if row.gaps else "",
                    short_time(row.compile_seconds) if row.compile_seconds is not None else "",
                    row.setting,
                ]
            )
    return [*columns, "score\ncalls", "gap\nnats", "compile", "setting"], lines


def _order(row: Row) -> tuple[int, float]:
    """First those at the goal by their time, then the others by their gap, then those that did not run."""
    if row.spread is not None:
        return 0, row.spread.estimate
    return (1, statistics.median(row.gaps)) if row.gaps else (2, 0.0)


def _calls(row: Row) -> str:
    counted = [calls for calls in row.score_calls if calls is not None]
    return f"{statistics.median(counted):,.0f}" if counted else ""


def _seconds(row: Row) -> str:
    if row.spread is None:
        return row.note
    if len(row.seconds) == 1:
        return short_time(row.spread.estimate)
    return f"{short_time(row.spread.estimate)} [{short_time(row.spread.low)}, {short_time(row.spread.high)}]"


def _bar(ratio: Ratio) -> str:
    if ratio.bar is None:
        return "none"
    sign = ">=" if ratio.at_least else "<="
    return f"{sign} {ratio.bar:g}: {'met' if ratio.holds else 'missed'}"


def _ratio_text(found: Interval) -> str:
    """A ratio with its range where there is one."""
    median = f"{found.estimate:.3g}"
    return median if found.low == found.high else f"{median} [{found.low:.3g}, {found.high:.3g}]"


def _profile_cells(part: Part) -> tuple[list[str], list[list[str]]]:
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
                _step_time(row),
                *(_baseline_ratio(ratios.get((row.arm, base)), row.arm == base) for base in bases),
                *(_phase(row, name) for name in PHASES),
                f"{peak / 1e9:.2f}" if peak else "",
                memory,
                _first_step(row),
            ]
        )
    return columns, lines


def _step_time(row: Row) -> str:
    text = time_interval_text(interval_or_range([s for s in row.seconds if s is not None]))
    return f"{text} ({row.note})" if row.note else text


def _baseline_ratio(ratio: Ratio | None, itself: bool) -> str:
    if ratio is None:
        return "1" if itself else ""
    found = interval_or_range(ratio.values)
    text = f"{found.estimate:.2f}"
    if found.low != found.high:
        text += f" [{found.low:.2f}, {found.high:.2f}]"
    if ratio.bar is None:
        return text
    return f"{text} <= {ratio.bar:g}: {'met' if ratio.holds else 'missed'}"


def _phase(row: Row, name: str) -> str:
    values = row.phases.get(name, ())
    if not values or max(values) == 0:
        return ""
    median = statistics.median(values)
    return f"{median:.3g} s" if median >= 1 else f"{1e3 * median:.3g} ms"


def _first_step(row: Row) -> str:
    found = [row.numbers.get(f"{state}_latency_seconds") for state in ("cold", "warm")]
    return ", ".join(f"{value:.1f} s" for value in found if value is not None)


def _curve_cells(part: Part) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, in the order of measurement."""
    shown = [key for key in SHOWN if any(key in row.numbers for row in part.rows)]
    columns = ["problem", "what", "time\nmedian [interval]", *(SHOWN[key][0] for key in shown)]
    lines, last = [], ""
    for row in part.rows:
        times = [s for s in row.seconds if s is not None]
        time = time_interval_text(interval_or_range(times)) if times else row.note
        numbers = [SHOWN[key][1].format(row.numbers[key]) if key in row.numbers else "" for key in shown]
        lines.append([row.problem if row.problem != last else "", row.arm, time, *numbers])
        last = row.problem
    return columns, lines
