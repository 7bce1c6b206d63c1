"""Tables: on the terminal and in Markdown rounded for people, in CSV with every digit."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from bayescore_lab.engine.encoding import encode
from bayescore_lab.engine.statistics import Interval
from bayescore_lab.engine.wording import interval_text, number

__all__ = ["Cell", "Table"]

#: an interval is one cell for people and three columns in CSV; None is an empty cell
Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class Table:
    """Columns and rows with a title; `name` tells the files of several tables apart."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    name: str = ""
    note: str = ""

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
        """The rows as people read them."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def terminal(self) -> RichTable:
        """The table for a rich console."""
        table = RichTable(
            title=Text(self.title), caption=Text(self.note), box=SIMPLE_HEAD, title_justify="left"
        )
        for place, column in enumerate(self.columns):
            numeric = all(not isinstance(row[place], str) for row in self.rows)
            table.add_column(Text(column), justify="right" if numeric else "left")
        for row in self.cells:
            table.add_row(*map(Text, row))
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
