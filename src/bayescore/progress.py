"""A live progress line for a run: shown only if standard error is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

__all__ = ["Progress"]


class Progress:
    """Progress bar with the loss, the score calls and the remaining time.

    Arguments:
        total: number of steps.
        done: steps that are already done.
        show: True, False, or None for "if standard error is a terminal".
    """

    def __init__(self, total: int, done: int = 0, show: bool | None = None) -> None:
        self._bar = None
        if sys.stderr.isatty() if show is None else show:
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
            self._bar.update(self._task, completed=step, note=f"loss {loss:.4g}  score calls {score_calls}")
