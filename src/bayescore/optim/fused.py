"""One pass over memory: an elementwise rule in place, compiled or in slices, with the same numbers.

A rule is a function of flat tensors, which it may change, and of numbers as zero-dimensional tensors, so that
a new learning rate does not compile it again; it may return sums over its weights. Compiled, one program
serves every shape. Eagerly, it runs slice by slice, so that what it computes on the way stays in the cache.

Compiling takes 20 to 40 seconds, once. A rule is compiled from 2 million weights on, where that pays within
a thousand steps; small networks and tests never wait for it. If the compiler is missing or fails, the rule
runs eagerly from then on, and the optimizer's status says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Pass", "of_one_draw", "run_in_slices"]

LARGE = 2_000_000  # weights from which compiling pays within a short training run
SLICE = 1 << 15  # weights per slice: what a rule computes on the way then stays in the cache

logger = logging.getLogger(__name__)
Rule = Callable[..., Any]


class Pass:
    """A rule that runs compiled or eagerly.

    Arguments:
        rule: a function of flat tensors and zero-dimensional tensors; the first tensor has every weight.
        compiled: True, False, or None to compile from 2 million weights on.
    """

    def __init__(self, rule: Rule, compiled: bool | None = None) -> None:
        self.rule, self.wish = rule, compiled
        self.status = ""
        self._fast: Rule | None = None
        self._failed = False

    def __call__(self, size: int, *args: Any) -> Any:
        """Apply the rule; `size` is the number of weights of the whole network."""
        wanted = size >= LARGE if self.wish is None else self.wish
        if not wanted or self._failed:
            return run_in_slices(self.rule, *args)
        if self._fast is None:
            self._fast = torch.compile(self.rule, dynamic=True)
        try:
            result = self._fast(*args)
        except Exception as error:  # the compiler raises what its backends raise; eager needs none of them
            self._failed, self.status = True, f"update eager: compiling failed ({type(error).__name__})"
            logger.warning("the update could not be compiled and runs eagerly: %s", error)
            return run_in_slices(self.rule, *args)
        self.status = "update compiled"
        return result


def run_in_slices(rule: Rule, *args: Any) -> Any:
    """The rule, slice by slice; the sums that it returns are added up."""
    size = args[0].numel()
    if size <= SLICE:
        return rule(*args)
    total: Any = None
    whole = [isinstance(a, Tensor) and a.dim() == 1 and a.numel() == size for a in args]
    for at in range(0, size, SLICE):
        part = [a[at : at + SLICE] if w else a for a, w in zip(args, whole, strict=True)]
        found = rule(*part)
        total = found if total is None or found is None else total + found
    return total


def of_one_draw(rule: Rule) -> Rule:
    """`rule(..., G, X, e1, e2, o)` as `rule(..., g, eps, o)`: the statistics of one draw are not stored."""

    def single(*args: Any) -> Any:
        *state, g, eps, o = args
        return rule(*state, g, eps * g, eps, eps * eps, o)

    return single
