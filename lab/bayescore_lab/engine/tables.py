"""Tables: rounded on the terminal and in Markdown, with every digit in CSV.

`arm_table` and `significance_table` are the two that most experiments use: every arm next to the paper's
number, and significance by pairs.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from bayescore_lab.engine.declare import PaperValue
from bayescore_lab.engine.records import Metric, Records, encode
from bayescore_lab.engine.statistics import Interval, holm, median_interval, paired_t, wilcoxon
from bayescore_lab.engine.wording import interval_text, number

__all__ = ["Cell", "Table", "arm_table", "significance_table"]

#: an interval is one cell in text and four columns in CSV; None is an empty cell
Cell = str | int | float | Interval | None

_STYLES = {"met": "green", "missed": "red"}  # by the last word of a cell


@dataclass(frozen=True)
class Table:
    """Columns and rows with a title; `name` distinguishes the files of several tables.

    On the terminal a column of strings is aligned to the left and every other to the right, unless `left`
    names the columns that are aligned to the left. A row with an empty first cell belongs to the row above.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    name: str = ""
    note: str = ""
    left: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {place} of the table {self.title!r} has {len(row)} cells "
                    f"for {len(self.columns)} columns"
                )

    @property
    def stem(self) -> str:
        """The name of its files, without the ending."""
        return f"table-{self.name}" if self.name else "table"

    @property
    def cells(self) -> list[list[str]]:
        """The rows as rounded text."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def terminal(self) -> RichTable:
        """The table for a rich console."""
        table = RichTable(
            title=Text(self.title), caption=Text(self.note), box=SIMPLE_HEAD, title_justify="left"
        )
        for place, column in enumerate(self.columns):
            numeric = all(not isinstance(row[place], str) for row in self.rows)
            right = numeric if self.left is None else column not in self.left
            table.add_column(Text(column), justify="right" if right else "left")
        rows = self.cells
        grouped = any(row and not row[0] for row in rows)
        for place, row in enumerate(rows):
            last = place + 1 == len(rows) or bool(rows[place + 1][0])
            styled = (Text(cell, _STYLES.get(cell.rpartition(" ")[-1], "")) for cell in row)
            table.add_row(*styled, end_section=grouped and last)
        return table

    def markdown(self) -> str:
        """The table in Markdown, its title in bold above and its note below."""
        lines = [f"**{_escape(self.title)}**", ""] if self.title else []
        lines.append("| " + " | ".join(map(_escape, self.columns)) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(map(_escape, row)) + " |" for row in self.cells]
        if self.note:
            lines += ["", _escape(self.note)]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The table in CSV: an interval takes the columns NAME, NAME low, NAME high, NAME n."""
        wide = [any(isinstance(row[i], Interval) for row in self.rows) for i in range(len(self.columns))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header: list[str] = []
        for column, is_wide in zip(self.columns, wide, strict=True):
            header += [column, f"{column} low", f"{column} high", f"{column} n"] if is_wide else [column]
        writer.writerow(header)
        for row in self.rows:
            line: list[object] = []
            for cell, is_wide in zip(row, wide, strict=True):
                line += _wide(cell) if is_wide else [_plain(cell)]
            writer.writerow(line)
        return text.getvalue()


def arm_table(
    records: Records,
    metrics: Mapping[str, Metric],
    paper: Sequence[PaperValue] = (),
    *,
    title: str,
    name: str = "",
    note: str = "",
    interval: Callable[[Sequence[float]], Interval] = median_interval,
) -> Table:
    """One row per arm: the number of runs and, by metric (heading -> metric), our value and the paper's.

    A run without the metric counts as +inf; a cell is empty if no run of the arm has the metric. There is a
    column of the paper's values for each metric that it prints. Where runs of the grid are missing, the
    number of runs is "3 of 10", and the note names the arms without any.
    """
    printed = {(value.arm, value.metric): value for value in paper}
    known = {value.metric for value in paper}
    columns = ["arm", "runs"]
    for heading, metric in metrics.items():
        columns += [heading, f"{heading}, paper"] if metric in known else [heading]
    rows: list[list[Cell]] = []
    for arm, chosen in records.arms.items():
        whole = len(chosen) + len(chosen.missing)
        row: list[Cell] = [arm, f"{len(chosen)} of {whole}" if chosen.missing else len(chosen)]
        for metric in metrics.values():
            has = callable(metric) or any(metric in record.metrics for record in chosen)
            row.append(interval(list(chosen.values(metric, math.inf))) if has else None)
            if metric in known:
                value = printed.get((arm, str(metric)))
                row.append(number(value.value) if value else None)
        rows.append(row)
    places = ", ".join(dict.fromkeys(value.location for value in paper))
    parts = [note]
    parts += [f"No run yet: {', '.join(records.empty_arms)}."] if records.empty_arms else []
    parts += [f"Paper: {places}."] if places else []
    return Table(title=title, columns=columns, rows=rows, name=name, note=" ".join(parts).strip())


def significance_table(
    records: Records,
    metric: Metric,
    compared: Sequence[tuple[str, str]],
    *,
    title: str,
    name: str = "significance",
) -> Table:
    """For pairs of arms, the paired t-test (the paper's) and Wilcoxon's, each also with Holm's correction."""
    sides = [records.pairs(metric, one, other) for one, other in compared]
    t_tests = [paired_t(*side) for side in sides]
    ranks = [wilcoxon(*side) for side in sides]
    rows: list[list[Cell]] = [
        [f"{one} against {other}", t.n, t.p, t_holm, w.p, w_holm]
        for (one, other), t, t_holm, w, w_holm in zip(
            compared, t_tests, holm([t.p for t in t_tests]), ranks, holm([w.p for w in ranks]), strict=True
        )
    ]
    columns = ["arms", "pairs", "p, paired t", "p, paired t, Holm", "p, Wilcoxon", "p, Wilcoxon, Holm"]
    return Table(title=title, columns=columns, rows=rows, name=name, note="Two-sided; uncorrected and Holm.")


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Interval):
        return interval_text(cell)
    return cell if isinstance(cell, str) else number(cell)


def _plain(cell: Cell) -> object:
    if cell is None:
        return ""
    return cell.estimate if isinstance(cell, Interval) else encode(cell)


def _wide(cell: Cell) -> list[object]:
    if isinstance(cell, Interval):
        return [encode(value) for value in (cell.estimate, cell.low, cell.high, cell.n)]
    return [_plain(cell), "", "", ""]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
