"""Processes: a pool that executes runs, a process that answers requests, and one that answers once.

The pool (`work`) hands groups of runs to worker processes, each with a pipe of its own and one thread. A
worker executes a group and reports every run. A group that raises is executed again run by run, so that only
the culprits fail: the result of a run does not depend on its group, except for its last digits. A worker that
dies takes the runs it had not reported with it and nothing else; another one takes its place. When the
parent dies, even by kill -9, the worker ends by itself.

A process that answers requests (`Worker` on this side, `answer_requests` on the other) reads one line of JSON
from its standard input and writes one to its standard output. The benchmarks measure in such processes.
`ask_once` is the same for a single request.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

from bayescore_lab.engine.declare import Execute, Run, RunOutcome
from bayescore_lab.engine.records import check_outcome, dumps, encode, loads, run_id

__all__ = [
    "ONE_THREAD",
    "Answer",
    "Answered",
    "Event",
    "RequestError",
    "Task",
    "Worker",
    "WorkerError",
    "WorkerSilentError",
    "answer_requests",
    "ask_once",
    "failure",
    "perform",
    "work",
]

#: what makes libraries of numbers compute with one thread
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
_READY, _END = "ready", "end"


#: the fields of a record that only the worker knows
Fields = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """The runs of one group, by id; the outcomes of those that are `recorded` are dropped."""

    experiment: str
    execute: Execute
    runs: Mapping[str, Run]
    recorded: Set[str] = frozenset()


@dataclass(frozen=True)
class Event:
    """A run that ended, finished or failed."""

    task: Task
    run: str
    fields: Fields


@dataclass
class _PoolWorker:
    process: SpawnProcess
    pipe: Connection
    ready: bool = False
    task: Task | None = None
    waiting: list[str] = field(default_factory=list)

    def send(self, task: Task) -> None:
        try:
            data = pickle.dumps(task)
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise TypeError(
                f"other processes cannot import what {task.experiment} executes ({problem}); "
                "make `execute` a function at the top level of a module, with configs of plain values"
            ) from problem
        self.task, self.waiting = task, list(task.runs)
        with suppress(OSError):  # a worker that died while idle is noticed when its answer is awaited
            self.pipe.send_bytes(data)

    def receive(self) -> list[Event]:
        """Take the next message, if there is one; raises OSError if the worker is dead."""
        assert self.task is not None
        alive = self.process.is_alive()  # asked before the pipe, which may still hold its last message
        if not self.pipe.poll():
            if not alive:
                raise BrokenPipeError
            return []
        try:
            message = self.pipe.recv()
        except EOFError as end:
            raise BrokenPipeError from end
        if message == _READY:
            self.ready = True
            return []
        if message == _END:
            self.task = None
            return []
        run, fields = message
        if run is None:
            return self.fail_rest(fields)
        self.waiting.remove(run)
        return [Event(self.task, run, fields)]

    def fail_rest(self, fields: Fields) -> list[Event]:
        assert self.task is not None
        events = [Event(self.task, run, fields) for run in self.waiting]
        self.waiting = []
        return events


def work(next_task: Callable[[], Task | None], count: int) -> Generator[Event, None, None]:
    """Execute tasks on `count` processes until `next_task` returns None; yield runs as they end.

    Closing the iterator stops the workers at once.
    """
    workers: list[_PoolWorker] = []
    try:
        while True:
            idle = [worker for worker in workers if worker.task is None]
            while len(workers) - len(idle) < count and (task := next_task()) is not None:
                if not idle:
                    workers.append(_start())
                    idle = [workers[-1]]
                idle.pop().send(task)
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            wait([end for worker in busy for end in (worker.pipe, worker.process.sentinel)])
            for worker in busy:
                try:
                    events = worker.receive()
                except OSError:
                    workers.remove(worker)
                    events = worker.fail_rest(failure(_how_it_ended(worker)))
                yield from events
    finally:
        _stop(workers)


def _start() -> _PoolWorker:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,))
    with _environment(ONE_THREAD), _interrupts_ignored():
        process.start()
    there.close()  # from here on, the end of the worker is the end of the pipe
    return _PoolWorker(process, here)


def _stop(workers: Sequence[_PoolWorker]) -> None:
    for worker in workers:
        if worker.task is None:
            worker.pipe.close()  # it then ends by itself, and cleans up
        else:
            worker.process.terminate()
    for worker in workers:
        worker.process.join(5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _how_it_ended(worker: _PoolWorker) -> str:
    worker.process.join()
    worker.pipe.close()
    code = worker.process.exitcode or 0
    if not worker.ready:
        raise RuntimeError(
            f"a worker process ended with code {code} before it could start; a script that runs experiments "
            "must do so below `if __name__ == '__main__':`"
        )
    if code < 0:
        name = signal.Signals(-code).name
        return f"the worker process was killed by {name}, by hand or because memory ran out"
    return f"the worker process ended with code {code} in the middle of its runs"


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal; a child started in here leaves it to the parent."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(pipe: Connection) -> None:
    """What a worker process does: announce itself, then take pickled tasks and send (run, fields)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send(_READY)
    with suppress(EOFError, BrokenPipeError):
        while True:
            data = pipe.recv_bytes()
            try:
                task = pickle.loads(data)
            except Exception as problem:  # whatever the experiment's module raises when it is imported here
                pipe.send((None, failure(problem)))
                pipe.send(_END)
                continue
            if "torch" in sys.modules:  # a later import reads OMP_NUM_THREADS
                sys.modules["torch"].set_num_threads(1)
            for message in perform(task):
                pipe.send(message)
            pipe.send(_END)


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
    """The fields of the record of a run that failed."""
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


def _success(outcome: RunOutcome, seconds: float, started: str) -> Fields:
    metrics, trace = encode(outcome.metrics, "metrics"), encode(outcome.trace, "trace")
    check_outcome(loads(dumps(metrics)), loads(dumps(trace)))  # as they will be read back
    return {
        "metrics": metrics,
        "trace": trace,
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


class WorkerError(RuntimeError):
    """A worker was killed, did not answer or ran out of memory: another attempt may succeed."""


class WorkerSilentError(WorkerError):
    """A worker has not answered for too long."""


class RequestError(RuntimeError):
    """A worker answered that the request failed, with the error's message."""


class Worker:
    """A process that answers requests; use it in a `with` statement.

    Arguments:
        command: the module of the process, which calls `answer_requests`, or a whole command.
        patience: seconds without an answer after which the process counts as hung.
        environment: variables of the process, in addition to those of this one.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        patience: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.patience = patience
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            (sys.executable, "-m", command) if isinstance(command, str) else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is for this process, which then ends the other
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """End the process; harmless to repeat."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                with suppress(OSError):  # a pipe whose reader is gone cannot be flushed, and need not be
                    stream.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request; raises WorkerError if there is none, RequestError if it is an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line()
        except OSError as problem:
            raise WorkerError(self._ending()) from problem
        if not line:
            raise WorkerError(self._ending())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = WorkerError if answer["error"].startswith("out of memory") else RequestError
            raise kind(answer["error"])
        return answer

    def _line(self) -> bytes:
        """The next line of the process, or nothing if it has ended."""
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            if not selector.select(self.patience):
                self.end()
                raise WorkerSilentError(f"stopped: no answer within {self.patience:g} s")
        return out.readline()

    def _ending(self) -> str:
        """How the process ended, in words."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "killed by the system, as happens when memory runs out"
        if code < 0:
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with exit code {code}: {lines[-1] if lines else 'no message'}"


#: a function from a request to its answer
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def answer_requests(prepare: Callable[[], Answer]) -> None:
    """The other side of a `Worker`: prepare, then answer every request until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints, when it is imported or later, must not mix with the answers
    answer = prepare()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


@dataclass(frozen=True)
class Answered:
    """How a process of one request ended: its exit code, its answer if there is one, and its messages."""

    code: int
    answer: dict[str, Any] | None
    errors: str


def ask_once(module: str, request: Mapping[str, Any]) -> Answered:
    """Run a module with a request in JSON as its argument, on one thread; its last line is the answer."""
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(dict(request))],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = done.stdout.splitlines()
    answer = json.loads(lines[-1]) if lines and not done.returncode else None
    return Answered(done.returncode, answer, done.stderr.strip())
