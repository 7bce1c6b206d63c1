"""A process that trains one network with one method, one turn at a time.

    python -m bayescore_lab.bench.step_worker

answers requests (engine/workers.py):
    {"do": "build", "net", "method", "batch", "threads", "device", "preload"}   the network and the optimizer
    {"do": "turn", "steps"}                                                     so many steps, each timed
Every answer holds the memory of the process; what a method raises is an answer too, and the process lives on.
The process ends with its standard input, and is the first that the system kills when memory is short.
"""

from __future__ import annotations

import gc
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from bayescore_lab.bench.networks import Workload, network
from bayescore_lab.bench.steppers import Stepper, make_stepper, step_method
from bayescore_lab.bench.timing import PHASES, StepClock, peak_memory, resident_memory
from bayescore_lab.engine.workers import answer_requests

__all__ = ["StepServer", "failure"]

LONGEST = 300  # characters of an error that a table can show


class StepServer:
    """Answers requests about one network and one method."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.stepper: Stepper | None = None

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
        chosen = step_method(method)
        work = Workload(network(net), batch, device)
        size, baseline = work.size, resident_memory(device)
        self.stepper = make_stepper(chosen, work)
        return {"weights": size, "baseline": baseline, "threads": torch.get_num_threads()}

    def turn(self, steps: int) -> dict[str, Any]:
        """So many steps; the seconds of each, in all and by phase."""
        if self.stepper is None:
            raise RuntimeError("nothing has been built yet")
        gc.collect()
        seconds: list[float] = []
        phases: dict[str, list[float]] = {name: [] for name in PHASES}
        for _ in range(steps):
            clock = StepClock(self.device)
            began = clock.now()
            self.stepper.step(clock)
            seconds.append(clock.now() - began)
            for name in PHASES:
                phases[name].append(clock.seconds[name])
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
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    warnings.simplefilter("ignore")
    answer_requests(lambda: StepServer().answer)


if __name__ == "__main__":
    main()
