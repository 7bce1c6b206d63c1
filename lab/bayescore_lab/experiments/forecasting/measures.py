"""What the tables say of a forecast: K draws f_k of the weights, each a forecast, and noise around them.

The predictive density of one number y is a mixture with one variance v for all numbers of a data set:
    p(y) = (1/K) sum_k N(y; f_k, v),   v = argmin of the mean of -log p on validation                     (1)
    NLL = mean of -log p(y), per number, in units of the training rows' standard deviations               (2)
    CRPS = E|Y - y| - E|Y - Y'|/2,   for a mixture of Gaussians in closed form:                           (3)
        E|N(m, s^2)| = m (2 Phi(m/s) - 1) + 2 s phi(m/s) =: A(m, s)
        CRPS = (1/K) sum_k A(y - f_k, sd) - (1/(2 K^2)) sum_{k,l} A(f_k - f_l, sqrt(2) sd)
    coverage at level p = share of |2 F(y) - 1| <= p,   F(y) = (1/K) sum_k Phi((y - f_k)/sd)              (4)
A plain network is K = 1. Where the test rows are noisier than those of validation, (1) is too narrow; the NLL
with the variance that is best on the test windows, which no forecaster could know, is "nll_test_noise".
Calibrated intervals are mean +- q_h sd_total, sd_total^2 = v + Var_k f_k, with q_h the quantile of
|y - mean|/sd_total over the validation windows at step h of the horizon, of the rank
    ceil((n + 1) p)   (split conformal; windows overlap, so n values are fewer than n independent ones)   (5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LEVELS", "Noise", "Sums", "conformal_factors", "crps", "fit_noise", "mixture_nll", "widths"]

LEVELS = (0.5, 0.8, 0.95)
CALIBRATED = 0.8
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH = (math.log(1e-3), math.log(10.0))  # of log sd
_SEARCH_STEPS = 24  # shrink the bracket to 1e-4
_BISECTIONS = 30


def mixture_nll(draws: Tensor, y: Tensor, sd: Tensor | float) -> Tensor:
    """-log p(y) of (1), elementwise; draws are (K, *y.shape), sd broadcasts with y."""
    sd = torch.as_tensor(sd, dtype=y.dtype)
    terms = -0.5 * ((y - draws) / sd).square()
    return math.log(len(draws)) - terms.logsumexp(0) + sd.log() + 0.5 * math.log(2 * math.pi)


def crps(draws: Tensor, y: Tensor, sd: float) -> Tensor:
    """(3), elementwise."""
    K = len(draws)
    found = _mean_distance(y - draws, sd).mean(0)
    for k in range(K):
        weight = 1 / (2 * K**2)
        found = found - weight * _mean_distance(torch.zeros((), dtype=y.dtype), math.sqrt(2) * sd)
        for other in range(k):
            found = found - 2 * weight * _mean_distance(draws[k] - draws[other], math.sqrt(2) * sd)
    return found


def _mean_distance(m: Tensor, sd: float) -> Tensor:
    """A of (3)."""
    z = m / sd
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return m * torch.erf(z / math.sqrt(2)) + 2 * sd * density


def cdf(draws: Tensor, y: Tensor, sd: float) -> Tensor:
    """F of (4)."""
    return torch.special.ndtr((y - draws) / sd).mean(0)


def fit_noise(draws: Tensor, y: Tensor, *, per_step: bool = False) -> Tensor:
    """The best sd of (1), by golden section: one, or (S, 1), one for each step of the horizon (n, S, C)."""
    shape = (y.shape[1], 1) if per_step else ()
    low, high = (torch.full(shape, bound, dtype=y.dtype) for bound in _SEARCH)

    def loss(log_sd: Tensor) -> Tensor:
        values = mixture_nll(draws, y, log_sd.exp())
        return values.mean((0, 2)).unsqueeze(1) if per_step else values.mean()

    for _ in range(_SEARCH_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        below = loss(left) < loss(right)
        low, high = torch.where(below, low, left), torch.where(below, right, high)
    return ((low + high) / 2).exp()


def conformal_factors(draws: Tensor, y: Tensor, sd: float, level: float = CALIBRATED) -> Tensor:
    """q of (5), (S, 1)."""
    ratio = (y - draws.mean(0)).abs() / total_sd(draws, sd)
    rows = ratio.transpose(0, 1).flatten(1)  # (S, n C)
    rank = min(rows.shape[1], math.ceil((rows.shape[1] + 1) * level))
    return rows.kthvalue(rank, dim=1).values.unsqueeze(1)


def total_sd(draws: Tensor, sd: float) -> Tensor:
    """sd_total of (5)."""
    return (draws.var(0, correction=0) + sd**2).sqrt()


def widths(draws: Tensor, sd: float, level: float) -> Tensor:
    """Width of the central interval of the mixture, by bisection of F in (4)."""
    reach = 2 * total_sd(draws, sd) * (2 / (1 - level)) ** 0.5
    centre = draws.mean(0)
    ends = []
    for q in ((1 - level) / 2, (1 + level) / 2):
        low, high = centre - reach, centre + reach
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            above = cdf(draws, middle, sd) >= q
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        ends.append((low + high) / 2)
    return ends[1] - ends[0]


@dataclass(frozen=True)
class Noise:
    """What is fitted on validation windows: (1) for few and for many draws, (1) per step, and (5)."""

    few: float
    many: float
    steps: Tensor
    factors: Tensor

    @classmethod
    def of(cls, draws: Tensor, y: Tensor, few: int) -> Noise:
        """From draws (K, n, S, C) on validation windows y (n, S, C); the first `few` are the paper's."""
        many = float(fit_noise(draws, y))
        return cls(
            float(fit_noise(draws[:few], y)),
            many,
            fit_noise(draws[:few], y, per_step=True),
            conformal_factors(draws, y, many),
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

    def add(self, draws: Tensor, y: Tensor) -> None:
        """Errors, densities and coverage of draws (K, n, S, C) on windows y (n, S, C)."""
        some, noise = draws[: self.few], self.noise
        for ending, chosen, sd in (("", some, noise.few), ("_30", draws, noise.many)):
            error = chosen.mean(0) - y
            self._add(f"mse{ending}", error.square())
            self._add(f"mae{ending}", error.abs())
            self._add(f"nll{ending}", mixture_nll(chosen, y, sd))
        self._add("nll_steps", mixture_nll(some, y, noise.steps))
        self._add("crps", crps(some, y, noise.few))
        inside = (2 * cdf(draws, y, noise.many) - 1).abs()
        for level in LEVELS:
            self._add(f"coverage_{100 * level:.0f}", (inside <= level).to(y.dtype))
        half = noise.factors * total_sd(draws, noise.many)
        self._add("calibrated_80", ((y - draws.mean(0)).abs() <= half).to(y.dtype))
        self._add("calibrated_width_80", 2 * half)

    def add_costly(self, draws: Tensor, y: Tensor) -> None:
        """The measures that cost most, on a part of the windows."""
        self._add("crps_30", crps(draws, y, self.noise.many))
        for level in LEVELS:
            self._add(f"width_{100 * level:.0f}", widths(draws, self.noise.many, level))

    def add_test_noise(self, draws: Tensor, y: Tensor) -> None:
        """The NLL with the variance that is best on these test windows."""
        some = draws[: self.few]
        self._add("nll_test_noise", mixture_nll(some, y, float(fit_noise(some, y))))

    def _add(self, name: str, values: Tensor) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + float(values.double().sum())
        self.counts[name] = self.counts.get(name, 0) + values.numel()

    def means(self) -> dict[str, float]:
        """Every measure by name."""
        return {name: total / self.counts[name] for name, total in self.totals.items()}
