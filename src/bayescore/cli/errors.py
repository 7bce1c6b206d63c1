"""Problems a user can solve: one sentence on standard error and exit code 2, or 1 where a fit failed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.text import Text

__all__ = ["FAILED", "INTERRUPTED", "MISUSED", "UserError", "complain", "explained", "spoken_warnings"]

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


class UserError(Exception):
    """A sentence for the user, and the exit code that goes with it.

    `verbatim` keeps its lines: a compiler points at a column.
    """

    def __init__(self, sentence: str, code: int = MISUSED, *, verbatim: bool = False) -> None:
        super().__init__(sentence)
        self.code, self.verbatim = code, verbatim


def complain(sentence: str, kind: str = "error", *, verbatim: bool = False) -> None:
    """One line on standard error, or the lines as they are."""
    words = sentence if verbatim else " ".join(sentence.split())
    line = Text.assemble((f"{kind}: ", "bold red" if kind == "error" else "bold yellow"), words)
    Console(file=sys.stderr).print(line, soft_wrap=True)


@contextmanager
def explained() -> Iterator[None]:
    """What the library refuses in here is the user's to mend: its own sentence, without the traceback."""
    try:
        yield
    except (ValueError, TypeError, MemoryError, ImportError, OSError) as problem:
        raise UserError(_sentence(problem)) from problem
    except FloatingPointError as problem:
        raise UserError(_sentence(problem), FAILED) from problem


@contextmanager
def spoken_warnings() -> Iterator[None]:
    """Warnings in here, of every category, are sentences on standard error."""

    def speak(
        message: Warning | str,
        category: type[Warning],  # noqa: ARG001
        filename: str,  # noqa: ARG001
        lineno: int,  # noqa: ARG001
        file: TextIO | None = None,  # noqa: ARG001
        line: str | None = None,  # noqa: ARG001
    ) -> None:
        complain(str(message), "warning")

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("default", ResourceWarning)
        warnings.showwarning = speak
        yield


def _sentence(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename and problem.strerror:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem) or type(problem).__name__
