"""The densities of the race in JAX, equal to our targets: one function serves every peer.

jax is imported where it is used; this module is loaded in the peers' own process (peers.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["log_density"]

LOG_2PI = math.log(2 * math.pi)


def log_density(spec: Mapping[str, Any]) -> tuple[Callable[[Any], Any], int]:
    """log Phi: (D,) to (), and D, from `Problem.density()`."""
    jnp = import_module("jax.numpy")
    if spec["kind"] == "gaussian":
        mean, factor = jnp.asarray(spec["mean"]), jnp.asarray(spec["precision_factor"])
        constant = jnp.log(jnp.diagonal(factor)).sum() - 0.5 * len(mean) * LOG_2PI

        def gaussian(x: Any) -> Any:
            u = (x - mean) @ factor
            return constant - 0.5 * u @ u

        return gaussian, len(mean)

    width, bend = spec["width"], spec["bend"]

    def banana(x: Any) -> Any:
        second = x[1] - bend * (x[0] ** 2 - width**2)
        return -0.5 * ((x[0] / width) ** 2 + second**2) - LOG_2PI - math.log(width)

    return banana, 2
