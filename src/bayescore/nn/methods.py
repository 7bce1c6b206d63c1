"""The training methods of `fit`: what each adds to the loop.

A method defines its optimizer, its posterior and from when on there is one, its learning rate schedule, and
changes of the module during training.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from bayescore import methods as functional
from bayescore.checks import unknown_name
from bayescore.families import Family
from bayescore.nn.arguments import unknown_option
from bayescore.nn.plain import PlainAdam
from bayescore.nn.weight_dropout import WeightDropout
from bayescore.optim import (
    ADVI,
    SGLD,
    BaM,
    CalibratedScore,
    FamilyOptimizer,
    PairedBaM,
    ProximalDescent,
    ProximalScore,
)
from bayescore.optim.base import BayesianOptimizer
from bayescore.posteriors.base import WeightPosterior
from bayescore.posteriors.dropout import DropoutPosterior, InsertedDropout, dropped_modules
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.point import PointPosterior
from bayescore.posteriors.swag import SWAG

__all__ = ["BAYESIAN", "METHODS", "SCHEDULES", "TrainingMethod", "training_method"]

BAYESIAN: dict[str, type[BayesianOptimizer]] = {
    "proximal": ProximalScore,
    "calibrated": CalibratedScore,
    "descent": ProximalDescent,
    "advi": ADVI,
    "bam": PairedBaM,
    "published-bam": BaM,
    "sgld": SGLD,
}
#: the functional methods that move any family over the weights, and their defaults for networks
OF_FAMILIES: dict[str, tuple[type[functional.ProximalDescent | functional.ADVI], dict[str, Any]]] = {
    "descent": (functional.ProximalDescent, {"lr": 3e-3, "inner_steps": 2}),
    "advi": (functional.ADVI, {"lr": 1e-3}),
}
METHODS = (*BAYESIAN, "plain", "dropout", "weight-dropout", "swag")
SCHEDULES = ("cosine", "halving", "constant")
SWAG_WAITS = 0.5  # share of the epochs before SWAG begins to collect weights
CHAIN = 30  # states that SGLD keeps of the second half of its steps


@dataclass
class TrainingMethod:
    """A training method as the loop sees it.

    Arguments:
        optimizer: steps with a closure, and has a `status`.
        posterior: makes the posterior from the current state.
        swag: collects weights at the end of every epoch of the second half.
        while_training: a context that changes the module during training.
    """

    optimizer: Any
    posterior: Callable[[Likelihood], WeightPosterior]
    swag: SWAG | None = None
    while_training: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Called after the last batch of an epoch."""
        if self.swag is not None and epoch > SWAG_WAITS * epochs:
            self.swag.collect()

    @property
    def has_posterior(self) -> bool:
        """Whether there is a posterior yet: a chain has none during burn-in."""
        if self.swag is not None:
            return self.swag.count > 1
        return bool(self.optimizer.param_groups[0].get("kept", 1))

    def lr_factor(self, schedule: str, share: float, epochs: int) -> float:
        """The factor of the learning rate after a share of all steps; for SWAG it is constant."""
        if self.swag is not None or schedule == "constant":
            return 1.0
        if schedule == "halving":  # the first two epochs at the full rate, then half of it after every epoch
            return 0.5 ** max(0, int(share * epochs + 1e-6) - 1)
        return max(1e-3, 0.5 * (1 + math.cos(math.pi * min(1.0, share))))


def training_method(
    name: str,
    model: nn.Module,
    chosen: Any,
    num_data: int,
    batch_size: int | None,
    steps: int | None,
    seed: int,
    options: dict[str, Any],
    others: Iterable[str] = (),
) -> TrainingMethod:
    """The training method of that name.

    Arguments:
        chosen: the named parameters that are random, or groups of them with options of their own.
        batch_size, steps: rows per batch and steps of the whole run, or None if the loader has no length.
        options: of the method and of its optimizer.
        others: names of arguments that do not belong to the method, of which a misspelt one is reminded.
    """
    if name == "ensemble":
        raise ValueError(
            "an ensemble needs fresh initial weights for every member; use fit_ensemble(make_model, loader)"
        )
    if name == "laplace":
        raise ValueError(
            "a Laplace approximation is made of a trained network: fit(..., method='plain'), then "
            "fit_laplace(model, loader)"
        )
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    if options.get("family") is not None:
        return _of_family(name, model, chosen, num_data, steps, seed, options)
    if name in BAYESIAN:
        if name == "calibrated":
            options.setdefault("batch_size", batch_size)
        elif name == "descent":
            options.setdefault("steps", steps)
        elif name == "sgld" and steps is not None and "burn_in" not in options:
            options["burn_in"] = steps // 2
            options.setdefault("thin", max(1, (steps - steps // 2) // CHAIN))
        optimizer = _optimizer(BAYESIAN[name], chosen, {"num_data": num_data, "seed": seed}, options, others)
        return TrainingMethod(optimizer, lambda like: optimizer.posterior(model, like))
    if name == "dropout":
        p = options.pop("p", None)
        dropped_modules(model, p)  # a module in which nothing can be dropped is refused before training
        return TrainingMethod(
            _optimizer(PlainAdam, chosen, {"num_data": num_data}, options, others),
            lambda like: DropoutPosterior(model, p, likelihood=like),
            while_training=nullcontext if p is None else lambda: InsertedDropout(model, p),
        )
    if name == "weight-dropout":
        spikes = _optimizer(WeightDropout, chosen, {"num_data": num_data, "seed": seed}, options, others)
        return TrainingMethod(spikes, lambda like: spikes.posterior(model, like))
    if name == "swag":
        groups = [each["params"] if isinstance(each, dict) else [each] for each in chosen]
        if sum(map(len, groups)) < sum(p.requires_grad for p in model.parameters()):
            raise ValueError(
                "swag collects all weights; leave bayesian= and point= out, or freeze the others"
            )
        swag = SWAG(model, options.pop("rank", 20))
        return TrainingMethod(
            _optimizer(PlainAdam, chosen, {"num_data": num_data}, options, others), swag.posterior, swag
        )
    adam = _optimizer(PlainAdam, chosen, {"num_data": num_data}, options, others)
    return TrainingMethod(adam, lambda like: PointPosterior(model, likelihood=like))


def prior_options(name: str) -> dict[str, Any]:
    """The options with which a method has no prior of its own, as far as it can."""
    lacks = BAYESIAN[name].lacks if name in BAYESIAN else ("weight_decay",)
    flat = {"prior_sd": math.inf, "weight_decay": 0.0}
    return {option: value for option, value in flat.items() if option not in lacks}


def _of_family(
    name: str,
    model: nn.Module,
    chosen: Any,
    num_data: int,
    steps: int | None,
    seed: int,
    options: dict[str, Any],
) -> TrainingMethod:
    """A functional method on the family in the options, over all weights at once."""
    if name not in OF_FAMILIES:
        raise ValueError(f"family= goes with the methods {' and '.join(OF_FAMILIES)}; got {name!r}")
    family = options.pop("family")
    if not isinstance(family, Family):
        raise TypeError(
            f"family must be a density on the weights, such as PlanarFlow.init(D); got {family!r}"
        )
    kind, defaults = OF_FAMILIES[name]
    known = {field.name for field in fields(kind)} - {"schedule", "mixture", "temperature"}
    own = defaults | {option: options.pop(option) for option in list(options) if option in known}
    others = {"steps", "prior_sd", "temperature", "max_skips"}
    for option in options:
        if option not in others:
            raise unknown_name(f"option of {kind.__name__} with a family", option, known | others)
    weights = [p for _, p in chosen]
    given = {"steps": steps, "seed": seed} | options
    optimizer = FamilyOptimizer(weights, num_data, family, kind(**own), **given)
    return TrainingMethod(optimizer, lambda like: optimizer.posterior(model, like))


def _optimizer(
    kind: type[Any], chosen: Any, given: dict[str, Any], options: dict[str, Any], others: Iterable[str]
) -> Any:
    """The optimizer, after the names of its options have been checked."""
    bayesian = issubclass(kind, BayesianOptimizer)
    known = kind.options() if bayesian else list(inspect.signature(kind).parameters)[1:]
    lacks = kind.lacks if bayesian else ()  # the optimizer itself says why
    for name in options:
        if name not in known and name not in lacks:
            raise unknown_option(kind.__name__, name, set(known) - set(given), others)
    return kind(chosen, **given, **options)
