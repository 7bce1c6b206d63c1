"""Running the missing runs of a grid: resume, schedule, record.

A run that is recorded as finished is never executed again; a failed one is tried again by the next command.
Experiments run in the order given, groups within an experiment by expected cost, the largest first, on one
pool of processes.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayescore_lab.engine import provenance
from bayescore_lab.engine.plans import Plan
from bayescore_lab.engine.records import Record, RecordStore, prepare_folder
from bayescore_lab.engine.workers import Event, Task, work

__all__ = ["Failure", "Tally", "run_plans"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """A run that failed during this command, with the error as a sentence."""

    experiment: str
    method: str
    seed: int
    error: str


@dataclass(frozen=True)
class Tally:
    """The progress of a command: `recorded` runs were finished before; `left` is in seconds, expected."""

    total: int
    recorded: int
    done: int = 0
    failures: tuple[Failure, ...] = ()
    left: float | None = None

    @property
    def finished(self) -> int:
        """The runs that need not run again."""
        return self.recorded + self.done


def run_plans(
    plans: Sequence[Plan],
    out: Path,
    jobs: int | None = None,
    watch: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Execute the runs that are not yet recorded in `out`, on `jobs` processes (default: all cores).

    `watch` is called with the tally after every run. Raises OSError if the folder cannot be written or the
    disk is full; the records until then are safe.
    """
    count = provenance.usable_cores() if jobs is None else jobs
    if count < 1:
        raise ValueError(f"the number of jobs must be at least 1; got {count}")
    return _Session(plans, out).run(count, watch)


class _Session:
    """One command: the stores, the queue of groups, the tally."""

    def __init__(self, plans: Sequence[Plan], out: Path) -> None:
        for plan in plans:
            prepare_folder(plan.folder(out))
        self.origin: dict[str, Any] = {
            "commit": provenance.commit(),
            "versions": provenance.versions(),
            "machine": provenance.machine(),
        }
        self.stores = {plan.experiment.id: RecordStore(plan.folder(out)) for plan in plans}
        self.queue: list[Task] = []
        recorded = 0
        for plan in plans:
            store = self.stores[plan.experiment.id]
            done = store.done()
            for line in store.corrupt:
                _log.warning("%s: line %d is corrupt and is left out; the rest is used", store.path, line)
            recorded += len(done & plan.runs.keys())
            self.queue += _tasks(plan, done)
        self.queue.reverse()  # taken from the end
        self.tally = Tally(sum(len(plan.runs) for plan in plans), recorded)
        self.begin = time.monotonic()
        self.cost_done = 0.0
        self.cost = sum(run.cost for task in self.queue for run in task.runs.values())

    def run(self, jobs: int, watch: Callable[[Tally], None]) -> Tally:
        watch(self.tally)
        with closing(work(self._next, jobs)) as events:
            for event in events:
                self._record(event)
                watch(self.tally)
        watch(self.tally)
        return self.tally

    def _next(self) -> Task | None:
        """The next group, without runs that another process on the same folder has finished since."""
        while self.queue:
            task = self.queue.pop()
            done = self.stores[task.experiment].done()
            runs = {key: run for key, run in task.runs.items() if key not in done}
            for run in task.runs.keys() - runs.keys():
                self._count(task.runs[run].cost)
            if runs:
                return replace(task, runs=runs)
        return None

    def _record(self, event: Event) -> None:
        run, store = event.task.runs[event.run], self.stores[event.task.experiment]
        record = Record(
            experiment=event.task.experiment,
            run=event.run,
            method=run.method,
            seed=run.seed,
            config=dict(run.config),
            **event.fields,
            **self.origin,
        )
        try:
            added = store.append(record)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    problem.errno,
                    f"the disk is full; the {self.tally.finished} finished runs are safe. "
                    "Free some space and give the same command again to continue",
                    os.fspath(store.path),
                ) from problem
            raise
        if record.done or not added:  # not added: another process has finished this run
            self._count(run.cost)
        else:
            failure = Failure(record.experiment, run.method, run.seed, record.status["error"])
            self.tally = replace(self.tally, failures=(*self.tally.failures, failure))
            self._count(run.cost, done=0)

    def _count(self, cost: float, done: int = 1) -> None:
        self.cost_done += cost
        elapsed = time.monotonic() - self.begin
        left = elapsed * (self.cost - self.cost_done) / self.cost_done if self.cost_done > 0 else None
        self.tally = replace(self.tally, done=self.tally.done + done, left=left)


def _tasks(plan: Plan, done: set[str]) -> list[Task]:
    """The missing runs by group, the most expensive first; equal ones keep the order of the grid."""
    groups: dict[str, dict[str, Any]] = {}
    for key, run in plan.runs.items():
        if key not in done:
            groups.setdefault(f"group {run.group}" if run.group else f"run {key}", {})[key] = run
    tasks = [Task(plan.experiment.id, plan.experiment.execute, runs) for runs in groups.values()]
    return sorted(tasks, key=lambda task: -sum(run.cost for run in task.runs.values()))
