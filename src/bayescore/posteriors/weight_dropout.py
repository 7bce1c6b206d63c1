"""Dropout of single weights, which return to where they began: a posterior of two spikes per weight.

With m the trained and m0 the initial (pretrained) value of a weight and z ~ Bernoulli(1 - p),
    theta = z m + (1 - z) m0                                                                              (1)
for every weight of a matrix; vectors (biases, norms) are not dropped. Its centre is p m0 + (1 - p) m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.posteriors.base import WeightPosterior, Weights, draw_generator
from bayescore.posteriors.dropout import check_rate
from bayescore.posteriors.likelihoods import Likelihood

__all__ = ["WeightDropoutPosterior", "kept_weights"]


def kept_weights(like: Tensor, p: float, rng: torch.Generator) -> Tensor:
    """z of (1), all ones for a vector."""
    if like.dim() < 2:
        return torch.ones_like(like)
    return (torch.rand(like.shape, generator=rng, device=like.device) >= p).to(like.dtype)


class WeightDropoutPosterior(WeightPosterior):
    """Two spikes per weight (1).

    Arguments:
        weights: m, by parameter.
        initial: m0, by parameter.
        p: the share of weights that return to m0 in a draw.
    """

    kind = "weight-dropout"
    leading: ClassVar[dict[str, int]] = {"weights": 0, "initial": 0}

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        initial: Mapping[str, Tensor],
        p: float,
        *,
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    ) -> None:
        super().__init__(model, weights, likelihood)
        self.p = check_rate(p)
        self.weights = {name: weights[name].detach().clone() for name in self.names}
        self.initial = {name: initial[name].detach().clone() for name in self.names}

    def draw(self, seed: int, index: int) -> Weights:
        rng = draw_generator(seed, index, next(iter(self.weights.values())).device)
        return {
            name: torch.where(kept_weights(m, self.p, rng) > 0, m, self.initial[name])
            for name, m in self.weights.items()
        }

    def centre(self) -> Weights:
        return {
            name: m if m.dim() < 2 else torch.lerp(m, self.initial[name], self.p)
            for name, m in self.weights.items()
        }

    def tensors(self) -> Weights:
        return {
            f"{kind}.{name}": value
            for kind, values in (("weights", self.weights), ("initial", self.initial))
            for name, value in values.items()
        }

    def config(self) -> dict[str, Any]:
        return {"p": self.p}

    @classmethod
    def rebuild(
        cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood, p: float = 0.1
    ) -> WeightDropoutPosterior:
        return cls(model, parts["weights"], parts["initial"], p, likelihood=likelihood)
