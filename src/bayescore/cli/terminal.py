"""The output of the command: results on standard output, every problem as one sentence on standard error.

A request that cannot be met ends with exit code 2, a fit that failed with 1, Ctrl-C with 130.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "MISUSED",
    "UserError",
    "complain",
    "console",
    "errors_as_sentences",
    "waiting",
    "warnings_as_sentences",
]

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_PIPE_WIDTH = 120
#: what torch and Python say of sizes that no memory, or no whole number of the machine, can hold
_TOO_LARGE = ("allocate memory", "out of memory", "verflow", "too large", "Storage size calculation")


class UserError(Exception):
    """A sentence for the user, and the exit code that goes with it.

    `verbatim` keeps its line breaks: a compiler points at a column.
    """

    def __init__(self, sentence: str, code: int = MISUSED, *, verbatim: bool = False) -> None:
        super().__init__(sentence)
        self.code, self.verbatim = code, verbatim


def console() -> Console:
    """Standard output; a pipe gets wide lines instead of the 80 columns that rich assumes."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=_PIPE_WIDTH)


def waiting(words: str) -> AbstractContextManager[Any]:
    """Shows on a terminal that something takes a while, and leaves nothing behind."""
    return Console(file=sys.stderr).status(words)


def complain(sentence: str, kind: str = "error", *, verbatim: bool = False) -> None:
    """Print a sentence as one line on standard error; `verbatim` keeps its line breaks."""
    words = sentence if verbatim else " ".join(sentence.split())
    line = Text.assemble((f"{kind}: ", "bold red" if kind == "error" else "bold yellow"), words)
    Console(file=sys.stderr).print(line, soft_wrap=True)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Turn the library's errors in the block into a `UserError`: their sentence, without a traceback."""
    try:
        yield
    except (ValueError, TypeError, MemoryError, ImportError, OSError) as problem:
        raise UserError(_sentence(problem)) from problem
    except FloatingPointError as problem:
        raise UserError(_sentence(problem), FAILED) from problem
    except (RuntimeError, OverflowError) as problem:
        if not any(words in str(problem) for words in _TOO_LARGE):
            raise
        first = str(problem).splitlines()[0]
        raise UserError(f"a number is too large for this machine ({first}); make it smaller") from problem


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print warnings of every category that are raised in the block as sentences on standard error."""

    def show(
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
        warnings.showwarning = show
        yield


def _sentence(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename and problem.strerror:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem) or type(problem).__name__
