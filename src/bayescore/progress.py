"""A live progress line for a run: shown on a terminal and in a notebook."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

__all__ = ["Progress"]

NOTEBOOK = "ZMQInteractiveShell"  # the shell of Jupyter's kernels
WIDTH = 30  # characters of a notebook's bar
PAUSE = 0.2  # seconds between two updates of a notebook's bar


class _Bar(Protocol):
    """A bar, wherever it is shown."""

    def start(self) -> None: ...

    def show(self, step: int, note: str) -> None: ...

    def stop(self) -> None: ...


class Progress:
    """Progress bar with the loss, the score calls and the remaining time.

    Arguments:
        total: number of steps.
        done: steps that are already done.
        show: True, False, or None for "if standard error is a terminal, or this is a notebook".
    """

    def __init__(self, total: int, done: int = 0, show: bool | None = None) -> None:
        self._bar: _Bar | None = None
        notebook = _in_notebook()
        if show is False or (show is None and not notebook and not sys.stderr.isatty()):
            return
        self._bar = _NotebookBar(total, done) if notebook else _TerminalBar(total, done, show)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def shown(self) -> bool:
        return self._bar is not None

    def update(self, step: int, loss: float, score_calls: int) -> None:
        if self._bar is not None:
            self._bar.show(step, f"loss {loss:.4g}  score calls {score_calls}")


class _TerminalBar:
    """A bar of rich; it vanishes at the end unless it was asked for."""

    def __init__(self, total: int, done: int, show: bool | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("fit"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_terminal=show or None),
            transient=show is None,
        )
        self._task = self._bar.add_task("fit", total=total, completed=done, note="")

    def start(self) -> None:
        self._bar.start()

    def show(self, step: int, note: str) -> None:
        self._bar.update(self._task, completed=step, note=note)

    def stop(self) -> None:
        self._bar.stop()


class _NotebookBar:
    """One line of text in the output of a cell, written anew a few times per second; it needs no widgets."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._first = total, done, done
        self._note = ""
        self._handle: Any = None
        self._began = self._written = 0.0

    def start(self) -> None:
        from IPython.display import display

        self._began = time.perf_counter()
        self._handle = display(self._content(), raw=True, display_id=True)

    def show(self, step: int, note: str) -> None:
        self._done, self._note = step, note
        if time.perf_counter() - self._written >= PAUSE:
            self._write()

    def stop(self) -> None:
        self._write()

    def _write(self) -> None:
        self._written = time.perf_counter()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        full = WIDTH * self._done // max(1, self._total)
        made = self._done - self._first
        left = (time.perf_counter() - self._began) / made * (self._total - self._done) if made else 0.0
        bar = "█" * full + "░" * (WIDTH - full)
        return {"text/plain": f"fit {bar} {self._done}/{self._total}  {self._note}  {left:.0f} s left"}


def _in_notebook() -> bool:
    """Whether this is a cell of a notebook; IPython is not imported for it."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and type(get_shell()).__name__ == NOTEBOOK
