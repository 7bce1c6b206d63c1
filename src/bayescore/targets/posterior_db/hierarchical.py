"""Eight schools, centred and non-centred: effects theta of J schools, each measured with a known error.

    mu ~ N(0, 5^2),  tau ~ Cauchy(0, 5) on the half line, not renormalised                     (1)
    theta_j ~ N(mu, tau^2),  y_j ~ N(theta_j, sigma_j^2)                                       (2)
The centred form has u = (theta, mu, log tau); the non-centred one z = (theta - mu)/tau ~ N(0, I) for theta:
    u = (z, mu, log tau),  theta = mu + tau z                                                  (3)
The centred posterior has no mode: at theta = mu its density grows without bound as tau falls to 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from bayescore.rng import Streams
from bayescore.targets.constraints import Positive, Real
from bayescore.targets.model import ConstrainedModel, Values
from bayescore.targets.posterior_db.named_arrays import arrays

__all__ = ["CentredSchools", "NonCentredSchools"]

LOG_2PI = math.log(2 * math.pi)


class _Schools(ConstrainedModel):
    """(1) and the likelihood of (2).

    Arguments:
        y: measured effects (J,).
        sigma: their standard errors (J,).
        propto: drop the constants, as Stan does.
    """

    effects: str

    def __init__(self, y: Tensor, sigma: Tensor, *, propto: bool = False) -> None:
        super().__init__({self.effects: Real(len(y)), "mu": Real(), "tau": Positive()})
        self._y, self._precision = y, sigma.square().reciprocal()
        normals = -0.5 * (2 * len(y) + 1) * LOG_2PI - float(sigma.log().sum()) - math.log(5)
        self._constant = 0.0 if propto else normals - math.log(5 * math.pi)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        y, sigma = arrays(data, {"y": 1, "sigma": 1}, positive=("sigma",))
        return cls(y, sigma, propto=propto)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The effects (..., J), mu and log tau (..., 1)."""
        return x[..., :-2], x[..., -2:-1], x[..., -1:]

    def _shared(self, theta: Tensor, mu: Tensor, s: Tensor) -> Tensor:
        """The likelihood, (1) and the log-Jacobian, (...)."""
        misfit = ((self._y - theta).square() * self._precision).sum(-1)
        scale = (1 + (2 * s).exp() / 25).log()
        return self._constant - 0.5 * misfit + (s - mu.square() / 50 - scale).squeeze(-1)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x), self.score(x)


class CentredSchools(_Schools):
    """Eight schools in (theta, mu, log tau) (2); D = J + 2."""

    name = "eight_schools_centered"
    effects = "theta"

    def log_prob(self, x: Tensor) -> Tensor:
        theta, mu, s = self._parts(x)
        z = (theta - mu) * (-s).exp()
        spread = -0.5 * z.square().sum(-1) - theta.shape[-1] * s.squeeze(-1)
        return self._shared(theta, mu, s) + spread

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        theta, mu, s = self._parts(x)
        gap, precision, variance = theta - mu, (-2 * s).exp(), (2 * s).exp()
        d_theta = (self._y - theta) * self._precision - gap * precision
        d_mu = precision * gap.sum(-1, keepdim=True) - mu / 25
        squares = precision * gap.square().sum(-1, keepdim=True)
        d_tau = squares - theta.shape[-1] + 1 - 2 * variance / (25 + variance)
        return torch.cat([d_theta, d_mu, d_tau], -1)


class NonCentredSchools(_Schools):
    """Eight schools in (z, mu, log tau) (3); D = J + 2. Generated: theta."""

    name = "eight_schools_noncentered"
    effects = "theta_trans"

    def log_prob(self, x: Tensor) -> Tensor:
        z, mu, s = self._parts(x)
        return self._shared(mu + s.exp() * z, mu, s) - 0.5 * z.square().sum(-1)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        z, mu, s = self._parts(x)
        tau = s.exp()
        pull = (self._y - mu - tau * z) * self._precision
        d_mu = pull.sum(-1, keepdim=True) - mu / 25
        variance = tau.square()
        d_tau = tau * (pull * z).sum(-1, keepdim=True) + 1 - 2 * variance / (25 + variance)
        return torch.cat([tau * pull - z, d_mu, d_tau], -1)

    def unconstrain(self, values: Mapping[str, Any]) -> Tensor:
        """As for every model; if theta_trans is missing it is computed from theta."""
        names = ("theta", "mu", "tau")
        if "theta_trans" in values or not all(name in values for name in names):
            return super().unconstrain(values)
        theta, mu, tau = (torch.as_tensor(values[name], dtype=self.dtype) for name in names)
        if theta.shape != (*mu.shape, len(self._y)) or tau.shape != mu.shape:
            raise ValueError(f"theta must have the shape (..., {len(self._y)}); got {tuple(theta.shape)}")
        z = (theta - mu.unsqueeze(-1)) / tau.unsqueeze(-1)
        return super().unconstrain({**values, "theta_trans": z})

    def _generate(self, values: Values, rng: torch.Generator) -> Values:  # noqa: ARG002
        return {"theta": values["mu"].unsqueeze(-1) + values["tau"].unsqueeze(-1) * values["theta_trans"]}
