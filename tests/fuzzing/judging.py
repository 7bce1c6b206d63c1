"""How a mutation may end: refused by one sentence of ours, read unchanged, or read as other valid input."""

from __future__ import annotations

import contextlib
import logging
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import bayescore
import bayescore_lab
from bayescore_lab.engine.drawing import CannotDraw, NothingToDraw

__all__ = ["REFUSED", "UNCHANGED", "VALID", "Attempt", "Wrong", "bytes_of", "expect", "quiet", "refused"]

OURS = tuple(str(Path(module.__file__).parent) for module in (bayescore, bayescore_lab))
ERRORS = (ValueError, TypeError, OSError, MemoryError, RuntimeError, ArithmeticError)
REFUSALS = (*ERRORS, CannotDraw, NothingToDraw)
REFUSED, UNCHANGED, VALID = "refused", "read unchanged", "read as other valid input"

#: one mutation: the rest of its randomness, and an empty folder to write into; returns how it ended
Attempt = Callable[[random.Random, Path], str]


class Wrong(AssertionError):
    """A mutation was neither refused nor read as it should be."""


def refused(action: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether the action was refused by a sentence of ours, and what it returned if not."""
    try:
        return False, action()
    except REFUSALS as problem:
        message = str(problem)
        frames = traceback.extract_tb(problem.__traceback__)
        if not frames[-1].filename.startswith(OURS):
            raise
        if "\n" in message or len(message.split()) < 4:
            raise Wrong(f"{type(problem).__name__} says {message!r}") from problem
        return True, None


def expect(condition: object, words: str) -> None:
    if not condition:
        raise Wrong(words)


def bytes_of(value: Any) -> Any:
    """Nested state with the bytes of tensors, and with texts for floats, so that NaN equals itself."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), value.numpy().tobytes()]
    if isinstance(value, dict):
        return {key: bytes_of(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(bytes_of, value))
    return repr(value)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings and log messages are words, too, but not for whoever reads the progress."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
