"""One pass over memory: an elementwise rule compiled for every tensor size, with the eager rule behind it.

A rule is a function of tensors whose options arrive as zero-dimensional tensors, so that a new learning rate
does not compile it again; tensors arrive flat, so that one compilation serves every shape. Small networks
stay eager: compiling takes seconds, and their update takes microseconds. If the compiler is missing or
fails, the rule runs eagerly from then on, with the same numbers, and `status` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Pass"]

LARGE = 2_000_000  # parameters from which compiling pays within a short training run

logger = logging.getLogger(__name__)
Rule = Callable[..., Any]


class Pass:
    """A rule that runs compiled or eagerly.

    Arguments:
        rule: a function of flat tensors and zero-dimensional tensors.
        compiled: True, False, or None to compile from 2 million parameters on.
    """

    def __init__(self, rule: Rule, compiled: bool | None = None) -> None:
        self.rule, self.wish = rule, compiled
        self.status = "eager"
        self._fast: Rule | None = None
        self._failed = False

    def __call__(self, size: int, *args: Any) -> Any:
        """Apply the rule; `size` is the number of parameters of the whole network."""
        wanted = size >= LARGE if self.wish is None else self.wish
        if not wanted or self._failed:
            return self.rule(*args)
        if self._fast is None:
            self._fast = torch.compile(self.rule, dynamic=True)
        try:
            result = self._fast(*args)
        except Exception as error:  # the compiler raises what its backends raise; eager needs none of them
            self._failed, self.status = True, f"eager: compiling failed ({type(error).__name__})"
            logger.warning("the update could not be compiled and runs eagerly: %s", error)
            return self.rule(*args)
        self.status = "compiled"
        return result
