"""What a worker process does: execute one group of runs after another, on one thread, and report each run.

A group that raises is executed again run by run, so that only the culprits fail: the result of a run does not
depend on its group. When the parent dies, even by kill -9, the worker ends by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from typing import Any

from bayescore_lab.engine.declare import Outcome, Run
from bayescore_lab.engine.encoding import encode, run_id

__all__ = ["END", "READY", "Fields", "Task", "failure", "perform", "serve"]

READY, END = "ready", "end"

#: the fields of a record that only the worker knows
Fields = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """The missing runs of one group, by id."""

    experiment: str
    execute: Callable[[Sequence[Run]], Iterable[Outcome]]
    runs: Mapping[str, Run]


def serve(pipe: Connection) -> None:
    """Announce the worker, then take pickled tasks from the pipe and send (run, fields) until END."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send(READY)
    with suppress(EOFError, BrokenPipeError):
        while True:
            data = pipe.recv_bytes()
            try:
                task = pickle.loads(data)
            except Exception as problem:  # whatever the experiment's module raises when it is imported here
                pipe.send((None, failure(problem)))
                pipe.send(END)
                continue
            if "torch" in sys.modules:  # a later import reads OMP_NUM_THREADS
                sys.modules["torch"].set_num_threads(1)
            for message in perform(task):
                pipe.send(message)
            pipe.send(END)


def perform(task: Task) -> Iterator[tuple[str, Fields]]:
    """Execute a group and yield every one of its runs once, finished or failed."""
    missing = dict(task.runs)
    problem: Exception = RuntimeError("execute() ended without an outcome for this run")
    try:
        yield from _outcomes(task, missing)
    except Exception as raised:  # an experiment may raise anything; the other runs go on
        problem = raised
        if len(missing) > 1:
            for run, alone in missing.items():
                yield from perform(Task(task.experiment, task.execute, {run: alone}))
            return
    for run in missing:
        yield run, failure(problem)


def failure(problem: Exception | str) -> Fields:
    """What is recorded of a run that did not come to its end."""
    if isinstance(problem, str):
        status = {"state": "failed", "error": problem}
    else:
        status = {"state": "failed", "error": f"{type(problem).__name__}: {problem}"}
        if problem.__traceback__ is not None:
            last = traceback.extract_tb(problem.__traceback__)[-1]
            status["where"] = f"{os.path.basename(last.filename)}:{last.lineno} in {last.name}"
    empty: Fields = {"metrics": {}, "trace": {}, "score_calls": 0, "seconds": 0.0}
    return empty | {"status": status, "started": _now()}


def _outcomes(task: Task, missing: dict[str, Run]) -> Iterator[tuple[str, Fields]]:
    started, clock = _now(), time.perf_counter()
    for outcome in task.execute(tuple(missing.values())):
        run = run_id(task.experiment, outcome.run.method, outcome.run.seed, outcome.run.config)
        if run not in missing:
            raise ValueError(f"execute() gave an outcome for {outcome.run}, not asked for or given before")
        fields = _success(outcome, time.perf_counter() - clock, started)
        del missing[run]
        yield run, fields
        started, clock = _now(), time.perf_counter()


def _success(outcome: Outcome, seconds: float, started: str) -> Fields:
    lengths = {name: len(values) for name, values in outcome.trace.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the lists of a trace must have one length; got {lengths}")
    return {
        "metrics": encode(outcome.metrics, "metrics"),
        "trace": encode(outcome.trace, "trace"),
        "score_calls": int(outcome.score_calls),
        "seconds": float(seconds if outcome.seconds is None else outcome.seconds),
        "status": {"state": "done", "ended": outcome.ended},
        "started": started,
    }


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
