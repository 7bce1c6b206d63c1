"""Tables of a CSV file: cells as texts by column, and the column to predict as classes or values.

A cell is missing if it is empty or one of the words NA, N/A, NaN, null, None and ?, in any case. Where
semicolons or tabs separate the columns, a column of numbers may have decimal commas.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescore.checks import nearest, unknown_name
from bayescore.data.label_tables import PARTS, SPLITS, separated_rows

__all__ = ["TASKS", "Table", "is_missing", "number", "read_table"]

TASKS = ("classes", "values")
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
FEW = 10  # whole numbers that are so few are learned as classes
NAMES = 0.5  # distinct texts per row from which on they are names, not classes or categories
SIGNS = {",": "commas", ";": "semicolons", "\t": "tabs"}
COMMA_NUMBER = re.compile(r"[-+]?\d*,?\d+(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Table:
    """Rows of a table with what is to be predicted.

    columns: texts by the name of the column, without the target.
    y: numbers of classes, or zeros for values, by which rows are divided into parts.
    values: of the target; empty for classes.
    part: the part that a row belongs to, if the table says so.
    notes: what was decided on reading, in sentences.
    source: the file.  rows: the numbers of these rows in it, from 1 on.
    """

    columns: dict[str, list[str]]
    target: str
    classes: tuple[str, ...]
    y: Tensor
    values: NDArray[np.float64]
    part: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = "the table"
    rows: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> Table:
        numbers = rows.tolist()
        columns = {name: [cells[i] for i in numbers] for name, cells in self.columns.items()}
        values = self.values[numbers] if len(self.values) else self.values
        part = tuple(self.part[i] for i in numbers) if self.part else ()
        origin = tuple(self.rows[i] for i in numbers) if self.rows else ()
        return Table(
            columns, self.target, self.classes, self.y[rows], values, part, self.notes, self.source, origin
        )


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def number(cell: str) -> float | None:
    """The finite number in a cell, or None."""
    try:
        found = float(cell)
    except ValueError:
        return None
    return found if math.isfinite(found) and "_" not in cell else None


def read_columns(place: Path) -> dict[str, list[str]]:
    """The cells of a CSV file by the names of its columns."""
    separator, (header, *rows) = separated_rows(place)
    names = [name.strip() for name in header]
    if not rows:
        raise ValueError(f"{place} has no row below its header")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{place} has two columns called {twice!r}; rename one of them")
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{place}, line {line}: {len(row)} cells where the header has {len(header)} columns; put "
                f'texts with {SIGNS[separator]} into quotes ("...")'
            )
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}
    if separator == ",":
        return columns
    return {name: _with_points(cells) for name, cells in columns.items()}


def _with_points(cells: list[str]) -> list[str]:
    """Numbers with decimal commas as numbers with points; other cells as they are."""
    if all(is_missing(cell) or COMMA_NUMBER.fullmatch(cell) for cell in cells):
        return [cell.replace(",", ".") for cell in cells]
    return cells


def looks_like_names(distinct: int, rows: int) -> bool:
    """Whether there are so many different texts that each is a name, and nothing is learned from them."""
    return distinct > max(10, NAMES * rows)


def read_table(path: str | Path, target: str, task: str | None = None) -> Table:
    """Read a table and the column to predict.

    Arguments:
        target: the name of the column to predict; rows where it is missing are left out.
        task: "classes" or "values"; None: texts and at most ten whole numbers are classes, others values.
    """
    place = Path(path)
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    columns = read_columns(place)
    if target not in columns:
        guess = nearest(target, columns)
        hint = f" (did you mean {guess!r}?)" if guess else ""
        raise ValueError(
            f"{place} has no column {target!r}{hint}; its columns are {', '.join(columns)[:200]}"
        )
    if len(columns) == 1:
        raise ValueError(f"{place} has no column but {target!r}; there is nothing to predict it from")
    answers = columns.pop(target)
    kept = [i for i, cell in enumerate(answers) if not is_missing(cell)]
    notes = []
    if len(kept) < len(answers):
        notes.append(f"{len(answers) - len(kept):,} rows without {target!r} are left out")
        columns = {name: [cells[i] for i in kept] for name, cells in columns.items()}
        answers = [answers[i] for i in kept]
    if not answers:
        raise ValueError(f"{place}: every cell of the column {target!r} is missing")
    origin = tuple(i + 1 for i in kept)
    part, columns = _parts(columns)
    if part:
        notes.append("the parts to learn from, to choose by and to test on are those of the table")
    numbers = [number(cell) for cell in answers]
    chosen = task or _task(target, answers, numbers, notes)
    if chosen == "classes":
        words = sorted(set(answers), key=lambda word: (number(word) is None, number(word) or 0.0, word))
        if len(words) < 2:
            raise ValueError(f"{place}: the column {target!r} has one value only, {words[0]!r}")
        if looks_like_names(len(words), len(answers)):
            raise ValueError(
                f"{place}: the column {target!r} has {len(words):,} different answers in {len(answers):,} "
                f"rows, such as {answers[0][:40]!r}, too many to be classes; values are written as 1234.5, "
                "without units and separators of thousands"
            )
        place_of = {word: i for i, word in enumerate(words)}
        y = torch.tensor([place_of[word] for word in answers])
        return Table(columns, target, tuple(words), y, np.empty(0), part, tuple(notes), str(place), origin)
    wrong = next((i for i, found in enumerate(numbers) if found is None), None)
    if wrong is not None:
        raise ValueError(
            f"{place}, row {kept[wrong] + 1}: {answers[wrong][:40]!r} in the column {target!r} is no number; "
            "correct it, or predict classes (task 'classes')"
        )
    values = np.array(numbers, dtype=np.float64)
    if values.min() == values.max():
        raise ValueError(f"{place}: the column {target!r} has one value only, {answers[0]!r}")
    y = torch.zeros(len(values), dtype=torch.long)
    return Table(columns, target, (), y, values, part, tuple(notes), str(place), origin)


def _task(target: str, answers: list[str], numbers: list[float | None], notes: list[str]) -> str:
    if any(found is None for found in numbers):
        return "classes"
    distinct = set(numbers)
    whole = all(found == round(found) for found in numbers if found is not None)
    if len(distinct) == 2 or (whole and len(distinct) <= FEW and len(distinct) < len(answers) / 2):
        notes.append(
            f"{target!r} has {len(distinct)} distinct numbers, learned as classes; "
            "--task values learns them as numbers"
        )
        return "classes"
    return "values"


def _parts(columns: dict[str, list[str]]) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The parts that a column names, if one is called so and holds nothing else, and the other columns."""
    for name in columns:
        if name.lower() in SPLITS and all(cell.lower() in PARTS for cell in columns[name]):
            rest = {other: cells for other, cells in columns.items() if other != name}
            if rest:
                return tuple(PARTS[cell.lower()] for cell in columns[name]), rest
    return (), columns
