"""CSV tables of labelled things: one column of paths or texts, one of labels, and perhaps one of parts.

The columns are found by their names: path, file, image or picture; text, sentence, review, comment or
document; label, class, category, target, sentiment or y; split, part or set. They are separated by commas or,
if the first line has none, by semicolons or tabs.
"""

from __future__ import annotations

import csv
import io
import warnings
from dataclasses import dataclass
from pathlib import Path

from bayescore.checks import unknown_name
from bayescore.reading import read_text

__all__ = [
    "PARTS",
    "PROBLEMS",
    "TABLES",
    "LabelTable",
    "csv_rows",
    "read_label_table",
    "separated_rows",
    "table_kind",
]

#: endings of the files that are read as tables
TABLES = (".csv", ".tsv")

VALUES = {
    "path": ("path", "file", "filename", "image", "picture"),
    "text": ("text", "sentence", "review", "comment", "document"),
}
LABELS = ("label", "class", "category", "target", "sentiment", "y")
SPLITS = ("split", "part", "set")
#: words for the parts of a data set
PARTS = {
    "train": "train", "training": "train", "trainval": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "test": "test",
}  # fmt: skip
#: what becomes of what cannot be used
PROBLEMS = ("skip", "refuse")
NAMED = 5  # rows that a sentence names
FIELD = 10**7  # characters of one cell


@dataclass(frozen=True)
class LabelTable:
    """Paths or texts, labels as positions in `classes`, and parts ("" where the table does not say)."""

    values: list[str]
    labels: list[int]
    classes: list[str]
    part: list[str]


def table_kind(place: Path) -> str | None:
    """ "images" or "text", by the names of a table's columns; None if they say neither."""
    columns = {name.strip().lower() for name in csv_rows(place)[0]}
    for kind, names in (("images", VALUES["path"]), ("text", VALUES["text"])):
        if columns & set(names):
            return kind
    return None


def read_label_table(place: Path, what: str, labelled: bool = True, problems: str = "skip") -> LabelTable:
    """The table in a CSV file.

    Arguments:
        what: "path" or "text".
        labelled: whether there must be labels.
        problems: "skip" leaves out rows with an empty path, text or label and warns; "refuse" raises.
    """
    if problems not in PROBLEMS:
        raise unknown_name("treatment of problems", problems, PROBLEMS)
    header, *rows = csv_rows(place)
    if not rows:
        raise ValueError(f"{place} has no row below its header")
    columns = [name.strip().lower() for name in header]
    value = _column(place, columns, VALUES[what])
    label = _column(place, columns, LABELS) if labelled else None
    split = next((columns.index(name) for name in SPLITS if name in columns), None)
    kept, lacking = [], []
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{place}, line {number}: {len(row)} cells where the header has {len(header)} columns; put "
                'texts with commas or line breaks into quotes ("...")'
            )
        empty = [header[i] for i in (value, label) if i is not None and not row[i].strip()]
        if empty:
            lacking.append(f"line {number}: the column {empty[0]!r} is empty")
        else:
            kept.append((number, row))
    if lacking:
        more = f"; and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        sentence = f"{place}, {'; '.join(lacking[:NAMED])}{more}"
        if problems == "refuse" or not kept:
            raise ValueError(f"{sentence}; fill in what is missing, or remove the rows")
        warnings.warn(
            f"{sentence}; {'this row is' if len(lacking) == 1 else 'these rows are'} left out",
            UserWarning,
            stacklevel=4,
        )
    values = [row[value] for _, row in kept]
    if label is None:
        return LabelTable(values, [], [], [])
    found = [row[label].strip() for _, row in kept]
    classes = sorted(
        set(found), key=lambda word: (not word.isdigit(), int(word) if word.isdigit() else 0, word)
    )
    if len(classes) < 2:
        raise ValueError(f"{place} has one class only, {classes[0]!r}; at least two are needed")
    position = {name: i for i, name in enumerate(classes)}
    part = [""] * len(kept) if split is None else [_part(place, i, row[split]) for i, row in kept]
    return LabelTable(values, [position[word] for word in found], classes, part)


def _part(place: Path, number: int, word: str) -> str:
    name = PARTS.get(word.strip().lower())
    if name is None:
        raise ValueError(f"{place}, line {number}: a part is train, validation or test; got {word!r}")
    return name


def _column(place: Path, columns: list[str], names: tuple[str, ...]) -> int:
    for name in names:
        if name in columns:
            return columns.index(name)
    raise ValueError(
        f"{place} has no column {' or '.join(map(repr, names))}; its columns are {', '.join(columns)[:200]}"
    )


def csv_rows(place: Path) -> list[list[str]]:
    """All rows of a CSV file that are not empty, the names of its columns first."""
    return separated_rows(place)[1]


def separated_rows(place: Path) -> tuple[str, list[list[str]]]:
    """What stands between the columns, by the first line (a comma, a semicolon or a tab), and the rows."""
    if place.is_dir():
        raise ValueError(f"{place} is a folder, and a table is a file (.csv or .tsv)")
    text = read_text(place, "table").removeprefix("\ufeff").lstrip("\r\n")
    first = text.partition("\n")[0]
    separator = next((sign for sign in ",;\t" if sign in first), ",")
    before = csv.field_size_limit(FIELD)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]
    except csv.Error as problem:
        raise ValueError(f"{place} is not readable as CSV: {problem}") from problem
    finally:
        csv.field_size_limit(before)
    if not rows:
        raise ValueError(f"{place} is empty; its first line must name the columns")
    return separator, rows
