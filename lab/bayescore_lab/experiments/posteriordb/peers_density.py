"""One density for every peer: values and scores of a target of ours, each of them counted.

A peer gets log Phi and its gradient through a callback into the compiled Stan program, or our torch density:
    JAX       `jax.pure_callback`, with the score as the derivative of the value (custom_vjp)
    PyTensor  an Op with the outputs (value, score), whose derivative is g score
Neither differentiates twice. jax and pytensor are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bayescore.targets import Target

__all__ = ["Array", "CountedDensity", "jax_density", "pytensor_density"]

Array = npt.NDArray[np.float64]


class CountedDensity:
    """log Phi of a target in numpy, with the number of values and of scores that were asked for."""

    def __init__(self, target: Target) -> None:
        self.target, self.dim = target, target.dim
        self.values, self.scores = 0, 0

    def reset(self) -> None:
        self.values, self.scores = 0, 0

    def value(self, x: Any) -> Array:
        """At points (..., D)."""
        x = np.array(x, dtype=np.float64)
        with torch.no_grad():
            found = self.target.log_prob(torch.from_numpy(x.reshape(-1, self.dim)))
        self.values += len(found)
        value: Array = found.numpy().reshape(x.shape[:-1])
        return value

    def value_and_score(self, x: Any) -> tuple[Array, Array]:
        """At points (..., D), which counts as so many scores."""
        x = np.array(x, dtype=np.float64)
        value, score = self.target.log_prob_and_score(torch.from_numpy(x.reshape(-1, self.dim)))
        self.scores += len(value)
        return value.detach().numpy().reshape(x.shape[:-1]), score.detach().numpy().reshape(x.shape)


def jax_density(density: CountedDensity) -> Callable[[Any], Any]:
    """A function of x (D,) that can be jitted, mapped and differentiated once."""
    jax = import_module("jax")

    def shape(*sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, np.float64)

    def ask(function: Any, shapes: Any, x: Any) -> Any:
        return jax.pure_callback(function, shapes, x, vmap_method="expand_dims")

    def value(x: Any) -> Any:
        return ask(density.value, shape(), x)

    def forward(x: Any) -> Any:
        return ask(density.value_and_score, (shape(), shape(density.dim)), x)

    function: Callable[[Any], Any] = jax.custom_vjp(value)
    function.defvjp(forward, lambda score, g: (g * score,))  # type: ignore[attr-defined]
    return function


def pytensor_density(density: CountedDensity) -> Callable[[Any], Any]:
    """A function from a vector variable (D,) to a scalar one."""
    pt, basic = import_module("pytensor.tensor"), import_module("pytensor.graph")

    class LogDensity(basic.Op):  # type: ignore[name-defined,misc]
        gufunc_signature = "(d)->(),(d)"
        __props__ = ()

        def make_node(self, x: Any) -> Any:
            return basic.Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar(), pt.dvector()])

        def perform(self, node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:  # noqa: ARG002
            value, score = density.value_and_score(inputs[0])
            outputs[0][0], outputs[1][0] = np.asarray(value), score

        def L_op(self, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
            return [gradients[0] * outputs[1]] if inputs else []

    op = LogDensity()
    return lambda x: op(x)[0]
