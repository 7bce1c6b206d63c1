"""From the words of a config to the library's methods and optimizers: the lab makes them nowhere else.

Records are matched by their configs, so a config keeps the words it was recorded with, whatever the library
calls the same thing later; they are translated here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayescore import methods, optim
from bayescore.optim.base import Shell

__all__ = ["low_dimensional_method", "network_optimizer"]

_OPTIMIZERS: dict[str, type[Any]] = {
    "proximal": optim.ProximalScore,
    "advi": optim.ADVI,
    "bam": optim.BaM,
    "sgld": optim.SGLD,
}


def low_dimensional_method(name: str, **options: Any) -> methods.Method:
    """A method that moves a family, by the recorded name and options."""
    return methods.by_name(name)(**options)


def network_optimizer(name: str, params: Iterable[Any], num_data: int, **options: Any) -> Shell:
    """An optimizer of a network's weights, by the recorded name and options."""
    optimizer: Shell = _OPTIMIZERS[name](params, num_data=num_data, **options)
    return optimizer
