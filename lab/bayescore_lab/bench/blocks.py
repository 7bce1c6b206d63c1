"""Many worker processes in turns: as many at once as memory holds, with the anchor among them every time.

A block is a set of live workers. In each round every worker of the block has one turn of a few steps, in an
order that is turned round after every round, so that a disturbance of the machine hits all
alike. What does not fit beside the others waits for the next block, in which the anchor is measured again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from bayescore_lab.bench.timing import Tell
from bayescore_lab.bench.workers import MethodError, WorkerError

__all__ = ["Measured", "Out", "pack", "run_block"]

TURN = 0.2  # seconds that a turn shall last at least: small networks make several steps in a turn
MOST_STEPS = 50
HEAVY = 1.0  # seconds of a step from which one warm-up step must do


class Asked(Protocol):
    """What a block needs of a worker."""

    def ask(self, **request: Any) -> dict[str, Any]: ...
    def end(self) -> None: ...


class Out(Exception):
    """The time that was given for the whole run is over."""


@dataclass
class Measured:
    """What has been measured of one method so far; `note` says why there is no more."""

    seconds: list[float] = field(default_factory=list)  # of a step, one number per round
    phases: dict[str, list[float]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    note: str = ""
    again: bool = False  # whether another run may do better


def pack(names: Sequence[str], need: Mapping[str, int], anchor: str, room: int) -> list[list[str]]:
    """Blocks of methods whose needs fit into `room` bytes together.

    Every block begins with the anchor, except that of a method which fits only without it.
    """
    others = [name for name in names if name != anchor]
    blocks: list[list[str]] = []
    while others:
        block, left = ([anchor], room - need[anchor]) if anchor in need else ([], room)
        for name in list(others):
            if need[name] <= left:
                block.append(name)
                others.remove(name)
                left -= need[name]
        if block in ([anchor], []):
            block = [others.pop(0)]
        blocks.append(block)
    return blocks or [[anchor]]


def run_block(
    found: dict[str, Measured],
    start: Callable[[str], Asked],
    build: Callable[[str], Mapping[str, Any]],
    repeats: int,
    tell: Tell,
    deadline: float,
) -> None:
    """Measure the methods of a block, all of them alive, and write into `found`, which names them.

    Arguments:
        start, build: a worker for a method, and its "build" request.
        deadline: the time (time.monotonic) after which Out is raised, between two turns.
    """
    workers: dict[str, Asked] = {}

    def ask(name: str, **request: Any) -> dict[str, Any] | None:
        if time.monotonic() > deadline:
            raise Out
        try:
            return workers[name].ask(**request)
        except (MethodError, WorkerError) as why:
            found[name].note, found[name].again = str(why), isinstance(why, WorkerError)
            workers.pop(name).end()
            return None

    try:
        for name in found:
            tell(f"{name}: first steps")
            workers[name] = start(name)
            _begin(found[name], partial(ask, name), build(name))
        if not workers:
            return
        one = found[next(iter(workers))].numbers["warm_step_seconds"]
        steps = max(1, min(MOST_STEPS, math.ceil(TURN / one)))
        for i in range(repeats):
            for name in list(found)[:: 1 if i % 2 == 0 else -1]:
                if name in workers:
                    tell(f"{name}: round {i + 1} of {repeats}")
                    answer = ask(name, do="turn", steps=steps + (steps > 1))
                    if answer is not None:
                        _add(found[name], answer, skip=int(steps > 1))
    finally:
        for worker in workers.values():
            worker.end()


def _begin(row: Measured, ask: Callable[..., dict[str, Any] | None], request: Mapping[str, Any]) -> None:
    """Build, make the first step, and warm up."""
    built = ask(do="build", **request)
    first = ask(do="turn", steps=1) if built else None
    if built is None or first is None:
        return
    row.numbers |= {key: built[key] for key in ("weights", "baseline", "threads")}
    row.numbers["first_step_seconds"] = first["seconds"][0]
    warm = ask(do="turn", steps=1)
    if warm and warm["seconds"][0] < HEAVY:
        warm = ask(do="turn", steps=2)
    if warm:
        row.numbers["warm_step_seconds"] = warm["seconds"][-1]
        row.numbers["peak"] = warm["peak"]


def _add(row: Measured, answer: Mapping[str, Any], skip: int) -> None:
    """A turn as one number per phase: the median of its steps, without the one that wakes the process."""
    row.seconds.append(statistics.median(answer["seconds"][skip:]))
    for name, values in answer["phases"].items():
        row.phases.setdefault(name, []).append(statistics.median(values[skip:]))
    row.numbers["peak"] = answer["peak"]
    row.numbers["resident"] = answer["resident"]
