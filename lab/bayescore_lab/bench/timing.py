"""Timing side by side: arms take turns on one thread, and only ratios within one round are compared.

A busy machine slows down for seconds at a time. Arms that take turns, in an order that is turned round after
every round, meet the same disturbances; the median of the rounds' ratios is what counts, with its range.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

__all__ = [
    "CoreShare",
    "Spread",
    "Tell",
    "about",
    "median_interval",
    "one_thread",
    "rounds",
    "seconds_of",
    "spread",
]

Tell = Callable[[str], None]
T = TypeVar("T")
QUIET = 0.8  # share of a core below which the machine counts as busy


def about(subject: str, tell: Tell) -> Tell:
    """Tell the same, with its subject in front."""
    return lambda text: tell(f"{subject}, {text}")


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def median_interval(values: Sequence[float]) -> Spread:
    """Median with a distribution-free 95 % interval for it, from order statistics.

    Up to 5 values cannot bear 95 %: the interval is then their range.
    """
    ordered, n = sorted(values), len(values)
    cut = 0  # how many values lie outside on each side
    while 2 * sum(math.comb(n, k) for k in range(cut + 1)) <= 0.05 * 2**n:
        cut += 1
    low = max(cut - 1, 0)
    return Spread(statistics.median(ordered), ordered[low], ordered[n - 1 - low])


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


def rounds(arms: Mapping[str, Callable[[int], T]], repeats: int, tell: Tell) -> dict[str, list[T]]:
    """What every arm answers to the rounds 0, 1, ...; in a round each arm has one turn."""
    answers: dict[str, list[T]] = {name: [] for name in arms}
    for i in range(repeats):
        for name in list(arms)[:: 1 if i % 2 == 0 else -1]:
            tell(f"round {i + 1} of {repeats}: {name}")
            answers[name].append(arms[name](i))
    return answers
