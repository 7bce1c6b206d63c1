"""What a forecaster predicts: mean, quantiles and intervals of every step and column, in their own units."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from bayescore.data.dates import Dates
from bayescore.data.time_series import date_text
from bayescore.data.windows import Scaler
from bayescore.forecast.calibration import Calibration

__all__ = ["Forecast"]

LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Forecast:
    """The next steps of a series.

    columns: names of the series.  dates: (H,), or None if the series has none.  draws: forecasts under drawn
    weights, (draws, H, C): what is not known about the network, without the noise of the series themselves,
    which is in the quantiles.
    """

    columns: tuple[str, ...]
    dates: Dates | None = field(repr=False)
    draws: Tensor = field(repr=False)
    history: Tensor = field(repr=False)  # (L, C), the rows that the network saw
    history_dates: Dates | None = field(repr=False)
    _outputs: Tensor = field(
        repr=False
    )  # (draws, 1, H, C), in units of the training rows, as (1, L, C) below
    _context: Tensor = field(repr=False)
    _scaler: Scaler = field(repr=False)
    _calibration: Calibration = field(repr=False)

    @property
    def mean(self) -> Tensor:
        """The forecast, (H, C)."""
        return self.draws.mean(0)

    def quantile(self, q: float) -> Tensor:
        """What the series stay below with probability q, (H, C)."""
        return self._restore(self._calibration.quantile(q, self._outputs, self._context))

    def interval(self, level: float = 0.8) -> tuple[Tensor, Tensor]:
        """The central interval with probability `level`: its two ends, (H, C) each."""
        low, high = self._calibration.interval(level, self._outputs, self._context)
        return self._restore(low), self._restore(high)

    def rows(self, levels: tuple[float, ...] = LEVELS) -> list[dict[str, str | int | float]]:
        """One row per step and column, as a table shows them: step, date, column, mean and the intervals."""
        ends = {f"{100 * level:g} %": self.interval(level) for level in levels}
        mean = self.mean
        found: list[dict[str, str | int | float]] = []
        for step in range(len(mean)):
            date = {} if self.dates is None else {"date": date_text(self.dates[step])}
            for i, column in enumerate(self.columns):
                row: dict[str, str | int | float] = {"step": step + 1, **date, "column": column}
                row["mean"] = float(mean[step, i])
                for name, (low, high) in ends.items():
                    row |= {f"{name} low": float(low[step, i]), f"{name} high": float(high[step, i])}
                found.append(row)
        return found

    def _restore(self, z: Tensor) -> Tensor:
        return self._scaler.restore(z[0]).cpu()
