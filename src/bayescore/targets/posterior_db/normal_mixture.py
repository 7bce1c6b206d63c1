"""Two normal components on the line: low_dim_gauss_mix.

    mu_1 < mu_2,  mu_i ~ N(0, 2^2),  theta ~ Beta(5, 5),
    sigma_i ~ N(0, 2^2) on the half line, not renormalised,
    y ~ theta N(mu_1, sigma_1^2) + (1 - theta) N(mu_2, sigma_2^2)                                         (1)
    u = (mu_1, log(mu_2 - mu_1), log sigma_1, log sigma_2, logit theta)
With z_k = (y - mu_k) / sigma_k, l_k = log w_k - log sigma_k - z_k^2 / 2 and r = softmax(l) for each datum:
    log p(y | u) = sum_n log(exp l_1n + exp l_2n) + const                                                 (2)
    d/dmu_k = sum_n r_kn z_kn / sigma_k,   d/dlog sigma_k = sum_n r_kn (z_kn^2 - 1)                       (3)
Squares of differences are summed, not y and y^2, so that (2) does not lose its digits to cancellation however
far from the data a search evaluates it.
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
from bayescore.targets.posterior_db.named_arrays import arrays

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
        self._y = y
        priors = -4 * (math.log(2) + 0.5 * math.log(2 * math.pi)) + math.log(630)
        self._constant = -0.5 * len(y) * math.log(2 * math.pi) + (0.0 if propto else priors)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        return cls(*arrays(data, {"y": 1}), propto=propto)

    def _components(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mu (..., 2), the standardised data z (..., 2, N) and the log weighted densities (..., 2, N)."""
        mu = torch.stack([x[..., 0], x[..., 0] + x[..., 1].exp()], -1)
        log_sigma, logit = x[..., 2:4], x[..., 4:]
        z = (self._y - mu.unsqueeze(-1)) * (-log_sigma).exp().unsqueeze(-1)
        weights = logsigmoid(torch.cat([logit, -logit], -1)) - log_sigma
        return mu, z, weights.unsqueeze(-1) - 0.5 * z.square()

    def log_prob(self, x: Tensor) -> Tensor:
        mu, _, terms = self._components(x)
        data = torch.logaddexp(terms[..., 0, :], terms[..., 1, :]).sum(-1)  # (2)
        beta = 5 * (logsigmoid(x[..., 4]) + logsigmoid(-x[..., 4]))  # the log-Jacobian is one of the five
        normals = -(mu.square().sum(-1) + (2 * x[..., 2:4]).exp().sum(-1)) / 8
        return self._constant + data + normals + beta + x[..., 1:4].sum(-1)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        mu, z, terms = self._components(x)
        first = (terms[..., 0, :] - terms[..., 1, :]).sigmoid()
        share = torch.stack([first, 1 - first], -2)  # r, (..., 2, N)
        pull, count = share * z, share.sum(-1)
        sigma = x[..., 2:4].exp()
        d_mu = pull.sum(-1) / sigma - mu / 4  # (3)
        d_sigma = (pull * z).sum(-1) - count + 1 - sigma.square() / 4
        theta = x[..., 4].sigmoid()
        d_theta = count[..., 0] - len(self._y) * theta + 5 * (1 - 2 * theta)
        d_gap = 1 + (mu[..., 1] - mu[..., 0]) * d_mu[..., 1]
        parts = [d_mu.sum(-1), d_gap, d_sigma[..., 0], d_sigma[..., 1], d_theta]
        return torch.stack(parts, -1)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x), self.score(x)
