"""SWAG: a Gaussian fitted to the path of an optimizer (Maddox et al. 2019).

Weights theta_1, theta_2, ... are collected once per epoch; with the running mean m_t after t of them
    m = mean theta_t,   v = max(mean theta_t^2 - m^2, 0),   D = last K of (theta_t - m_t)                  (1)
    theta = m + sqrt(1/2) (sqrt v e1 + D' e2 / sqrt(K - 1)),   e1, e2 ~ N(0, I)                            (2)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.checks import check_count
from bayescore.posteriors.base import WeightPosterior, Weights, draw_generator
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.wrappers import matched

__all__ = ["SWAG", "SwagPosterior"]


class SWAG:
    """Collects weights along the path of any optimizer.

    Arguments:
        model: the module that is being trained.
        rank: K, the number of deviations kept.

    >>> model = nn.Linear(2, 1)
    >>> swag = SWAG(model)
    >>> for epoch in range(3):  # train for an epoch with a constant learning rate, then
    ...     swag.collect()
    >>> posterior = swag.posterior("gaussian")
    """

    def __init__(self, model: nn.Module, rank: int = 20) -> None:
        check_count("rank", rank, 2)
        self.model, self.rank, self.count = model, rank, 0
        self.mean: Weights = {}
        self.square: Weights = {}
        self.deviations: Weights = {}

    @torch.no_grad()
    def collect(self) -> None:
        """Add the weights that the module has now, (1)."""
        self.count += 1
        for name, p in self.model.named_parameters():
            if not p.requires_grad:
                continue
            theta = p.detach().to(torch.float64 if p.dtype == torch.float64 else torch.float32)
            mean = self.mean.setdefault(name, torch.zeros_like(theta))
            square = self.square.setdefault(name, torch.zeros_like(theta))
            path = self.deviations.get(name, theta.new_zeros(0, *theta.shape))
            mean.lerp_(theta, 1 / self.count)
            square.lerp_(theta.square(), 1 / self.count)
            self.deviations[name] = torch.cat([path, (theta - mean).unsqueeze(0)])[-self.rank :]

    def posterior(
        self, likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical"
    ) -> SwagPosterior:
        """The Gaussian (2) from the weights collected so far."""
        if self.count < 2:
            raise RuntimeError(f"SWAG needs two collections at least and has {self.count}; call collect()")
        mean = {name: value.clone() for name, value in self.mean.items()}
        var = {name: (self.square[name] - m.square()).clamp_min(0) for name, m in mean.items()}
        return SwagPosterior(self.model, mean, var, dict(self.deviations), likelihood=likelihood)

    def state_dict(self) -> dict[str, Any]:
        """What has been collected so far."""
        return {
            "count": self.count,
            "mean": dict(self.mean),
            "square": dict(self.square),
            "deviations": dict(self.deviations),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, of a model with the same parameters."""
        check_count("count", state["count"], 0)
        trained = {name: p.shape for name, p in self.model.named_parameters() if p.requires_grad}
        shapes = trained if state["count"] else {}
        keys = {"mean": 0, "square": 0, "deviations": 1}
        here = matched(state["mean"], trained)
        found = {key: {here.get(name, name): value for name, value in state[key].items()} for key in keys}
        for key, lead in keys.items():
            if {name: value.shape[lead:] for name, value in found[key].items()} != shapes:
                raise ValueError(f"{key} of what SWAG has collected does not fit the model")
        self.count = state["count"]
        self.mean, self.square, self.deviations = (
            {name: value.clone() for name, value in values.items()} for values in found.values()
        )


class SwagPosterior(WeightPosterior):
    """N(m, v/2 + D'D / (2 (K - 1))), (2).

    Arguments:
        mean, var: by parameter name.
        deviations: by parameter name, (K, *shape).
    """

    kind = "swag"
    leading: ClassVar[dict[str, int]] = {"mean": 0, "var": 0, "deviations": 1}

    def __init__(
        self,
        model: nn.Module,
        mean: Weights,
        var: Weights,
        deviations: Weights,
        *,
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    ) -> None:
        super().__init__(model, mean, likelihood)
        sizes = {len(value) for value in deviations.values()}
        if len(sizes) != 1 or min(sizes) < 2:
            raise ValueError(f"every parameter needs the same number of deviations, 2 or more; got {sizes}")
        self.mean, self.var, self.deviations, self.size = mean, var, deviations, sizes.pop()

    def draw(self, seed: int, index: int) -> Weights:
        device = next(iter(self.mean.values())).device
        rng = draw_generator(seed, index, device)
        dtype = next(iter(self.mean.values())).dtype
        e2 = torch.randn(self.size, generator=rng, device=device, dtype=dtype) / math.sqrt(self.size - 1)
        weights = {}
        for name in self.names:
            mean = self.mean[name]
            e1 = torch.empty_like(mean).normal_(generator=rng)
            low_rank = torch.einsum("k,k...->...", e2.to(mean.dtype), self.deviations[name])
            weights[name] = mean + math.sqrt(0.5) * (self.var[name].sqrt() * e1 + low_rank)  # (2)
        return weights

    def centre(self) -> Weights:
        return self.mean

    def tensors(self) -> Weights:
        parts = {"mean": self.mean, "var": self.var, "deviations": self.deviations}
        return {f"{what}.{name}": value for what, part in parts.items() for name, value in part.items()}

    @classmethod
    def rebuild(cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood) -> SwagPosterior:
        return cls(model, parts["mean"], parts["var"], parts["deviations"], likelihood=likelihood)
