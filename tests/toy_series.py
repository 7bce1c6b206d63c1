"""A small series with a day's rhythm, and a forecaster that learns it in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayescore.data import Series
from bayescore.forecast import Forecaster

__all__ = ["hourly", "small", "write_csv"]

SMALL = {"dynamic_dim": 8, "hidden": 8, "blocks": 1}


def hourly(rows: int = 400, seed: int = 0, dates: bool = True) -> Series:
    """Two series with a period of 12 rows: a wave around 50 and a slower one around -3, with noise."""
    t = torch.arange(rows, dtype=torch.float64)
    noise = torch.randn(rows, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    load = 50 + 10 * torch.sin(2 * torch.pi * t / 12) + noise[:, 0]
    price = -3 + 0.5 * torch.cos(2 * torch.pi * t / 12) + 0.1 * noise[:, 1]
    start = np.datetime64("2024-01-01T00:00:00", "s")
    when = start + np.arange(rows) * np.timedelta64(1, "h") if dates else None
    return Series(torch.stack([load, price], 1), ("load", "price"), when, "the example")


def small(**changes: Any) -> Forecaster:
    options: dict[str, Any] = {
        "horizon": 6,
        "context": 24,
        "network": SMALL,
        "epochs": 3,
        "options": {"lr": 5e-3},
    }
    return Forecaster(**{**options, **changes})


def write_csv(path: Path, series: Series) -> Path:
    lines = [",".join(["date", *series.columns])]
    for row in range(len(series)):
        cells = ["" if v != v else f"{v:.4f}" for v in series.values[row].tolist()]
        lines.append(",".join([series.date(row), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path
