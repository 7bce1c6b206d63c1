"""The plain network: one set of weights, optionally with a temperature fitted on validation data.

Temperature scaling (Guo et al. 2017) divides the logits z by T; with b = 1/T the validation loss
    l(b) = -(1/n) sum_i log p(y_i | b z_i)   is convex in b
Where all n labels are predicted rightly, l falls for ever, and T = 0 would make every later mistake
infinitely bad. Therefore log T has a standard normal prior, which a hundred rows with mistakes outweigh:
    b n l'(b) + log b = 0                                                                                  (1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.checks import check_number
from bayescore.posteriors.base import WeightPosterior, Weights
from bayescore.posteriors.inputs import Inputs
from bayescore.posteriors.likelihoods import Likelihood

__all__ = ["PointPosterior"]

MAX_TEMPERATURE = 1e4  # T lies between 1/MAX_TEMPERATURE and MAX_TEMPERATURE


class PointPosterior(WeightPosterior):
    """The current weights of `model`, as certain.

    Arguments:
        temperature: divides the logits; see `scaled`.
    """

    kind = "point"
    leading: ClassVar[dict[str, int]] = {"weights": 0}
    deterministic = True

    def __init__(
        self,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
        temperature: float = 1.0,
    ) -> None:
        own = dict(model.named_parameters())
        super().__init__(model, own, likelihood)
        check_number("temperature", temperature)
        if temperature != 1.0 and self.likelihood.kind == "values":
            raise ValueError(f"a temperature divides logits; the likelihood {self.likelihood.name} has none")
        self.weights = {name: value.detach().clone() for name, value in own.items()}
        self.temperature = temperature

    def scaled(self, validation: Iterable[Any]) -> PointPosterior:
        """The same network with the best temperature (1) for the validation batches (inputs, labels)."""
        if self.likelihood.kind == "values":
            raise ValueError(f"a temperature divides logits; the likelihood {self.likelihood.name} has none")
        plain = self._with_temperature(1.0)
        rows = [(*plain.outputs(Inputs.of(x), 1), y) for x, y in validation]
        if not rows:
            raise ValueError("the validation loader gave no batch")
        logits = torch.cat([row[0] for row in rows]).double()
        labels = torch.cat([row[1] for row in rows]).to(logits.device)
        return self._with_temperature(best_temperature(logits, labels, self.likelihood))

    def _with_temperature(self, temperature: float) -> PointPosterior:
        with self.mean_():
            return PointPosterior(self.model, likelihood=self.likelihood, temperature=temperature)

    def transform(self, outputs: Tensor) -> Tensor:
        return outputs if self.temperature == 1.0 else outputs / self.temperature

    def draw(self, seed: int, index: int) -> Weights:  # noqa: ARG002
        return self.weights

    def tensors(self) -> Weights:
        return {f"weights.{name}": value for name, value in self.weights.items()}

    def config(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    @classmethod
    def rebuild(
        cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood, temperature: float = 1.0
    ) -> PointPosterior:
        posterior = cls(model, likelihood=likelihood, temperature=temperature)
        posterior.weights = parts["weights"]
        return posterior


def best_temperature(logits: Tensor, labels: Tensor, likelihood: Likelihood) -> float:
    """T by bisection of (1) in log b."""
    low, high = -math.log(MAX_TEMPERATURE), math.log(MAX_TEMPERATURE)
    for _ in range(60):
        middle = (low + high) / 2
        b = torch.tensor(math.exp(middle), dtype=logits.dtype, device=logits.device, requires_grad=True)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(likelihood(b * logits, labels), b)
        rises = math.exp(middle) * labels.numel() * float(slope) + middle > 0
        low, high = (low, middle) if rises else (middle, high)
    return math.exp(-(low + high) / 2)
