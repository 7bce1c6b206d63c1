"""What each method of `fit` adds to the loop: its optimizer, its posterior, when that is ready, its rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from bayescore.checks import unknown_name
from bayescore.nn.plain import PlainAdam
from bayescore.posteriors.dropout import DropoutPosterior, InsertedDropout, places
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.point import PointPosterior
from bayescore.posteriors.swag import SWAG
from bayescore.posteriors.weights import WeightPosterior

__all__ = ["METHODS", "Recipe", "recipe"]

SHELLS = {"proximal": "ProximalScore", "advi": "ADVI", "bam": "BaM", "sgld": "SGLD"}  # in bayescore.optim
METHODS = (*SHELLS, "plain", "dropout", "swag")
SWAG_START = 0.5  # share of the epochs after which SWAG collects
CHAIN = 30  # states that SGLD keeps of the second half of its steps


@dataclass
class Recipe:
    """A method as the loop sees it.

    Arguments:
        optimizer: steps with a closure, and says its `status`.
        posterior: the posterior as it stands now.
        collector: what collects weights at the end of an epoch, in the second half of them.
        training: what is done to the module while it is trained.
    """

    optimizer: Any
    posterior: Callable[[Likelihood], WeightPosterior]
    collector: SWAG | None = None
    training: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """After the last batch of an epoch."""
        if self.collector is not None and epoch > SWAG_START * epochs:
            self.collector.collect()

    @property
    def ready(self) -> bool:
        """Whether there is a posterior to look at: a chain has none during burn-in."""
        if self.collector is not None:
            return self.collector.count > 1
        return bool(self.optimizer.param_groups[0].get("kept", 1))

    def rate(self, share: float) -> float:
        """The factor of the learning rate after a share of all steps: a cosine; constant for SWAG."""
        if self.collector is not None:
            return 1.0
        return max(1e-3, 0.5 * (1 + math.cos(math.pi * min(1.0, share))))


def recipe(
    method: str,
    model: nn.Module,
    chosen: Any,
    data: int,
    batch: int | None,
    steps: int | None,
    seed: int,
    options: dict[str, Any],
) -> Recipe:
    """The recipe of a method by name; `options` are those of its optimizer, and its own.

    Arguments:
        batch, steps: the size of a batch and the steps to come, where the loader says.
    """
    if method == "ensemble":
        raise ValueError(
            "an ensemble needs fresh initial weights for every member; use fit_ensemble(make_model, loader)"
        )
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if "accumulate" in options:
        raise ValueError(
            "accumulate counts the backward calls of a block, and fit makes one; give the loader larger "
            "batches, or write the loop yourself (`with opt.sample():`)"
        )
    if method in SHELLS:
        from bayescore import optim  # it imports this package

        if method != "sgld":
            options.setdefault("batch_size", batch)
        elif steps is not None and "burn_in" not in options:
            options["burn_in"] = steps // 2
            options.setdefault("thin", max(1, (steps - steps // 2) // CHAIN))
        shell = _made(getattr(optim, SHELLS[method]), chosen, {"num_data": data, "seed": seed}, options)
        return Recipe(shell, lambda like: shell.posterior(model, like))
    if method == "dropout":
        p = options.pop("p", None)
        places(model, p)  # a module without a place for dropout is refused before it is trained
        return Recipe(
            _made(PlainAdam, chosen, {"num_data": data}, options),
            lambda like: DropoutPosterior(model, p, likelihood=like),
            training=nullcontext if p is None else lambda: InsertedDropout(model, p),
        )
    if method == "swag":
        if len(chosen) < sum(p.requires_grad for p in model.parameters()):
            raise ValueError(
                "swag collects all weights; leave bayesian= and point= out, or freeze the others"
            )
        swag = SWAG(model, options.pop("rank", 20))
        adam = _made(PlainAdam, chosen, {"num_data": data}, options)
        return Recipe(adam, swag.posterior, swag)
    adam = _made(PlainAdam, chosen, {"num_data": data}, options)
    return Recipe(adam, lambda like: PointPosterior(model, likelihood=like))


def _made(kind: type[Any], chosen: Any, given: dict[str, Any], options: dict[str, Any]) -> Any:
    """The optimizer, after a look at the names of its options."""
    known = list(inspect.signature(kind).parameters)[1:]
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {kind.__name__}", name, set(known) - set(given))
    return kind(chosen, **given, **options)
