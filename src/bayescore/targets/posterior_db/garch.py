"""A time series whose variance depends on its past: garch11.

    y_t ~ N(mu, h_t),  h_1 = sigma1^2 given,  h_t = alpha0 + alpha1 (y_{t-1} - mu)^2 + beta1 h_{t-1}      (1)
    alpha0 > 0,  0 < alpha1 < 1,  0 < beta1 < 1 - alpha1,  flat priors                                   (2)
    u = (mu, log alpha0, logit alpha1, logit(beta1 / (1 - alpha1)))                                      (3)
With c_1 = h_1 and c_t the first two terms of h_t, h_t = sum_s beta1^s c_{t-s}; the sum is computed by
doubling:
    c <- c + beta1^k shift(c, k),  k = 1, 2, 4, ... < T                                                  (4)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from bayescore.targets.constraints import Interval, Positive, Real
from bayescore.targets.model import ConstrainedModel, Values
from bayescore.targets.posterior_db.named_arrays import arrays

__all__ = ["Garch"]


class Garch(ConstrainedModel):
    """GARCH(1, 1) (1)-(2); D = 4.

    Arguments:
        y: the series (T,).
        sigma1: the standard deviation of its first value.
        propto: drop the constant of the likelihood, as Stan does.
    """

    name = "garch11"

    def __init__(self, y: Tensor, sigma1: float, *, propto: bool = False) -> None:
        unit = Interval(0, 1)
        super().__init__({"mu": Real(), "alpha0": Positive(), "alpha1": unit, "beta1": unit})
        self._y, self._first = y, torch.tensor([sigma1**2], dtype=torch.float64)
        self._constant = 0.0 if propto else -0.5 * len(y) * math.log(2 * math.pi)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        y, sigma1 = arrays(data, {"y": 1, "sigma1": 0}, positive=("sigma1",))
        return cls(y, float(sigma1), propto=propto)

    def _constrain(self, x: Tensor) -> Values:
        values = super()._constrain(x)
        return {**values, "beta1": (1 - values["alpha1"]) * values["beta1"]}  # (2)

    def log_jacobian(self, x: Tensor) -> Tensor:
        return super().log_jacobian(x) + logsigmoid(-x[..., 2])

    def unconstrain(self, values: Mapping[str, Any]) -> Tensor:
        if "alpha1" not in values or "beta1" not in values:
            return super().unconstrain(values)
        alpha1, beta1 = (torch.as_tensor(values[name], dtype=self.dtype) for name in ("alpha1", "beta1"))
        return super().unconstrain({**values, "beta1": beta1 / (1 - alpha1)})

    def log_prob(self, x: Tensor) -> Tensor:
        values = self._constrain(x)
        mu, alpha0, alpha1, beta1 = (value.unsqueeze(-1) for value in values.values())  # (..., 1) each
        squares = (self._y - mu).square()  # (..., T)
        first = self._first.expand_as(mu)
        h = torch.cat([first, alpha0 + alpha1 * squares[..., :-1]], -1)
        power, lag = beta1, 1
        while lag < len(self._y):  # (4)
            h = h + power * pad(h, (lag, 0))[..., :-lag]
            power, lag = power.square(), 2 * lag
        return self._constant - 0.5 * (h.log() + squares / h).sum(-1) + self.log_jacobian(x)
