"""A pool on a Ray cluster: the same tasks, events and records as the local pool's (engine/workers.py).

A group of runs is one Ray task with one core and one thread. If the worker that executes it is lost, Ray
executes the group again on another one, up to three times; the outcomes of a group arrive when all of it is
done, so that no run of it has been recorded by then. Nothing is kept on the cluster: if this process is
killed, the same command continues from the records, as with the local pool. Every node needs the same
packages and files.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator
from typing import Any

from bayescore_lab.engine.workers import ONE_THREAD, Event, Task, failure, perform

__all__ = ["work_on_ray"]

TRIES = 3  # of a group whose worker was lost, after the first


def work_on_ray(
    next_task: Callable[[], Task | None], count: int | None, address: str | None = None
) -> Generator[Event, None, None]:
    """Execute tasks on a Ray cluster until `next_task` returns None; yield runs as they end.

    Arguments:
        count: groups that are executed at once; None: as many as the cluster has cores.
        address: of the cluster; None: one is started on this machine, and ended with this generator.
    """
    ray = _imported()
    began = not ray.is_initialized()
    if began:
        here: dict[str, Any] = {"num_cpus": count, "include_dashboard": False} if address is None else {}
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": ONE_THREAD},
            **here,
        )
    most = int(ray.cluster_resources().get("CPU", 1)) if count is None else count
    execute = ray.remote(num_cpus=1, max_retries=TRIES)(_executed)
    pending: dict[Any, Task] = {}
    try:
        while True:
            while len(pending) < most and (task := next_task()) is not None:
                pending[execute.remote(pickle.dumps(task))] = task
            if not pending:
                return
            ready, _ = ray.wait(list(pending), num_returns=1)
            for reference in ready:
                task = pending.pop(reference)
                try:
                    outcomes = ray.get(reference)
                except ray.exceptions.RayError as problem:
                    words = f"the Ray worker was lost ({type(problem).__name__}), {TRIES + 1} times"
                    outcomes = [(run, failure(words)) for run in task.runs]
                yield from (Event(task, run, fields) for run, fields in outcomes)
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        if began:
            ray.shutdown()


def _executed(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """What a worker of the cluster does: every run of a group, finished or failed."""
    return list(perform(pickle.loads(data)))


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ModuleNotFoundError("runs on a Ray cluster need Ray: pip install 'bayescore[ray]'") from error
    return ray
