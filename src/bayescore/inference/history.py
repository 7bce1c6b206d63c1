"""What a run recorded, as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["History"]


class History:
    """Recorded steps as columns: step, score_calls, seconds, loss and the metrics.

    >>> history = History()
    >>> history.add(step=1, loss=2.0)
    >>> history["loss"]
    tensor([2.], dtype=torch.float64)
    """

    def __init__(self, columns: dict[str, list[float]] | None = None) -> None:
        self.columns: dict[str, list[float]] = {k: list(v) for k, v in (columns or {}).items()}

    def add(self, **row: float) -> None:
        """Append one row; every row has the same columns."""
        if self.columns and set(row) != set(self.columns):
            raise ValueError(f"this history has the columns {', '.join(self.columns)}; got {', '.join(row)}")
        for key, value in row.items():
            self.columns.setdefault(key, []).append(value)

    def truncate(self, rows: int) -> None:
        """Keep the first rows only."""
        for values in self.columns.values():
            del values[rows:]

    def copy(self) -> History:
        return History(self.columns)

    def __getitem__(self, key: str) -> Tensor:
        if key not in self.columns:
            raise KeyError(
                f"nothing called {key!r} was recorded; there is {', '.join(self.columns) or 'nothing'}"
            )
        return torch.tensor(self.columns[key], dtype=torch.float64)

    def __contains__(self, key: object) -> bool:
        return key in self.columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __iter__(self) -> Iterator[dict[str, float]]:
        for i in range(len(self)):
            yield {k: v[i] for k, v in self.columns.items()}

    def to_dict(self) -> dict[str, list[float]]:
        """The columns, ready for `pandas.DataFrame`."""
        return {k: list(v) for k, v in self.columns.items()}

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, History) or list(self.columns) != list(other.columns):
            return False
        pairs = zip(self.columns.values(), other.columns.values(), strict=True)
        return all(_same(mine, theirs) for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not len(self):
            return "History(empty)"
        last = ", ".join(f"{k}={v[-1]:.6g}" for k, v in self.columns.items())
        return f"History({len(self)} rows; last: {last})"


def _same(mine: list[float], theirs: list[float]) -> bool:
    """Equal entry by entry, where NaN equals NaN."""
    return len(mine) == len(theirs) and all(
        a == b or (a != a and b != b) for a, b in zip(mine, theirs, strict=True)
    )
