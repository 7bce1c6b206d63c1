"""Intervals that hold: the noise around a network's forecasts, learned from validation windows.

A window has the context x (L, C), forecasts o_1, ..., o_S (H, C) under S draws of the weights, and what came,
y (H, C), all in units of the training rows. With m and b the mean and standard deviation of the draws, and
k (H, C), a noise for every step ahead and column:
    s = sqrt(var x + 1e-5)^g per column     the scale of the window: errors may grow with what is forecast (1)
    u = sqrt(b^2 + (k s)^2)                 how far off the forecast is expected to be                     (2)
The power g is 0, 1/4, 1/2, 3/4 or 1, whichever makes the errors |y - m| of the validation windows most
probable under Laplace distributions of the widths c s, with c (H, C) their mean of |y - m|/s; k makes y most
probable.
"noise": the forecast is the mixture of N(o_s, (k s)^2).
"conformal": besides, the intervals of the levels p are made to hold on n validation windows,
    m - Q_p u  to  m + Q_p u,   Q_p (H, C) = the ceil(p (n + 1))-th smallest of |y - m|/u                  (3)
Between the levels of the table Q is interpolated, and beyond the last it grows like a normal distribution's.
"single": the benchmark's way, a mixture of N(o_s, k^2) with one number k and s = 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayescore.checks import unknown_name
from bayescore.metrics.forecasts import LEAST_NOISE, fit_noise
from bayescore.posteriors.likelihoods import Likelihood, normal_cdf
from bayescore.posteriors.prediction import ValuePrediction

__all__ = ["CALIBRATIONS", "Calibration", "calibrate", "window_scale"]

CALIBRATIONS = ("conformal", "noise", "single")
LEVELS = (0.01, *(round(0.05 * i, 2) for i in range(1, 20)), 0.98, 0.99)
POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SCALE_GUARD = 1e-5  # in (1)


def window_scale(x: Tensor, power: float) -> Tensor:
    """(1), (n, 1, C), of contexts (n, L, C)."""
    return (x.var(1, keepdim=True, correction=0) + SCALE_GUARD) ** (power / 2)


@dataclass(frozen=True)
class Calibration:
    """What validation windows say about the errors of the forecasts.

    noise: k, (H, C), or (1, 1) for "single".  power: g.  table: Q of (3) at LEVELS, (levels, H, C), for
    "conformal".
    """

    kind: str
    noise: Tensor
    power: float = 0.0
    table: Tensor | None = None

    def sd(self, x: Tensor) -> Tensor:
        """The noise k s around the forecasts, (n, H, C) or broadcasting to it, of contexts (n, L, C)."""
        return self.noise.to(x) * window_scale(x, self.power)

    def quantile(self, q: float, outputs: Tensor, x: Tensor) -> Tensor:
        """The q-quantiles (n, H, C) of forecasts (S, n, H, C)."""
        return self._quantiles((q,), outputs, x)[0]

    def interval(self, level: float, outputs: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The central intervals with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie in (0, 1); got {level}")
        low, high = self._quantiles(((1 - level) / 2, (1 + level) / 2), outputs, x)
        return low, high

    def _quantiles(self, probabilities: Sequence[float], outputs: Tensor, x: Tensor) -> list[Tensor]:
        for q in probabilities:
            if not 0 < q < 1:
                raise ValueError(f"q must lie in (0, 1); got {q}")
        if self.table is None:
            mixture = ValuePrediction(len(outputs), outputs, _Noise(self.sd(x)))
            return [mixture.quantile(q) for q in probabilities]
        centre = outputs.mean(0)
        u = _expected_error(outputs, centre, self.sd(x))
        signs = [1.0 if q >= 0.5 else -1.0 for q in probabilities]
        reaches = [self._reach(abs(2 * q - 1)).to(outputs) for q in probabilities]
        return [centre + sign * reach * u for sign, reach in zip(signs, reaches, strict=True)]  # (3)

    def _reach(self, level: float) -> Tensor:
        """Q of (3) at any level, (H, C)."""
        assert self.table is not None
        if level >= LEVELS[-1]:
            ends = torch.tensor([(1 + level) / 2, (1 + LEVELS[-1]) / 2], dtype=torch.float64)
            further, last = torch.special.ndtri(ends).tolist()
            return self.table[-1] * (further / last)
        above = next(i for i, known in enumerate(LEVELS) if known > level)
        low, low_level = (
            (torch.zeros_like(self.table[0]), 0.0)
            if not above
            else (self.table[above - 1], LEVELS[above - 1])
        )
        share = (level - low_level) / (LEVELS[above] - low_level)
        return low + share * (self.table[above] - low)

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds of it."""
        found = {"noise": self.noise, "power": torch.tensor(self.power)}
        return found | ({} if self.table is None else {"table": self.table})

    @classmethod
    def rebuild(cls, kind: str, tensors: Mapping[str, Tensor], horizon: int, columns: int) -> Calibration:
        """From what `tensors` returned; raises unless it fits the sizes of a forecast."""
        _check_kind(kind)
        size = (1, 1) if kind == "single" else (horizon, columns)
        shapes: dict[str, Any] = {"noise": size, "power": ()}
        if kind == "conformal":
            shapes["table"] = (len(LEVELS), horizon, columns)
        for name, shape in shapes.items():
            value = tensors[name]
            if tuple(value.shape) != shape or not bool(value.isfinite().all()) or bool((value < 0).any()):
                raise ValueError(f"its calibration {name} is not of the shape {shape} with positive numbers")
        return cls(kind, tensors["noise"], float(tensors["power"]), tensors.get("table"))


def calibrate(kind: str, outputs: Tensor, x: Tensor, y: Tensor) -> Calibration:
    """The calibration of forecasts (S, n, H, C) from contexts (n, L, C), when y (n, H, C) is what came."""
    _check_kind(kind)
    if kind == "single":
        return Calibration(kind, fit_noise(outputs, y).cpu())
    centre = outputs.mean(0)
    distance = (y - centre).abs()
    power = min(POWERS, key=lambda g: _laplace_nll(distance, window_scale(x, g)))
    noise = fit_noise(outputs, y, by_step=True, by_column=True, scale=window_scale(x, power)).cpu()
    plain = Calibration("noise", noise, power)
    if kind == "noise":
        return plain
    u = _expected_error(outputs, centre, plain.sd(x))
    scores = (distance / u).sort(0).values  # (n, H, C)
    count = len(scores)
    ranks = [min(count, math.ceil(level * (count + 1))) - 1 for level in LEVELS]
    return Calibration(kind, noise, power, scores[ranks].cpu())  # (3)


def _expected_error(outputs: Tensor, centre: Tensor, noise: Tensor) -> Tensor:
    """u of (2), from draws (S, n, H, C), their mean and the noise k s."""
    total = torch.zeros_like(centre)
    for row in outputs:  # several times faster than torch's variance along a first dimension
        total += (row - centre).square()
    return (total / len(outputs) + noise.square()).sqrt()


def _laplace_nll(distance: Tensor, scale: Tensor) -> float:
    """Mean negative log-likelihood of distances (n, H, C) under widths c s, without constants."""
    width = (distance / scale).mean(0).clamp_min(LEAST_NOISE)  # (H, C)
    return float(((width * scale).log() + distance / (width * scale)).mean())


def _check_kind(kind: str) -> None:
    if kind not in CALIBRATIONS:
        raise unknown_name("calibration", kind, CALIBRATIONS)


class _Noise(Likelihood):
    """Gaussian noise of a known standard deviation, one for every value."""

    name = "known noise"

    def __init__(self, sd: Tensor) -> None:
        super().__init__()
        self.sd = sd

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        return self.sd.square().expand_as(outputs)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        return normal_cdf((y - outputs) / self.sd)
