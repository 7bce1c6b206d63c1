"""Counted evaluations of a target: its log densities and scores, for searches and methods."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayescore.rng import Streams
from bayescore.targets.base import Target

__all__ = ["CountedDensity", "CountingOracle", "Counts"]


@dataclass(frozen=True)
class Counts:
    """How often a run evaluated its target."""

    score_calls: int = 0  # of the search and of the method, without those of the check
    hessian_products: int = 0
    density_evaluations: int = 0  # log densities without a score: for metrics and for comparing candidates
    check_calls: int = 0  # score calls of the check of the target before the run
    skipped_steps: int = 0  # steps left out because a score was not finite
    search_calls: int = 0  # those of the score calls that the search for a start made

    def __add__(self, other: Counts) -> Counts:
        names = [field.name for field in dataclasses.fields(Counts)]
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in names})


class CountedDensity:
    """The exact log density of one target, counted for a search; -inf where it is not finite."""

    def __init__(self, target: Target) -> None:
        self.target, self.score_calls, self.density_evaluations = target, 0, 0

    def log_prob(self, x: Tensor) -> Tensor:
        """log Phi at points (..., D)."""
        with torch.no_grad():
            value = self.target.log_prob(x)
        self.density_evaluations += x.shape[:-1].numel()
        return torch.where(value.isfinite(), value, -torch.inf)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log Phi and its score at points (n, D); -inf and zeros where one of them is not finite."""
        value, score = self.target.log_prob_and_score(x)
        self.score_calls += len(x)
        finite = value.isfinite() & score.isfinite().all(-1)
        return torch.where(finite, value, -torch.inf), torch.where(finite.unsqueeze(-1), score, 0.0)


class CountingOracle:
    """Gives scores to a method, counts them, and records which fits got one that is not finite.

    Arguments:
        target: the target, single or a batch of F.
        streams: the random numbers of the fits, for noisy scores.

    `score_calls` counts one per point and evaluation, the same for each fit. Scores of a fit that are not all
    finite are replaced by zeros, so that the step can be computed; `failed` (F,) are the fits that skip it.
    """

    def __init__(self, target: Target, streams: Streams) -> None:
        self.target, self.streams = target, streams
        self.has_density = target.has_density and not target.stochastic
        self.score_calls = 0
        self.hessian_products = 0
        self.failed: Tensor | None = None

    def score(self, x: Tensor) -> Tensor:
        answer = self._checked(self.target.score(x, self.streams), x)
        self.score_calls += x.shape[-2]
        return answer

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, score = self.target.log_prob_and_score(x)
        self.score_calls += x.shape[-2]
        return self._checked(value.unsqueeze(-1), x).squeeze(-1), self._checked(score, x)

    def hessian_product(self, x: Tensor, v: Tensor) -> Tensor:
        answer = self._checked(self.target.hessian_product(x, v), x)
        self.hessian_products += x.shape[-2]
        return answer

    def _checked(self, answer: Tensor, x: Tensor) -> Tensor:
        answer = answer.detach()
        if answer.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"{type(self.target).__name__} was asked at points {tuple(x.shape)} "
                f"and answered with the shape {tuple(answer.shape)}"
            )
        if math.isfinite(float(answer.sum())):
            return answer
        finite = answer.isfinite().flatten(1).all(-1)  # (F,)
        if finite.all():  # only the sum overflowed
            return answer
        self.failed = ~finite if self.failed is None else self.failed | ~finite
        return torch.where(finite[:, None, None], answer, torch.zeros_like(answer))
