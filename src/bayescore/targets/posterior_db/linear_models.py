"""Linear regressions with weak or flat priors: logearn_interaction, kidscore_interaction, mesquite, blr.

The likelihood is (1)-(3) of regression.py, in u = (beta, log sigma). Priors:
    logearn_interaction, mesquite  flat in beta and in sigma                                            (1)
    kidscore_interaction           flat in beta, sigma ~ Cauchy(0, 2.5), not renormalised               (2)
    blr                            beta ~ N(0, 10^2), sigma ~ N(0, 10^2), not renormalised              (3)
Interactions are products of two columns, which are not centred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from bayescore.targets.constraints import Positive, Real
from bayescore.targets.posterior_db.named_arrays import arrays
from bayescore.targets.posterior_db.regression import LOG_2PI, Regression

__all__ = ["BayesianRegression", "KidScores", "LogEarnings", "Mesquite"]


class _Linear(Regression):
    """beta on the columns of a design, and sigma.

    Arguments:
        design: (N, D - 1).
        y: (N,).
        propto: drop the constants of the priors and of the likelihood, as Stan does.
    """

    def __init__(self, design: Tensor, y: Tensor, *, propto: bool = False) -> None:
        super().__init__({"beta": Real(design.shape[1]), "sigma": Positive()}, design, y)
        self._constant = 0.0 if propto else self._prior_constant() - 0.5 * len(y) * LOG_2PI

    def _prior_constant(self) -> float:
        return 0.0

    def _log_prior(self, w: Tensor, log_sigma: Tensor) -> Tensor:  # noqa: ARG002
        return torch.full_like(log_sigma, self._constant)  # (1)

    def _prior_scores(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(w), torch.zeros_like(variance)


class LogEarnings(_Linear):
    """Log earnings on height, sex and their product (1); D = 5."""

    name = "logearn_interaction"

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        earn, height, male = arrays(data, {"earn": 1, "height": 1, "male": 1}, positive=("earn",))
        design = torch.stack([torch.ones_like(height), height, male, height * male], -1)
        return cls(design, earn.log(), propto=propto)


class Mesquite(_Linear):
    """The weight of mesquite bushes on six measurements (1); D = 8."""

    name = "mesquite"

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        names = ("weight", "diam1", "diam2", "canopy_height", "total_height", "density", "group")
        weight, *columns = arrays(data, dict.fromkeys(names, 1))
        design = torch.stack([torch.ones_like(weight), *columns], -1)
        return cls(design, weight, propto=propto)


class KidScores(_Linear):
    """Test scores of children on their mother's school, IQ and their product (2); D = 5."""

    name = "kidscore_interaction"

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        score, school, iq = arrays(data, {"kid_score": 1, "mom_hs": 1, "mom_iq": 1})
        design = torch.stack([torch.ones_like(iq), school, iq, school * iq], -1)
        return cls(design, score, propto=propto)

    def _prior_constant(self) -> float:
        return -math.log(2.5 * math.pi)

    def _log_prior(self, w: Tensor, log_sigma: Tensor) -> Tensor:  # noqa: ARG002
        return self._constant - (1 + (2 * log_sigma).exp() / 6.25).log()

    def _prior_scores(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(w), -2 * variance / (6.25 + variance)


class BayesianRegression(_Linear):
    """A regression on D - 1 given columns (3)."""

    name = "blr"

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, propto: bool = False) -> Self:
        """From PosteriorDB's data."""
        return cls(*arrays(data, {"X": 2, "y": 1}), propto=propto)

    def _prior_constant(self) -> float:
        return -self.dim * (0.5 * LOG_2PI + math.log(10))

    def _log_prior(self, w: Tensor, log_sigma: Tensor) -> Tensor:
        return self._constant - (w.square().sum(-1) + (2 * log_sigma).exp()) / 200

    def _prior_scores(self, w: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return w / -100, variance / -100
