"""The table of parameters: mean, standard deviation and quantiles under q, and how accurate they are.

The last columns are the shifts of inference/diagnosis.py, (1) to (3): how far the mean, the standard
deviation and the outer quantiles of a parameter move under Pareto-smoothed importance weights, with their
Monte Carlo errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayescore.inference.diagnosis import Shifts, quantile_shifts

__all__ = ["LEVELS", "OUTER", "Marginal", "Marginals", "marginals_of"]

LEVELS = (0.05, 0.5, 0.95)
OUTER = (LEVELS[0], LEVELS[-1])  # the levels whose shifts are told
HEADINGS = ("", "mean", "sd", *(f"{level:.0%}" for level in LEVELS))
ACCURACY = ("mean is off by", "sd is off by", f"{', '.join(f'{level:.0%}' for level in OUTER)} are off by")
MOST_ROWS = 500  # of a printed table


@dataclass(frozen=True)
class Marginal:
    """One parameter under q; the shifts are None where there is no density to weight draws by."""

    name: str
    mean: float
    sd: float
    quantiles: tuple[float, ...]  # at LEVELS
    mean_shift: float | None = None  # in standard deviations
    mean_shift_error: float | None = None
    sd_shift: float | None = None  # logarithm of the ratio
    sd_shift_error: float | None = None
    quantile_shifts: tuple[float, ...] | None = None  # at OUTER, in standard deviations
    quantile_shift_errors: tuple[float, ...] | None = None

    def cells(self) -> list[str]:
        """The row of a printed table."""
        row = [self.name, *(_short(v, self.sd) for v in (self.mean, self.sd, *self.quantiles))]
        if self.mean_shift is not None and self.sd_shift is not None:
            row.append(f"{self.mean_shift:+z.2f} ± {self.mean_shift_error:.2f} sd")
            row.append(f"{math.expm1(self.sd_shift):+z.0%} ± {self.sd_shift_error:.0%}")
        if self.quantile_shifts is not None and self.quantile_shift_errors is not None:
            moved = ", ".join(f"{shift:+z.2f}" for shift in self.quantile_shifts)
            row.append(f"{moved} ± {max(self.quantile_shift_errors):.2f} sd")
        return row


@dataclass(frozen=True)
class Marginals(Sequence[Marginal]):
    """All parameters; printed, a table."""

    rows: tuple[Marginal, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | slice) -> Marginal | tuple[Marginal, ...]:  # type: ignore[override]
        return self.rows[index]

    def __iter__(self) -> Iterator[Marginal]:
        return iter(self.rows)

    @property
    def headings(self) -> tuple[str, ...]:
        weighted = bool(self.rows) and self.rows[0].mean_shift is not None
        return (*HEADINGS, *ACCURACY) if weighted else HEADINGS

    def printed(self) -> tuple[list[list[str]], str | None]:
        """The rows of a printed table, and what to say if there are more than it shows."""
        rows = [row.cells() for row in self.rows[:MOST_ROWS]]
        more = f"the first {MOST_ROWS} of {len(self.rows):,}; fit.marginals() has all"
        return rows, more if len(self.rows) > MOST_ROWS else None

    def __str__(self) -> str:
        rows, more = self.printed()
        table = [list(self.headings), *rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table
        ]
        return "\n".join([*lines, *([more] if more else [])])


def marginals_of(named: dict[str, Tensor], weights: Tensor | None) -> Marginals:
    """The table of columns (n,) by name, with importance weights (n,) that sum to one if there are any."""
    x = torch.stack(list(named.values()), -1).detach().cpu().double()  # (n, K)
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    quantiles = torch.stack([torch.quantile(column, levels) for column in x.unbind(-1)]).tolist()
    parts: list[list[Any]] = []  # the columns of the table after the quantiles
    if weights is not None and bool(x.isfinite().all()):
        w = weights.detach().cpu().double()
        shifts = Shifts.of(x, w)
        parts = [part.tolist() for part in (shifts.mean, shifts.mean_error, shifts.sd, shifts.sd_error)]
        parts += [[tuple(row) for row in part.tolist()] for part in quantile_shifts(x, w, OUTER)]
    rows = []
    for i, name in enumerate(named):
        moved = (part[i] for part in parts)
        rows.append(Marginal(name, float(x[:, i].mean()), float(x[:, i].std()), tuple(quantiles[i]), *moved))
    return Marginals(tuple(rows))


def _short(value: float, sd: float) -> str:
    """A number, rounded to three digits of its standard deviation."""
    if not math.isfinite(value) or not 1e-6 < sd < 1e6 or abs(value) > 1e6 * sd:
        return f"{value:.4g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(sd)))}f}"
