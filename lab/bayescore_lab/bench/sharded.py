"""`bench sharded`: what a training step costs on a network that several processes hold together by FSDP2.

Peak memory is that of a process, so every method has processes of its own, which make two steps. The C
library keeps freed blocks of up to 32 MB for later, in holes of which a part is never filled again, and which
holes there are depends on the order of events more than on the method (docs/benchmarks.md). These processes
therefore return blocks from 1 MB on, so that the peak is that of memory in use.

Times are compared within one set of processes, in which the methods take turns on the same sharded network:
whatever slows the machine down slows all of them. These keep the usual allocator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayescore_lab.bench.choices import ANCHOR, Network
from bayescore_lab.bench.results import Part, Ratio, Row
from bayescore_lab.bench.step import TimeUp
from bayescore_lab.bench.steppers import step_method
from bayescore_lab.bench.timing import Notify

__all__ = ["MEMORY_STEPS", "launch", "sharded_part"]

WORKER = "bayescore_lab.bench.sharded_worker"
MEMORY_STEPS = 2
WARM_UP = 2  # steps that are not timed
OURS = "proximal"
TIME_BAR = 1.1  # over AdamW's under the same sharding
MEMORY_BARS = {True: 1.05, False: 1.0}  # the same, and without sharding
RETURNING = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={1 << 20}"}
POLL = 0.1  # seconds


def launch(
    processes: int, deadline: float, environment: Mapping[str, str] | None = None, **request: Any
) -> dict[str, Any]:
    """Run processes that train one network together; returns what the first of them tells.

    Arguments:
        deadline: the time (time.monotonic) at which they are ended, with TimeUp.
        environment: variables that they have in addition.
        request: see sharded_worker.py.
    """
    with tempfile.TemporaryDirectory(prefix="bayescore-bench-") as folder, tempfile.TemporaryFile() as errors:
        shared = {**request, "processes": processes, "meeting": str(Path(folder) / "meeting")}
        commands = [
            [sys.executable, "-m", WORKER, json.dumps({**shared, "rank": rank})] for rank in range(processes)
        ]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors}
        around = {**os.environ, **(environment or {})}
        workers = [subprocess.Popen(each, env=around, **streams) for each in commands]
        try:
            codes = [worker.poll() for worker in workers]
            while None in codes and not any(codes):
                if time.monotonic() > deadline:
                    raise TimeUp
                time.sleep(POLL)
                codes = [worker.poll() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
            told = [worker.communicate()[0] for worker in workers]
        if any(codes):
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip()[-300:]
            raise RuntimeError(f"a process of the sharded network ended with the codes {codes}: {words}")
        found: dict[str, Any] = json.loads(told[0])
        return found


def sharded_part(
    net: Network,
    batch: int,
    processes: int,
    methods: Sequence[str],
    repeats: int,
    deadline: float,
    notify: Notify,
) -> Part:
    """Memory method by method, then times in turns; with `repeats` of 0 there are no times."""
    shared: dict[str, Any] = {"net": net.name, "batch": batch}
    numbers: dict[str, dict[str, float]] = {}
    weights = 0
    for name in methods:
        notify(f"{net.name}: peak memory of {name}")
        asked = {**shared, "methods": [name], "rounds": MEMORY_STEPS, "skip": 0}
        found = launch(processes, deadline, RETURNING, **asked)
        numbers[name], weights = {"peak": max(found["peaks"])}, found["weights"]
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    phases: dict[str, dict[str, list[float]]] = {name: {} for name in methods}
    if repeats:
        notify(f"{net.name}: {repeats} rounds in turns")
        asked = {**shared, "methods": list(methods), "rounds": repeats, "skip": WARM_UP}
        found = launch(processes, deadline, **asked)
        seconds, phases = found["seconds"], found["phases"]
    rows = {
        name: Row(
            net.name,
            name,
            tuple(seconds[name]),
            setting=step_method(name).title,
            note="" if repeats else f"{numbers[name]['peak'] / 1e9:.3f} GB; not timed",
            phases={phase: tuple(values) for phase, values in phases[name].items()},
            numbers=numbers[name],
        )
        for name in methods
    }
    sharded = processes > 1
    where = f"FSDP2 on {processes} processes" if sharded else "one process, not sharded"
    notes = [
        f"{weights:,} weights, {where}, one thread each, batch {batch} per process, float32; peak memory is "
        f"that of the largest process over {MEMORY_STEPS} steps"
    ]
    notes += [
        f"peak memory of {name}: {ratio:.3g} x {ANCHOR}{_bar(name, ratio, sharded)}"
        for name, ratio in _memory_ratios(numbers).items()
    ]
    ratios = [
        Ratio.between(rows[name], rows[ANCHOR], TIME_BAR if name == OURS else None, at_least=False)
        for name in methods
        if repeats and ANCHOR in rows and name != ANCHOR
    ]
    return Part(
        name=f"sharded {net.name}",
        title=f"one training step of {net.title}, {where}",
        kind="profile",
        config={**shared, "processes": processes, "methods": list(methods), "repeats": repeats},
        rows=tuple(rows.values()),
        ratios=tuple(ratios),
        notes=tuple(notes),
    )


def _memory_ratios(numbers: dict[str, dict[str, float]]) -> dict[str, float]:
    if ANCHOR not in numbers:
        return {}
    least = numbers[ANCHOR]["peak"]
    return {name: each["peak"] / least for name, each in numbers.items() if name != ANCHOR}


def _bar(name: str, ratio: float, sharded: bool) -> str:
    bar = MEMORY_BARS[sharded]
    return f" (<= {bar:g}: {'met' if ratio <= bar else 'missed'})" if name == OURS else ""
