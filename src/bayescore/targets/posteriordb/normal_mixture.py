"""Two normal components on the line: low_dim_gauss_mix.

    mu_1 < mu_2,  mu_i ~ N(0, 2^2),  theta ~ Beta(5, 5),
    sigma_i ~ N(0, 2^2) on the half line, not renormalised,
    y ~ theta N(mu_1, sigma_1^2) + (1 - theta) N(mu_2, sigma_2^2)                                         (1)
    u = (mu_1, log(mu_2 - mu_1), log sigma_1, log sigma_2, logit theta)
The log odds of component 1 are a quadratic in y, so that with Y = (1, y, y^2), N x 3,
    odds = Y c,  r = s(odds),  and the score needs only the sums Y^T r                                    (2)
    log p(y | u) = sum_n log p_2(y_n) + log(1 + exp odds_n)                                               (3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescore.rng import Streams
from bayescore.targets.constraints import Interval, Ordered, Positive
from bayescore.targets.model import ConstrainedModel

__all__ = ["NormalMixture"]


class NormalMixture(ConstrainedModel):
    """A mixture of two normals (1); D = 5.

    Arguments:
        y: observations (N,).
        propto: drop the constants of the priors, as Stan does.
    """

    name = "low_dim_gauss_mix"

    def __init__(self, y: Tensor, *, propto: bool = False) -> None:
        super().__init__({"mu": Ordered(2), "sigma": Positive(2), "theta": Interval(0, 1)})
        self._powers = torch.stack([torch.ones_like(y), y, y.square()], -1)  # Y, (N, 3)
        self._sums = self._powers.sum(0)  # (3,)
        priors = -4 * (math.log(2) + 0.5 * math.log(2 * math.pi)) + math.log(630)
        self._constant = -0.5 * len(y) * math.log(2 * math.pi) + (0.0 if propto else priors)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        return cls(torch.as_tensor(data["y"], dtype=torch.float64), propto=propto)

    def _components(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mu (..., 2), 1/sigma^2 (..., 2), and the log weighted densities as quadratics in y, (..., 2, 3)."""
        mu = torch.stack([x[..., 0], x[..., 0] + x[..., 1].exp()], -1)
        log_sigma = x[..., 2:4]
        precision = (-2 * log_sigma).exp()
        logit = x[..., 4:]
        constant = logsigmoid(torch.cat([logit, -logit], -1)) - log_sigma - 0.5 * precision * mu.square()
        return mu, precision, torch.stack([constant, precision * mu, -0.5 * precision], -1)

    def log_prob(self, x: Tensor) -> Tensor:
        mu, precision, quadratics = self._components(x)
        odds = (quadratics[..., 0, :] - quadratics[..., 1, :]) @ self._powers.T  # (..., N)
        data = quadratics[..., 1, :] @ self._sums - logsigmoid(-odds).sum(-1)  # (3)
        beta = 5 * (logsigmoid(x[..., 4]) + logsigmoid(-x[..., 4]))  # the log-Jacobian is one of the five
        normals = -(mu.square().sum(-1) + precision.reciprocal().sum(-1)) / 8
        return self._constant + data + normals + beta + x[..., 1:4].sum(-1)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        mu, precision, quadratics = self._components(x)
        odds = (quadratics[..., 0, :] - quadratics[..., 1, :]) @ self._powers.T
        mine = odds.sigmoid() @ self._powers  # (..., 3): sums of r, r y, r y^2  (2)
        sums = torch.stack([mine, self._sums - mine], -2)  # (..., 2, 3)
        count, first, second = sums.unbind(-1)
        d_mu = precision * (first - mu * count) - mu / 4
        spread = second - 2 * mu * first + mu.square() * count
        d_sigma = precision * spread - count + 1 - precision.reciprocal() / 4
        theta = x[..., 4].sigmoid()
        d_theta = count[..., 0] - self._sums[0] * theta + 5 * (1 - 2 * theta)
        d_gap = 1 + (mu[..., 1] - mu[..., 0]) * d_mu[..., 1]
        parts = [d_mu.sum(-1), d_gap, d_sigma[..., 0], d_sigma[..., 1], d_theta]
        return torch.stack(parts, -1)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x), self.score(x)
