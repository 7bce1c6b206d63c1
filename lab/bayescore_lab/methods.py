"""From the words of a config to the library's methods and optimizers: the lab makes them nowhere else.

Records are matched by their configs, so a config keeps the words it was recorded with, whatever the library
calls the same thing later; they are translated here. In those words "proximal" is four methods:

    solver="exact"                              methods.ProximalRidge, optim.CalibratedScore
    metric="covariance", or neither for a       methods.WhitenedDescent
        full or diagonal Gaussian
    metric="euclidean", or any other family     methods.ProximalDescent
    solver="gradient" for a network             optim.ProximalDescent

The default optimizer of networks came later and has a word of its own, "default".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayescore import methods, optim
from bayescore.optim.base import BayesianOptimizer
from bayescore.rules.proximal import USUAL

__all__ = ["low_dimensional_method", "network_optimizer"]

_WORDS = {"learning_rate": "lr", "samples": "draws", "batch": "draws", "decay": "schedule"}
_INNER_STEPS = 20  # N of every arm that does not say it, but for normalised descent


def low_dimensional_method(name: str, *, family: str = "full", **recorded: Any) -> methods.Method:
    """A method that moves a family, by the recorded name and options.

    Arguments:
        family: which kind it moves; "proximal" without a metric depends on it.
    """
    options = _translated(recorded)
    if name != "proximal":
        return methods.by_name(name)(**options)
    solver, metric = options.pop("solver", "gradient"), options.pop("metric", None)
    if solver == "exact":
        return methods.ProximalRidge(**options)
    if metric == "covariance" or (metric is None and family in ("full", "diagonal")):
        if "optimizer" in options:
            options.setdefault("inner_steps", _INNER_STEPS)
        return methods.WhitenedDescent(**options)
    return methods.ProximalDescent(**options)


def network_optimizer(name: str, params: Iterable[Any], num_data: int, **recorded: Any) -> BayesianOptimizer:
    """An optimizer of a network's weights, by the recorded name and options.

    "default" is whatever the library recommends today, with residual=False without its score matching;
    "proximal" is the closed form or the inner loop.
    """
    options = _translated(recorded)
    if not options.pop("residual", True):
        return WithoutResidual(params, num_data, **options)
    solver, published = options.pop("solver", "exact"), options.pop("published", False)
    kinds: dict[str, type[BayesianOptimizer]] = {
        "proximal": optim.CalibratedScore if solver == "exact" else optim.ProximalDescent,
        "default": optim.ProximalScore,
        "advi": optim.ADVI,
        "bam": optim.BaM if published else optim.PairedBaM,
        "sgld": optim.SGLD,
    }
    kind: Any = kinds[name]
    if "batch_size" not in kind.options():  # an arm says it whatever its method
        options.pop("batch_size", None)
    optimizer: BayesianOptimizer = kind(params, num_data=num_data, **options)
    return optimizer


class WithoutResidual(optim.ProximalScore):
    """The default rule without score matching: Adam at drawn weights, its squared gradients as the widths.

    The residual d (g - a) of the draw is never looked at: no slope is learned (rho is the batch size, as for
    a model that fits), what the noise costs is not known, and Q is 1. The temperature is what is given.

    Arguments:
        batch_size: rho. The rule's own prior on rho is 32, so num_data is multiplied by their ratio.
    """

    def __init__(self, params: Any, num_data: int, *, batch_size: int, **options: Any) -> None:
        super().__init__(params, max(1, round(num_data * batch_size / USUAL)), **options)

    def _learn_all(self, told: Any) -> None:
        super()._learn_all([(bucket, totals.zero_()) for bucket, totals in told])


def _translated(recorded: Mapping[str, Any]) -> dict[str, Any]:
    return {_WORDS.get(word, word): value for word, value in recorded.items()}
