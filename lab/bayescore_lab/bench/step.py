"""`bench step`: what one training step costs in time and memory, method beside method."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bayescore.checks import available_memory
from bayescore.nn import memory_estimate
from bayescore_lab.bench.blocks import Measured, Out, pack, run_block
from bayescore_lab.bench.kept import Kept, KeptRow
from bayescore_lab.bench.networks import Network
from bayescore_lab.bench.step_methods import ANCHOR, contestant
from bayescore_lab.bench.timing import Tell
from bayescore_lab.bench.workers import MethodError, Worker, WorkerError, cache_variables

__all__ = ["Plan", "measure", "needs"]

PROCESS = 500_000_000  # bytes of an interpreter with torch, its compiler and a peer
ROOM = 0.9  # share of the free memory that the workers may fill


@dataclass(frozen=True)
class Plan:
    """How a network is measured.

    Arguments:
        patience: seconds that one answer of a worker may take.
        deadline: the time (time.monotonic) at which to stop with what there is.
        latency: whether to measure the first step of our methods with an empty and a filled compile cache.
        code: names the version of the source; rows of other versions are not taken up again.
    """

    net: Network
    batch: int
    methods: tuple[str, ...]
    repeats: int
    device: str = "cpu"
    threads: int | None = None
    patience: float = 600.0
    deadline: float = float("inf")
    latency: bool = True
    code: str = ""

    @property
    def key(self) -> dict[str, Any]:
        """What makes two measurements the same."""
        threads = self.threads or torch.get_num_threads()
        found = {"net": self.net.name, "batch": self.batch, "device": self.device, "threads": threads}
        return {**found, "repeats": self.repeats, "latency": self.latency, "code": self.code}

    def build(self, method: str) -> dict[str, Any]:
        """The "build" request of a worker."""
        what = {"net": self.net.name, "method": method, "batch": self.batch}
        return {**what, "threads": self.threads, "device": self.device}

    @property
    def names(self) -> tuple[str, ...]:
        """The methods, the anchor first."""
        return (ANCHOR, *(name for name in self.methods if name != ANCHOR))


def needs(plan: Plan) -> dict[str, int]:
    """Bytes that each method will hold, roughly: copies of the weights, and activations."""
    with torch.device("meta"):
        model = plan.net.make()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    shape, active = plan.net.inputs(plan.batch), 0
    if shape is not None:
        found = memory_estimate(model, "sgd", shape)
        active = found.activations + found.heap
    extra = 0 if plan.device.startswith("cuda") else PROCESS
    return {name: int(contestant(name).copies * weights) + active + extra for name in plan.names}


def measure(plan: Plan, kept: Kept, tell: Tell) -> Iterator[None]:
    """Measure what `kept` does not hold yet; yields after every block. Out and Ctrl-C keep what there is."""
    have = kept.rows(plan.key)
    todo = [name for name in plan.names if name not in have or not have[name].done]
    absent = [name for name in todo if contestant(name).missing]
    kept.add([_absent(plan, name, contestant(name).missing or "", again=True) for name in absent])
    todo = [name for name in todo if name not in absent]
    if not todo:
        return
    need, room = needs(plan), int(ROOM * _free(plan.device))
    large = [name for name in todo if need[name] > room]
    for name in large:
        tell(f"{name}: is it too large?")
        kept.add([_too_large(plan, name, need[name], room)])
    todo = [name for name in todo if name not in large]
    for block in pack(todo, {n: b for n, b in need.items() if n not in large}, ANCHOR, room) if todo else []:
        with _Caches(plan, tell) as caches:
            _run(plan, block, caches, kept, have, tell)
        have = kept.rows(plan.key)
        yield


def _run(
    plan: Plan, block: list[str], caches: _Caches, kept: Kept, have: Mapping[str, KeptRow], tell: Tell
) -> None:
    """Measure one block and keep its rows, also when it is interrupted."""
    name, found, load = uuid.uuid4().hex[:8], {each: Measured() for each in block}, os.getloadavg()[0]
    wanted = [each for each in block if each not in have or not have[each].done]
    try:
        if plan.latency:
            caches.fill([each for each in wanted if contestant(each).own])
        run_block(found, caches.worker, plan.build, plan.repeats, tell, plan.deadline)
    finally:
        anchor = found[ANCHOR].seconds if ANCHOR in found else []
        rows = []
        for each in wanted:
            row = found[each]
            if not (row.seconds or row.note):
                continue
            row.numbers |= {**caches.latencies.get(each, {}), "load_average": round(load, 2)}
            done = len(row.seconds) >= plan.repeats or bool(row.note and not row.again)
            note = row.note or ("" if done else f"{len(row.seconds)} of {plan.repeats} rounds")
            what = (row.seconds, row.phases, row.numbers, anchor[: len(row.seconds)], note, done)
            rows.append(KeptRow(plan.key, each, name, *what))
        kept.add(rows)


class _Caches:
    """Compile caches of this run alone, one per method, and how long the first step takes with them."""

    def __init__(self, plan: Plan, tell: Tell) -> None:
        self.plan, self.tell = plan, tell
        self.latencies: dict[str, dict[str, float]] = {}

    def __enter__(self) -> _Caches:
        self._folder = tempfile.TemporaryDirectory(prefix="bayescore-bench-", ignore_cleanup_errors=True)
        return self

    def __exit__(self, *ending: object) -> None:
        self._folder.cleanup()

    def worker(self, method: str) -> Worker:
        """A worker for a method."""
        own = self.plan.latency and contestant(method).own
        return Worker(self.plan.patience, cache_variables(Path(self._folder.name) / method) if own else None)

    def fill(self, methods: Sequence[str]) -> None:
        """Make the first step twice in processes of their own: with an empty cache, and with a full one."""
        for method in methods:
            for state in ("cold", "warm"):
                if time.monotonic() > self.plan.deadline:
                    raise Out
                self.tell(f"{method}: first step, {state} cache")
                with self.worker(method) as worker:
                    try:
                        worker.ask(do="build", **self.plan.build(method), preload=True)
                        seconds = worker.ask(do="turn", steps=1)["seconds"][0]
                    except (MethodError, WorkerError):
                        break  # the measurement itself will say why
                self.latencies.setdefault(method, {})[f"{state}_first_step_seconds"] = seconds


def _too_large(plan: Plan, method: str, need: int, room: int) -> KeptRow:
    """Why a method that does not fit is not run; one that cannot even be set up says so itself."""
    why = f"not run: it needs about {need / 1e9:.1f} GB and {room / 1e9:.1f} GB are free"
    try:
        with Worker(plan.patience) as worker:
            worker.ask(do="build", **plan.build(method))
    except MethodError as problem:
        return _absent(plan, method, str(problem), again=False)
    except WorkerError:
        pass
    return _absent(plan, method, why, again=True)


def _absent(plan: Plan, method: str, why: str, *, again: bool) -> KeptRow:
    return KeptRow(plan.key, method, "", note=why, done=not again)


def _free(device: str) -> int:
    """Bytes that can be had now."""
    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else available_memory()
