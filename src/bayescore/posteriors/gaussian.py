"""A Gaussian over the weights with a diagonal covariance: what the variational optimizers learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.posteriors.base import WeightPosterior, Weights, draw_generator
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.shards import local, normal_like, sharded_like

__all__ = ["GaussianPosterior"]


class GaussianPosterior(WeightPosterior):
    """N(mean, diag(sd^2)).

    Arguments:
        mean, sd: by parameter name.
    """

    kind = "gaussian"
    leading: ClassVar[dict[str, int]] = {"mean": 0, "sd": 0}

    def __init__(
        self,
        model: nn.Module,
        mean: Weights,
        sd: Weights,
        *,
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    ) -> None:
        super().__init__(model, mean, likelihood)
        if set(mean) != set(sd) or any(mean[k].shape != sd[k].shape for k in mean):
            raise ValueError("mean and sd must have the same names and shapes")
        self.mean = {name: mean[name] for name in self.names}
        self.sd = {name: sd[name] for name in self.names}

    def draw(self, seed: int, index: int) -> Weights:
        rng = draw_generator(seed, index, next(iter(self.mean.values())).device)
        weights = {}
        for name, mean in self.mean.items():
            theta = torch.addcmul(local(mean), local(self.sd[name]), normal_like(mean, rng))
            weights[name] = sharded_like(theta, mean)
        return weights

    def centre(self) -> Weights:
        return self.mean

    def tensors(self) -> Weights:
        return {
            **{f"mean.{k}": v for k, v in self.mean.items()},
            **{f"sd.{k}": v for k, v in self.sd.items()},
        }

    @classmethod
    def rebuild(
        cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood
    ) -> GaussianPosterior:
        return cls(model, parts["mean"], parts["sd"], likelihood=likelihood)
