"""Any variational family over a network's weights: a flow, a full or low-rank Gaussian, a mixture.

The random parameters, flattened and joined in the module's order, are one vector,
    theta = (vec W_1, ..., vec W_K) ~ q_lambda on R^D,   D the number of random weights                    (1)
    centre = T_lambda(0), the draw without noise: a Gaussian's mean, a flow's image of its base's mode     (2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.families import Family, by_name
from bayescore.posteriors.base import WeightPosterior, Weights, draw_generator
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.selection import select

__all__ = ["FamilyPosterior", "central_point", "split_weights"]


class FamilyPosterior(WeightPosterior):
    """The family `family` over the weights (1).

    Arguments:
        family: one density on R^D.
        names: the parameters that are random; by default all that are trained.
    """

    kind = "family"
    leading: ClassVar[dict[str, int]] = {"centre": 0}

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        names: Iterable[str] | None = None,
        *,
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    ) -> None:
        super().__init__(model, [name for name, _ in select(model)] if names is None else names, likelihood)
        own = dict(model.named_parameters())
        self._shapes = {name: own[name].shape for name in self.names}
        self._dtypes = {name: own[name].dtype for name in self.names}
        total = sum(shape.numel() for shape in self._shapes.values())
        if family.batch_shape:
            raise ValueError(f"a network has one posterior; got a batch of {family.batch_shape[0]} densities")
        if family.dim != total:
            raise ValueError(f"the family has {family.dim} dimensions and the network {total} random weights")
        self.family = family.replace({key: value.detach() for key, value in family.parameters().items()})

    def draw(self, seed: int, index: int) -> Weights:
        rng = draw_generator(seed, index, self.family.device)
        return self._weights(self.family.sample(1, rng)[0])

    def centre(self) -> Weights:
        return self._weights(central_point(self.family))

    def _weights(self, theta: Tensor) -> Weights:
        parts = split_weights(theta, self._shapes.values())
        return {name: part.to(self._dtypes[name]) for name, part in zip(self.names, parts, strict=True)}

    def tensors(self) -> Weights:
        found = {f"centre.{name}": value for name, value in self.centre().items()}
        return found | {f"family.{name}": value for name, value in self.family.parameters().items()}

    def config(self) -> dict[str, Any]:
        config = self.family.config()
        if config.get("flow") == "custom":
            raise TypeError(
                "a flow around a module of your own cannot be saved: a file does not hold the module; "
                "make it with ZukoFlow.init"
            )
        return {"family": self.family.name, "family_config": config}

    @classmethod
    def rebuild(
        cls,
        model: nn.Module,
        parts: dict[str, Weights],
        likelihood: Likelihood,
        family: str = "",
        family_config: dict[str, Any] | None = None,
    ) -> FamilyPosterior:
        density = by_name(family).rebuild(dict(family_config or {}), parts["family"])
        found = cls(model, density, parts["centre"], likelihood=likelihood)
        for name, value in found.centre().items():
            if not torch.allclose(value, parts["centre"][name].to(value), rtol=1e-3, atol=1e-5):
                raise ValueError(f"its centre of {name} is not that of its density")
        return found


def split_weights(theta: Tensor, shapes: Iterable[torch.Size]) -> list[Tensor]:
    """The parts of one vector (D,) as tensors of these shapes, (1)."""
    shapes = list(shapes)
    parts = theta.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


@torch.no_grad()
def central_point(family: Family) -> Tensor:
    """(2), (D,)."""
    noise = torch.zeros(1, family.noise_dim, dtype=family.dtype, device=family.device)
    return family.transform(noise)[0]
