"""Where the time of a step goes, and what a process holds in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["PHASES", "Phases", "peak_memory", "resident_memory"]

PHASES = ("forward", "backward", "update", "noise")


class Phases:
    """Seconds by phase; `with timed("update"):` adds to one of them."""

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
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
