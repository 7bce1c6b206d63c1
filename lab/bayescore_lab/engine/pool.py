"""The parent's side of the worker processes: each has a pipe of its own and survives the others' death.

A worker that dies takes the runs it had not reported with it and nothing else; another one takes its place.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from bayescore_lab.engine.worker import END, READY, Fields, Task, failure, serve

__all__ = ["Event", "work"]

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


@dataclass(frozen=True)
class Event:
    """A run that ended, finished or failed."""

    task: Task
    run: str
    fields: Fields


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    ready: bool = False
    task: Task | None = None
    waiting: list[str] = field(default_factory=list)

    def give(self, task: Task) -> None:
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

    def hear(self) -> list[Event]:
        """Take the next message, if there is one; OSError where the worker is dead."""
        assert self.task is not None
        alive = self.process.is_alive()  # asked before the pipe: its last words come first
        if not self.pipe.poll():
            if not alive:
                raise BrokenPipeError
            return []
        try:
            message = self.pipe.recv()
        except EOFError as end:
            raise BrokenPipeError from end
        if message == READY:
            self.ready = True
            return []
        if message == END:
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
    workers: list[_Worker] = []
    try:
        while True:
            idle = [worker for worker in workers if worker.task is None]
            while len(workers) - len(idle) < count and (task := next_task()) is not None:
                if not idle:
                    workers.append(_start())
                    idle = [workers[-1]]
                idle.pop().give(task)
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            wait([end for worker in busy for end in (worker.pipe, worker.process.sentinel)])
            for worker in busy:
                try:
                    events = worker.hear()
                except OSError:
                    workers.remove(worker)
                    events = worker.fail_rest(failure(_obituary(worker)))
                yield from events
    finally:
        _stop(workers)


def _start() -> _Worker:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,))
    with _environment(_ONE_THREAD), _interrupts_ignored():
        process.start()
    there.close()  # from here on, the end of the worker is the end of the pipe
    return _Worker(process, here)


def _stop(workers: Sequence[_Worker]) -> None:
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


def _obituary(worker: _Worker) -> str:
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
