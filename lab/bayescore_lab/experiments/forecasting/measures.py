"""What the tables say of a forecast, from K draws of the weights: errors, densities, intervals.

The density of one number is the paper's, a mixture of Gaussians around the draws with one standard deviation
for all numbers of a data set (metrics/forecasts.py), which makes the validation windows most probable:
    "single"        one noise level: NLL, CRPS, and the share of values in central intervals,
                    |2 F(y) - 1| <= p with F the mixture's distribution function, 2 F(y) - 1 the mean over
                    draws o of erf((y - o)/(sqrt(2) sd))                                                  (1)
    "nll_steps"     one noise level for each step of the horizon
    "calibrated"    what `bs.forecast` does: a noise level for each step and column in units of the window's
                    own scale, and conformal widths (forecast/calibration.py)
    "test_noise"    the noise level that is best on the test windows, which no forecaster could know: where
                    the test rows are noisier than those of validation, "single" is too narrow
All but the last are fitted on validation windows. A plain network is K = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayescore.forecast.calibration import Calibration, calibrate
from bayescore.metrics import fit_noise, mixture_crps, mixture_nll
from bayescore.nn import ValuePrediction
from bayescore.posteriors.likelihoods import Gaussian

__all__ = ["LEVELS", "Forecasts", "Noise", "Sums"]

LEVELS = (0.5, 0.8, 0.95)
CALIBRATED = 0.8


@dataclass(frozen=True)
class Forecasts:
    """Contexts x (n, L, C), what came y (n, S, C), and forecasts under K drawn weights, (K, n, S, C)."""

    x: Tensor
    y: Tensor
    draws: Tensor


@dataclass(frozen=True)
class Noise:
    """What validation windows say: one noise level for few draws and for many, per step, and calibrated."""

    few: float
    many: float
    steps: Tensor
    calibration: Calibration

    @classmethod
    def of(cls, windows: Forecasts, few: int) -> Noise:
        """The first `few` draws are the paper's."""
        some = windows.draws[:few]
        return cls(
            float(fit_noise(some, windows.y)),
            float(fit_noise(windows.draws, windows.y)),
            fit_noise(some, windows.y, by_step=True),
            calibrate("conformal", windows.draws, windows.x, windows.y),
        )


class Sums:
    """The measures of the test windows, added up chunk by chunk.

    Arguments:
        noise: fitted on validation.
        few: how many of the draws are the paper's; all of them are the fair budget, "_30".
    """

    def __init__(self, noise: Noise, few: int) -> None:
        self.noise, self.few = noise, few
        self.totals: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, windows: Forecasts) -> None:
        """Errors, densities and coverage."""
        draws, y, noise = windows.draws, windows.y, self.noise
        some = draws[: self.few]
        for ending, chosen, sd in (("", some, noise.few), ("_30", draws, noise.many)):
            error = chosen.mean(0) - y
            self._add(f"mse{ending}", error.square())
            self._add(f"mae{ending}", error.abs())
            self._add(f"nll{ending}", mixture_nll(chosen, y, sd))
        self._add("nll_steps", mixture_nll(some, y, noise.steps))
        self._add("nll_calibrated", mixture_nll(draws, y, noise.calibration.sd(windows.x)))
        self._add("crps", mixture_crps(some, y, noise.few))
        narrow = math.sqrt(0.5) / noise.many
        inside = torch.zeros_like(y)
        for row in draws:
            inside += ((y - row) * narrow).erf() / len(draws)  # (1)
        inside.abs_()
        for level in LEVELS:
            self._add(f"coverage_{100 * level:.0f}", (inside <= level).to(y.dtype))
        low, high = noise.calibration.interval(CALIBRATED, draws, windows.x)
        self._add("calibrated_80", ((low <= y) & (y <= high)).to(y.dtype))
        self._add("calibrated_width_80", high - low)

    def add_costly(self, windows: Forecasts) -> None:
        """The measures that cost most, on a part of the windows."""
        self._add("crps_30", mixture_crps(windows.draws, windows.y, self.noise.many))
        for level in LEVELS:
            low, high = self._mixture(windows.draws).interval(level)
            self._add(f"width_{100 * level:.0f}", high - low)

    def add_test_noise(self, windows: Forecasts) -> None:
        """The NLL with the noise level that is best on these test windows."""
        some = windows.draws[: self.few]
        self._add("nll_test_noise", mixture_nll(some, windows.y, fit_noise(some, windows.y)))

    def _mixture(self, draws: Tensor) -> ValuePrediction:
        return ValuePrediction(len(draws), draws, Gaussian(self.noise.many))

    def _add(self, name: str, values: Tensor) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + float(values.double().sum())
        self.counts[name] = self.counts.get(name, 0) + values.numel()

    def means(self) -> dict[str, float]:
        """Every measure by name."""
        return {name: total / self.counts[name] for name, total in self.totals.items()}
