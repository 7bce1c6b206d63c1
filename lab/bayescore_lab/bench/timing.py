"""Timing side by side: arms take turns on one thread, and only ratios within one round are compared.

A busy machine slows down for seconds at a time. Arms that take turns, in an order that is reversed after
every round, have the same disturbances; the result is the median of the rounds' ratios, with its range.

`StepClock` divides a training step into its phases; the memory of a process is measured here too.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from bayescore_lab.engine.statistics import Interval, median_interval, median_range

__all__ = [
    "PHASES",
    "CoreShare",
    "Notify",
    "StepClock",
    "interval_or_range",
    "one_thread",
    "peak_memory",
    "prefixed",
    "resident_memory",
    "rounds",
    "seconds_of",
]

#: shows a line about what is being done
Notify = Callable[[str], None]
T = TypeVar("T")
PHASES = ("forward", "backward", "update", "noise")
QUIET = 0.8  # share of a core below which the machine counts as busy


def prefixed(subject: str, notify: Notify) -> Notify:
    """The same notices with their subject in front."""
    return lambda text: notify(f"{subject}, {text}")


def interval_or_range(values: Sequence[float]) -> Interval:
    """The median with its 95 % interval; up to 5 values cannot bear one, and have their range instead."""
    found = median_interval(values)
    return found if found.known else median_range(values)


class CoreShare:
    """How much of one core this process has had since the object was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    @property
    def value(self) -> float:
        wall, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return cpu / wall

    def notes(self) -> tuple[str, ...]:
        """A warning where the machine was busy."""
        value = self.value
        if value >= QUIET:
            return ()
        return (
            f"the machine was busy (this run had {value:.0%} of a core): trust the ratios, not the times",
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_of(run: Callable[[], object]) -> float:
    """Wall-clock time of one call, after a garbage collection."""
    gc.collect()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def rounds(arms: Mapping[str, Callable[[int], T]], repeats: int, notify: Notify) -> dict[str, list[T]]:
    """What every arm answers to the rounds 0, 1, ...; in a round each arm has one turn."""
    answers: dict[str, list[T]] = {name: [] for name in arms}
    for i in range(repeats):
        for name in list(arms)[:: 1 if i % 2 == 0 else -1]:
            notify(f"round {i + 1} of {repeats}: {name}")
            answers[name].append(arms[name](i))
    return answers


class StepClock:
    """Seconds of a step by phase; `with clock("update"):` adds to one of them."""

    def __init__(self, device: str = "cpu") -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._cuda = device.startswith("cuda")

    def now(self) -> float:
        """The time, once the device has done what it was given."""
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[name] += seconds

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = self.now()
        yield
        self.add(name, self.now() - began)


def peak_memory(device: str = "cpu") -> int:
    """Bytes that this process, or the device for it, has held at most."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else _proc("VmHWM")


def resident_memory(device: str = "cpu") -> int:
    """Bytes that this process, or the device for it, holds now."""
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else _proc("VmRSS")


def _proc(field: str) -> int:
    """A line of /proc/self/status in bytes; elsewhere what the system says about the peak."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            for line in lines:
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
