"""A process that trains one network with one method, one turn at a time.

    python -m bayescore_lab.bench.step_worker

reads requests from standard input and writes answers to standard output, one line of JSON each:
    {"do": "build", "net", "method", "batch", "threads", "device", "preload"}   the network and the optimizer
    {"do": "turn", "steps"}                                                     so many steps, each timed
Every answer holds the memory of the process; what a method raises is an answer too, and the process lives on.
The process ends with its standard input, and is the first that the system kills when memory is short.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from bayescore_lab.bench.networks import Work, network
from bayescore_lab.bench.phases import PHASES, Phases, peak_memory, resident_memory
from bayescore_lab.bench.step_arms import Arm
from bayescore_lab.bench.step_methods import contestant

__all__ = ["Desk", "failure"]

LONGEST = 300  # characters of an error that a table can show


class Desk:
    """Answers requests about one network and one method."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.arm: Arm | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request asks for, with the memory that it took so far."""
        do = request.pop("do")
        try:
            found = self.build(**request) if do == "build" else self.turn(**request)
        except Exception as problem:  # whatever a peer raises belongs into its row
            return {"error": failure(problem)}
        return {**found, "peak": peak_memory(self.device), "resident": resident_memory(self.device)}

    def build(
        self, net: str, method: str, batch: int, threads: int | None, device: str, preload: bool = False
    ) -> dict[str, Any]:
        """Make the network, then the optimizer; `preload` imports the compiler before any clock starts."""
        if threads is not None:
            torch.set_num_threads(threads)
        if preload:
            import_module("torch._inductor.compile_fx")
        self.device = device
        entry = contestant(method)
        work = Work(network(net), batch, device)
        size, baseline = work.size, resident_memory(device)
        self.arm = entry.make(work)
        return {"weights": size, "baseline": baseline, "threads": torch.get_num_threads()}

    def turn(self, steps: int) -> dict[str, Any]:
        """So many steps; the seconds of each, in all and by phase."""
        if self.arm is None:
            raise RuntimeError("nothing has been built yet")
        gc.collect()
        seconds: list[float] = []
        phases: dict[str, list[float]] = {name: [] for name in PHASES}
        for _ in range(steps):
            timed = Phases(self.device)
            began = timed.now()
            self.arm.step(timed)
            seconds.append(timed.now() - began)
            for name in PHASES:
                phases[name].append(timed.seconds[name])
        return {"seconds": seconds, "phases": phases}


def failure(problem: Exception) -> str:
    """An error in the words of a table."""
    words = " ".join(str(problem).split())
    if isinstance(problem, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in words:
        return f"out of memory: {words[:LONGEST]}"
    if "update_in_backward" in words and isinstance(problem, TypeError):
        return "not available: this version has no update_in_backward"
    text = f"{type(problem).__name__}: {words}"
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    warnings.simplefilter("ignore")
    desk = Desk()
    for line in sys.stdin:
        answers.write(json.dumps(desk.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
