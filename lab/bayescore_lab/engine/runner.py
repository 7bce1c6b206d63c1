"""Running the missing runs of a grid: resume, schedule, record.

What is recorded as finished is never recorded again; what failed is tried again by the next command.
Experiments run in the order given, groups within an experiment by their turn, and within a turn by expected
cost, the largest first, on one pool of processes.

A group of which any run is missing is executed whole, because the last digits of a run depend on the batch
that it is computed in: after a kill, the same command gives the numbers of an uninterrupted one, bitwise.
This costs the time of what was recorded of such a group already: after a kill of at most one group per
process, and at every start of each group in which a run keeps failing.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayescore_lab.engine import provenance
from bayescore_lab.engine.declare import Run
from bayescore_lab.engine.plans import Plan, check_jobs
from bayescore_lab.engine.records import Record, RecordStore, prepare_folder
from bayescore_lab.engine.workers import Event, Task, work

__all__ = ["Failure", "Tally", "run_plans"]

#: executes tasks, as `workers.work` does
Pool = Callable[[Callable[[], Task | None], Any], Generator[Event, None, None]]

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
    pool: Pool | None = None,
) -> Tally:
    """Execute the runs that are not yet recorded in `out`, on `jobs` processes (default: all cores).

    The processes are those of this machine, or of another `pool` (engine/on_ray.py). `watch` is called with
    the tally after every run. Raises OSError if the folder cannot be written or the disk is full; the records
    until then are safe.
    """
    if pool is not None:
        return _Session(plans, out).run(jobs, watch, pool)
    count = provenance.usable_cores() if jobs is None else jobs
    check_jobs(count)
    return _Session(plans, out).run(count, watch, work)


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
            store.check()
            done = store.done()
            for path, line, reason in store.damage:
                _log.warning(
                    "%s: line %d is corrupt and is left out (%s); the rest is used", path, line, reason
                )
            recorded += len(done & plan.runs.keys())
            self.queue += _tasks(plan, done)
        self.queue.reverse()  # taken from the end
        self.tally = Tally(sum(len(plan.runs) for plan in plans), recorded)
        self.begin = time.monotonic()
        self.cost_done = 0.0
        self.cost = sum(map(_cost, self.queue))

    def run(self, jobs: Any, watch: Callable[[Tally], None], pool: Pool) -> Tally:
        watch(self.tally)
        with closing(pool(self._next, jobs)) as events:
            for event in events:
                self._record(event)
                watch(self.tally)
        watch(self.tally)
        return self.tally

    def _next(self) -> Task | None:
        """The next group with a missing run; another process may have finished some meanwhile."""
        while self.queue:
            task = self.queue.pop()
            recorded = self.stores[task.experiment].done() & task.runs.keys()
            found = len(recorded - task.recorded)
            if len(recorded) < len(task.runs):
                self._count(0.0, done=found)
                return replace(task, recorded=recorded)
            self._count(_cost(task), done=found)
        return None

    def _record(self, event: Event) -> None:
        run, store = event.task.runs[event.run], self.stores[event.task.experiment]
        if event.run in event.task.recorded:
            self._count(run.cost, done=0)
            return
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
    """The groups with a missing run, by turn and then cost; equal ones keep the order of the grid."""
    groups: dict[str, dict[str, Run]] = {}
    for key, run in plan.runs.items():
        groups.setdefault(f"group {run.group}" if run.group else f"run {key}", {})[key] = run
    tasks = [
        Task(plan.experiment.id, plan.experiment.execute, runs, done & runs.keys())
        for runs in groups.values()
        if runs.keys() - done
    ]
    return sorted(tasks, key=lambda task: (min(run.turn for run in task.runs.values()), -_cost(task)))


def _cost(task: Task) -> float:
    return sum(run.cost for run in task.runs.values())
