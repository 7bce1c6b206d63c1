"""From the words of a config to the library's methods and optimizers: the lab makes them nowhere else.

Records are matched by their configs, so a config keeps the words it was recorded with, whatever the library
calls the same thing now. Recorded names and what they stand for:
    proximal, low-dimensional       with solver="exact" ProximalRidge; else, on full and diagonal Gaussians
                                    unless metric="euclidean", WhitenedDescent; else ProximalDescent
    proximal, network               with solver="gradient" ProximalDescent, else ProximalScore
    bam, network                    with published=True BaM, else PairedBaM
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayescore import methods, optim
from bayescore.families import DiagonalGaussian, Family, FullGaussian
from bayescore.optim.base import BayesianOptimizer

__all__ = ["low_dimensional_method", "network_optimizer"]

_OPTIONS = {"batch": "draws", "decay": "schedule", "learning_rate": "lr", "samples": "draws"}


def low_dimensional_method(name: str, family: type[Family] = FullGaussian, **options: Any) -> methods.Method:
    """A method that moves a family, by the recorded name and options."""
    named = {_OPTIONS.get(key, key): value for key, value in options.items()}
    return _proximal(family, **named) if name == "proximal" else methods.by_name(name)(**named)


def _proximal(
    family: type[Family],
    solver: str = "gradient",
    metric: str | None = None,
    optimizer: str | None = None,
    **options: Any,
) -> methods.Method:
    if solver == "exact":
        return methods.ProximalRidge(**options)
    if metric == "euclidean" or not issubclass(family, FullGaussian | DiagonalGaussian):
        return methods.ProximalDescent(optimizer=optimizer or "adam", **options)
    if optimizer == "adam":
        options.setdefault("inner_steps", 20)
    return methods.WhitenedDescent(optimizer=optimizer or "normalised", **options)


def network_optimizer(name: str, params: Iterable[Any], num_data: int, **options: Any) -> BayesianOptimizer:
    """An optimizer of a network's weights, by the recorded name and options."""
    named = {_OPTIONS.get(key, key): value for key, value in options.items()}
    kind: type[BayesianOptimizer]
    if name == "proximal":
        gradient = named.pop("solver", "exact") == "gradient"
        kind = optim.ProximalDescent if gradient else optim.ProximalScore
    elif name == "bam":
        kind = optim.BaM if named.pop("published", False) else optim.PairedBaM
    else:
        kind = {"advi": optim.ADVI, "sgld": optim.SGLD}[name]
    if kind is not optim.ProximalScore:
        named.pop("batch_size", None)  # was taken by all, and used by this one
    return kind(params, num_data, **named)
