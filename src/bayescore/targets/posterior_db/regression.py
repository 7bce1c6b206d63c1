"""Linear regressions with a free noise level, by sufficient statistics: diamonds and arK.

    y ~ N(A w, sigma^2 I),  u = (w, log sigma)                                                   (1)
    |y - A w|^2 = R + (w - v)^T G (w - v),  G = A^T A,  v least squares,  R = |y - A v|^2       (2)
    log p(y | u) = -N/2 log 2 pi - N log sigma - |y - A w|^2 / (2 sigma^2)                       (3)
so that a value and its score cost D^2 instead of N D operations. Priors, with the log-Jacobian log sigma of
(1):
    diamonds  b ~ N(0, 1), Intercept ~ t_3(8, 10), sigma ~ half-t_3(0, 10), normalised on the half line   (4)
    arK       alpha, beta ~ N(0, 10^2), sigma ~ Cauchy(0, 2.5), not renormalised on the half line         (5)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from bayescore.checks import check_memory
from bayescore.rng import Streams
from bayescore.targets.constraints import Constraint, Positive, Real
from bayescore.targets.model import ConstrainedModel
from bayescore.targets.posterior_db.named_arrays import arrays

__all__ = ["AutoRegression", "Diamonds"]

LOG_2PI = math.log(2 * math.pi)
STUDENT_3 = math.lgamma(2.0) - math.lgamma(1.5) - 0.5 * math.log(3 * math.pi)  # log constant of t_3


class Regression(ConstrainedModel):
    """(1)-(3); a subclass defines the priors.

    Arguments:
        parameters: the constraints of w and sigma, in this order.
        design: A, (N, D - 1).
        y: (N,).
    """

    def __init__(self, parameters: Mapping[str, Constraint], design: Tensor, y: Tensor) -> None:
        super().__init__(parameters)
        self.num_data = len(y)
        if not (design.square().sum() + y.square().sum()).isfinite():
            raise ValueError("the data are too large: the sum of their squares must be finite")
        self._best = torch.linalg.lstsq(design, y.unsqueeze(-1)).solution.squeeze(-1)  # v, (D - 1,)
        self._gram = design.T @ design  # G, (D - 1, D - 1)
        self._least = float((y - design @ self._best).square().sum())  # R

    @abstractmethod
    def _log_prior(self, w: Tensor, log_sigma: Tensor) -> Tensor:
        """The log density of w (..., D - 1) and sigma (...), without the Jacobian."""

    @abstractmethod
    def _prior_scores(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Its gradient in w (..., D - 1) and in log sigma (..., 1)."""

    def log_prob(self, x: Tensor) -> Tensor:
        w, s = x[..., :-1], x[..., -1]
        d = w - self._best
        squares = self._least + ((d @ self._gram) * d).sum(-1)  # (2)
        likelihood = -self.num_data * s - 0.5 * squares * (-2 * s).exp()  # (3); the prior has its constant
        return likelihood + self._log_prior(w, s) + s

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        w, s = x[..., :-1], x[..., -1:]
        d = w - self._best
        pull = d @ self._gram
        precision = (-2 * s).exp()
        squares = self._least + (pull * d).sum(-1, keepdim=True)
        prior_w, prior_s = self._prior_scores(w, precision.reciprocal())
        return torch.cat(
            [prior_w - precision * pull, squares * precision + (1 - self.num_data) + prior_s], -1
        )

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x), self.score(x)


class Diamonds(Regression):
    """The price of 5000 diamonds on 24 predictors (4); D = 26, condition number 3e5.

    Arguments:
        X: predictors (N, K), the first column constant.
        y: log prices (N,).
    """

    name = "diamonds"

    def __init__(self, X: Tensor, y: Tensor) -> None:
        centred = X[:, 1:] - X[:, 1:].mean(0)
        parameters = {"b": Real(X.shape[1] - 1), "Intercept": Real(), "sigma": Positive()}
        super().__init__(parameters, torch.cat([centred, torch.ones_like(y).unsqueeze(-1)], -1), y)
        scale = STUDENT_3 - math.log(10)
        coefficients, data = -0.5 * (X.shape[1] - 1) * LOG_2PI, -0.5 * len(y) * LOG_2PI
        self._constant = data + coefficients + 2 * scale + math.log(2)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:  # noqa: ARG003
        """From PosteriorDB's data; its program keeps all constants, so propto changes nothing."""
        X, y = arrays(data, {"X": 2, "Y": 1})
        if X.shape[1] < 2:
            raise ValueError(
                f"'X' must have a column besides the constant one; got the shape {tuple(X.shape)}"
            )
        return cls(X, y)

    def _log_prior(self, w: Tensor, log_sigma: Tensor) -> Tensor:
        b, intercept = w[..., :-1], w[..., -1] - 8
        tails = (1 + intercept.square() / 300).log() + (1 + (2 * log_sigma).exp() / 300).log()
        return self._constant - 0.5 * b.square().sum(-1) - 2 * tails

    def _prior_scores(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        intercept = w[..., -1:] - 8
        return (
            torch.cat([-w[..., :-1], -4 * intercept / (300 + intercept.square())], -1),
            -4 * variance / (300 + variance),
        )


class AutoRegression(Regression):
    """An autoregression of order K (5); D = K + 2.

    Arguments:
        y: the series (T,).
        order: K.
        propto: drop the constants of the priors and of the likelihood, as Stan does.
    """

    name = "arK"

    def __init__(self, y: Tensor, order: int, *, propto: bool = False) -> None:
        need = 16 * len(y) * (order + 1)
        check_memory(f"an autoregression of order {order}", need, torch.device("cpu"), "take a smaller order")
        lags = [y[order - k : len(y) - k] for k in range(1, order + 1)]
        design = torch.stack([torch.ones_like(lags[0]), *lags], -1)
        super().__init__({"alpha": Real(), "beta": Real(order), "sigma": Positive()}, design, y[order:])
        normal = -(order + 1) * (0.5 * LOG_2PI + math.log(10))
        everything = normal - math.log(2.5 * math.pi) - 0.5 * self.num_data * LOG_2PI
        self._constant = 0.0 if propto else everything

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        y, order = arrays(data, {"y": 1, "K": 0})
        if float(order) not in range(1, len(y)):
            raise ValueError(f"'K' must be a whole number from 1 to {len(y) - 1}; got {float(order)}")
        return cls(y, int(order), propto=propto)

    def _log_prior(self, w: Tensor, log_sigma: Tensor) -> Tensor:
        return self._constant - w.square().sum(-1) / 200 - (1 + (2 * log_sigma).exp() / 6.25).log()

    def _prior_scores(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return w / -100, -2 * variance / (6.25 + variance)
