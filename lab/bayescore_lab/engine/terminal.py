"""What the commands show on the terminal: results on standard output, everything else on standard error.

Live progress is a bar on a terminal and an occasional line elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from bayescore_lab.engine.declare import Experiment
from bayescore_lab.engine.plans import Plan
from bayescore_lab.engine.runner import Tally
from bayescore_lab.engine.wording import counted, duration, number

if TYPE_CHECKING:
    from bayescore_lab.engine.drawing import Drawn

__all__ = ["Terminal", "Watch", "show_progress", "tally_text"]

_PIPE_WIDTH = 160
_FAILURES = 5
_COLOURS = {"reproduced": "green", "partly": "yellow", "not reproduced here": "red", None: "dim"}


class Terminal:
    """Two consoles; a pipe gets wide lines instead of the 80 columns that rich assumes."""

    def __init__(self) -> None:
        self.output, self.errors = _console(stderr=False), _console(stderr=True)

    def say(self, text: str) -> None:
        """A line of result."""
        self.output.print(Text(text), soft_wrap=True)

    def complain(self, problem: str | Exception) -> None:
        """A problem in one sentence, with the file it is about."""
        text = str(problem)
        if isinstance(problem, OSError) and problem.filename and problem.strerror:
            text = f"{problem.filename}: {problem.strerror}"
        self.errors.print(Text(text), soft_wrap=True)

    def list_experiments(self, experiments: Mapping[str, Experiment]) -> None:
        """Every experiment: id, place in the paper, what it shows, expected minutes of each profile."""
        table = RichTable(box=SIMPLE_HEAD)
        table.add_column("id", no_wrap=True)
        for column in ("paper", "what it shows", "minutes"):
            table.add_column(column)
        for experiment in experiments.values():
            sizes = [f"{name} {number(profile.minutes, 2)}" for name, profile in experiment.profiles.items()]
            cells = (experiment.id, experiment.location, experiment.shows, ", ".join(sizes))
            table.add_row(*map(Text, cells))
        self.output.print(table)

    def announce(self, plans: Sequence[Plan]) -> None:
        """What is about to run, before it does."""
        for plan in plans:
            minutes = number(plan.experiment.profiles[plan.profile].minutes, 2)
            size = f"{counted(len(plan.runs), 'run')}, {counted(len(plan.seeds), 'seed')}"
            text = f"{plan.experiment.id}: profile {plan.profile}, {size}, "
            text += f"about {minutes} minutes from scratch on two cores"
            self.errors.print(Text(text), soft_wrap=True)

    def show(self, plan: Plan, drawn: Drawn) -> None:
        """The tables and verdicts of one experiment, and where its files are."""
        self.output.print()
        self.output.print(
            Text(f"{plan.experiment.title} ({plan.experiment.location})", "bold"), soft_wrap=True
        )
        for table in drawn.tables:
            self.output.print(table.terminal())
        for claim, judgement in drawn.judgements:
            line = Text(judgement.verdict or "no verdict", f"bold {_COLOURS[judgement.verdict]}")
            line.append(f"  {claim.text} ", "default").append(f"({claim.location})", "dim")
            self.output.print(line, soft_wrap=True)
            self.output.print(Text(f"  {judgement.sentence}"), soft_wrap=True)
            self.output.print(Text(f"  Rule: {claim.rule.words}", "dim"), soft_wrap=True)
        done, total = len(drawn.records), len(plan.runs)
        self.say(f"{done} of {counted(total, 'run')} in {drawn.folder}: {', '.join(sorted(drawn.files))}")

    def show_failures(self, tally: Tally) -> None:
        """The first failures, and what to do about them."""
        head = f"{counted(len(tally.failures), 'run')} failed and will be tried again by the same command:"
        self.errors.print(Text(head), soft_wrap=True)
        for failure in tally.failures[:_FAILURES]:
            text = f"  {failure.experiment}, {failure.method}, seed {failure.seed}: {failure.error}"
            self.errors.print(Text(text), soft_wrap=True)
        if len(tally.failures) > _FAILURES:
            self.errors.print(Text(f"  and {len(tally.failures) - _FAILURES} more"))


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PIPE_WIDTH)


class Watch:
    """Shows every tally and keeps the last one."""

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
            bar.update(task, total=tally.total, completed=tally.finished, description=tally_text(tally))

        yield Watch(show)


def tally_text(tally: Tally) -> str:
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
        self.last, self.shown = -float("inf"), ""

    def __call__(self, tally: Tally) -> None:
        text = tally_text(tally)
        if text != self.shown and (_ended(tally) or time.monotonic() - self.last >= self.every):
            self.console.print(Text(text), soft_wrap=True)
            self.last, self.shown = time.monotonic(), text


def _ended(tally: Tally) -> bool:
    return tally.finished + len(tally.failures) >= tally.total
