"""Windows of a series to train, validate and test a forecaster on, in the units of the training rows.

With the mean and standard deviation of every column over the training rows (sd 1 where it does not move):
    z = (value - mean) / sd                                                                               (1)
Window i of a part is (z[i : i + L], z[i + L : i + L + S]): L steps of context, S steps to forecast.
Validation and test begin L rows early, so that their first forecast is of their first own row; a part with n
rows of its own has
    training: n - L - S + 1 windows,   validation and test: n - S + 1                                     (2)
Without rows of its own, a benchmark is cut at int(0.7 n) for training and int(0.2 n) from the end for test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bayescore.checks import check_count
from bayescore.data.time_series import Series

__all__ = ["Scaler", "SeriesSplit", "Windows", "split_series"]


@dataclass(frozen=True)
class Scaler:
    """Equation (1) and back: means and standard deviations (C,) in float64."""

    mean: Tensor
    sd: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Scaler:
        """From training rows (n, C)."""
        moves = values.amax(0) > values.amin(0)  # the sd of equal numbers is not always 0 after rounding
        return cls(values.mean(0), torch.where(moves, values.std(0, correction=0), 1.0))

    def standardise(self, values: Tensor) -> Tensor:
        """Values (..., C) in units of the training rows, in float32."""
        return ((values.double() - self.mean) / self.sd).float()

    def restore(self, z: Tensor) -> Tensor:
        """Values (..., C) in their own units, in float64."""
        return z.double() * self.sd.to(z.device) + self.mean.to(z.device)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (context, future), (L, C) and (S, C): views of one tensor of rows (n, C), made when asked for."""

    def __init__(self, rows: Tensor, context: int, horizon: int) -> None:
        check_count("context", context)
        check_count("horizon", horizon)
        self.rows, self.context, self.horizon = rows, context, horizon

    def __len__(self) -> int:
        return max(0, len(self.rows) - self.context - self.horizon + 1)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} windows; got index {index}")
        start = index % len(self)
        middle = start + self.context
        return self.rows[start:middle], self.rows[middle : middle + self.horizon]

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The windows of many indices (B,) as two tensors, (B, L, C) and (B, S, C)."""
        views = self.rows.unfold(0, self.context + self.horizon, 1)  # (windows, C, L + S), no copy
        both = views[index].transpose(1, 2)
        return both[:, : self.context], both[:, self.context :]


@dataclass(frozen=True)
class SeriesSplit:
    """Windows of three parts of a series, and the scaler of its training rows."""

    train: Windows
    validation: Windows
    test: Windows
    scaler: Scaler


def split_series(
    series: Series, context: int = 96, horizon: int = 48, rows: tuple[int, int, int] | None = None
) -> SeriesSplit:
    """Training, validation and test windows of a series, as the benchmark protocol cuts them (2).

    Arguments:
        series: without missing values (`regular_series` fills them).
        context, horizon: steps seen and steps forecast, L and S.
        rows: rows from the first on for training, validation and test (0 for none); by default those of the
            benchmark, or 70, 10 and 20 % of all rows.
    """
    check_count("context", context)
    check_count("horizon", horizon)
    n = len(series)
    if rows is None:
        train, test = int(0.7 * n), int(0.2 * n)
        rows = series.rows or (train, n - train - test, test)
    train, validation, test = rows
    if min(rows) < 0 or sum(rows) > n:
        raise ValueError(f"rows must be counts with a sum of at most {n}; got {rows}")
    if train < context + horizon or 0 < validation < horizon or 0 < test < horizon:
        raise ValueError(
            f"{series.name} has too few rows: training needs context + horizon = {context + horizon} and has "
            f"{train}, validation and test need horizon = {horizon} each and have {validation} and {test}; "
            "give more rows, or a shorter context and horizon"
        )
    bad = series.values[: sum(rows)].isnan()
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{series.name} has no value in {series.label(row)}, column {series.columns[column]!r}; "
            "fill what is missing (regular_series)"
        )
    scaler = Scaler.of(series.values[:train])
    z = scaler.standardise(series.values)

    def part(start: int, own: int) -> Windows:
        return Windows(z[max(0, start - context) : start + own] if own else z[:0], context, horizon)

    return SeriesSplit(part(0, train), part(train, validation), part(train + validation, test), scaler)
