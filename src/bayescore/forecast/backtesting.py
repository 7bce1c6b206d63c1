"""How good forecasts would have been: errors, and how often the intervals held, over rolling origins.

Errors, NLL and CRPS are per value, in units of the training rows (1 is the standard deviation of a column in
training), so that columns of different units count alike; the mean absolute errors by column are in the
columns' own units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayescore.data.windows import Scaler
from bayescore.forecast.calibration import Calibration
from bayescore.metrics.forecasts import mixture_crps, mixture_nll

__all__ = ["Backtest", "score"]


@dataclass(frozen=True)
class Backtest:
    """The scores of forecasts from many origins.

    origins: how many.  mse, mae, nll, crps: per value, in units of the training rows.  coverage, width: by
    level, the share of values inside the intervals and their mean width.  coverage_by_step: by level, (H,).
    mse_by_step: (H,).  mae_by_column: in the columns' own units.
    """

    origins: int
    mse: float
    mae: float
    nll: float
    crps: float
    coverage: dict[float, float]
    width: dict[float, float]
    coverage_by_step: dict[float, Tensor] = field(repr=False)
    mse_by_step: Tensor = field(repr=False)
    mae_by_column: dict[str, float] = field(repr=False)

    def metrics(self) -> dict[str, float]:
        """All numbers by name."""
        found = {"mse": self.mse, "mae": self.mae, "nll": self.nll, "crps": self.crps}
        for level in self.coverage:
            found[f"coverage_{100 * level:g}"] = self.coverage[level]
            found[f"width_{100 * level:g}"] = self.width[level]
        return found


def score(
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    calibration: Calibration,
    scaler: Scaler,
    columns: tuple[str, ...],
    levels: tuple[float, ...],
) -> Backtest:
    """The scores of batches of (forecasts (S, n, H, C), contexts (n, L, C), what came (n, H, C))."""
    count, totals = 0, {name: torch.zeros(()) for name in ("square", "distance", "nll", "crps")}
    inside, widths = dict.fromkeys(levels, torch.zeros(())), dict.fromkeys(levels, 0.0)
    for outputs, x, y in batches:
        error = outputs.mean(0) - y
        sd = calibration.sd(x)
        found = {"square": error.square(), "distance": error.abs()}
        found |= {"nll": mixture_nll(outputs, y, sd), "crps": mixture_crps(outputs, y, sd)}
        for name, value in found.items():
            totals[name] = totals[name] + value.double().sum(0).cpu()  # (H, C)
        for level in levels:
            low, high = calibration.interval(level, outputs, x)
            inside[level] = inside[level] + ((y >= low) & (y <= high)).double().sum(0).cpu()
            widths[level] += float((high - low).double().mean((1, 2)).sum())
        count += len(y)
    if not count:
        raise ValueError("a backtest needs at least one window")
    mean = {name: value / count for name, value in totals.items()}
    own = (mean["distance"].mean(0) * scaler.sd).tolist()
    return Backtest(
        count,
        float(mean["square"].mean()),
        float(mean["distance"].mean()),
        float(mean["nll"].mean()),
        float(mean["crps"].mean()),
        {level: float(inside[level].mean()) / count for level in levels},
        {level: widths[level] / count for level in levels},
        {level: inside[level].mean(1) / count for level in levels},
        mean["square"].mean(1),
        dict(zip(columns, own, strict=True)),
    )
