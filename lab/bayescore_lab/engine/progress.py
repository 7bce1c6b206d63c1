"""Live progress of a start: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bayescore_lab.engine.runner import Tally
from bayescore_lab.engine.wording import duration

__all__ = ["Watch", "show_progress", "words"]


class Watch:
    """Shows each tally and remembers the last."""

    def __init__(self, show: Callable[[Tally], None]) -> None:
        self.last: Tally | None = None
        self._show = show

    def __call__(self, tally: Tally) -> None:
        self.last = tally
        self._show(tally)


@contextmanager
def show_progress(console: Console, every: float = 10.0) -> Iterator[Watch]:
    """A bar while the context lasts; off a terminal, at most one line in `every` seconds."""
    if not console.is_terminal:
        yield Watch(_Lines(console, every))
        return
    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=None)

        def show(tally: Tally) -> None:
            bar.update(task, total=tally.total, completed=tally.finished, description=words(tally))

        yield Watch(show)


def words(tally: Tally) -> str:
    """The tally as one line."""
    text = f"{tally.finished} of {tally.total} runs done"
    if tally.failures:
        text += f", {len(tally.failures)} failing"
    if tally.left is not None and not _ended(tally):
        text += f", about {duration(tally.left)} left"
    return text


class _Lines:
    def __init__(self, console: Console, every: float) -> None:
        self.console, self.every = console, every
        self.last, self.said = -float("inf"), ""

    def __call__(self, tally: Tally) -> None:
        text = words(tally)
        if text != self.said and (_ended(tally) or time.monotonic() - self.last >= self.every):
            self.console.print(Text(text), soft_wrap=True)
            self.last, self.said = time.monotonic(), text


def _ended(tally: Tally) -> bool:
    return tally.finished + len(tally.failures) >= tally.total
