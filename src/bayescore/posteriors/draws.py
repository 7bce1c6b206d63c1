"""A set of equally probable weight vectors: the states of a chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.posteriors.base import WeightPosterior, Weights
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.shards import local, sharded_like
from bayescore.rng import generator

__all__ = ["DrawsPosterior"]


class DrawsPosterior(WeightPosterior):
    """K weight vectors.

    Draw number i of a stream is member p[i mod K], where the seed gives the permutation p: K draws use every
    member once.

    Arguments:
        path: by parameter name, (K, *shape).
    """

    kind = "draws"
    leading: ClassVar[dict[str, int]] = {"path": 1}

    def __init__(
        self,
        model: nn.Module,
        path: Weights,
        *,
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    ) -> None:
        super().__init__(model, path, likelihood)
        sizes = {len(v) for v in path.values()}
        if len(sizes) != 1 or sizes == {0}:
            raise ValueError(f"every parameter needs the same positive number of draws; got {sorted(sizes)}")
        self.path, self.size = path, sizes.pop()

    def draw(self, seed: int, index: int) -> Weights:
        order = torch.randperm(self.size, generator=generator(seed))
        member = int(order[index % self.size])
        return {name: sharded_like(local(v)[member], v, -1) for name, v in self.path.items()}

    def centre(self) -> Weights:
        return {name: sharded_like(local(v).mean(0), v, -1) for name, v in self.path.items()}

    def tensors(self) -> Weights:
        return {f"path.{k}": v for k, v in self.path.items()}

    @classmethod
    def rebuild(cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood) -> DrawsPosterior:
        return cls(model, parts["path"], likelihood=likelihood)
