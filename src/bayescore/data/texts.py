"""Labelled texts: a CSV with a column of texts and one of labels; new ones: the same, or lines of a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bayescore.data.label_tables import TABLES, read_label_table
from bayescore.reading import read_text

__all__ = ["Texts", "new_texts", "read_texts"]


@dataclass(frozen=True)
class Texts:
    """Texts and their labels; for every text "train", "validation", "test", or nothing if none is known."""

    texts: tuple[str, ...]
    y: Tensor
    classes: tuple[str, ...]
    part: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> Texts:
        chosen = rows.tolist()
        part = tuple(self.part[i] for i in chosen) if self.part else ()
        return replace(self, texts=tuple(self.texts[i] for i in chosen), y=self.y[rows], part=part)


def read_texts(place: str | Path, *, problems: str = "skip") -> Texts:
    """The texts and labels of a CSV.

    Arguments:
        problems: "skip" leaves out rows without a text or a label and warns; "refuse" raises.
    """
    table = read_label_table(Path(place), "text", problems=problems)
    part = tuple(table.part) if any(table.part) else ()
    return Texts(tuple(table.values), torch.tensor(table.labels), tuple(table.classes), part)


def new_texts(place: str | Path) -> list[str]:
    """Texts without labels: a column of a CSV, or the lines of another file."""
    place = Path(place)
    if place.suffix.lower() in TABLES:
        return read_label_table(place, "text", labelled=False).values
    found = [line for line in read_text(place, "file of texts").splitlines() if line.strip()]
    if not found:
        raise ValueError(f"{place} holds no text")
    return found
