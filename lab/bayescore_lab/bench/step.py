"""`bench step`: what one training step costs in time and memory, for all methods side by side.

Every method has its own worker process. A block is a set of workers that run at the same time: as many as fit
in memory, always including the anchor. In each round every worker of the block has one turn of a few steps,
in an order that is reversed after every round, so that a disturbance of the machine affects all of them.
Methods that do not fit wait for the next block, in which the anchor is measured again.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from bayescore.checks import available_memory
from bayescore.nn import memory_estimate
from bayescore_lab.bench.choices import ANCHOR, BASELINES, Network
from bayescore_lab.bench.networks import make_network
from bayescore_lab.bench.results import Part, Ratio, Row
from bayescore_lab.bench.steppers import step_method
from bayescore_lab.bench.timing import Notify
from bayescore_lab.engine.records import Lines, dumps, loads
from bayescore_lab.engine.shapes import Each, check_shape
from bayescore_lab.engine.workers import RequestError, Worker, WorkerError

__all__ = [
    "Measurement",
    "Measurements",
    "MethodTimes",
    "StepPlan",
    "TimeUp",
    "measure",
    "needs",
    "pack",
    "run_block",
    "step_part",
]

WORKER = "bayescore_lab.bench.step_worker"
PROCESS = 500_000_000  # bytes of an interpreter with torch, its compiler and a peer
ROOM = 0.9  # share of the free memory that the workers may fill
TURN = 0.2  # seconds that a turn shall last at least: small networks make several steps in a turn
MOST_STEPS = 50
HEAVY = 1.0  # seconds of a step from which one warm-up step must do
LARGE = {
    ("proximal", "adamw"): 1.0,
    ("proximal", "adamw-fused"): 1.15,
    ("proximal-gradient", "adamw"): 1.15,
}
#: the largest ratios that count as the price of AdamW: network, (method, baseline), bar
TIME_BARS = {
    "mlp": {("proximal", "adamw"): 1.15},
    "mlp-tiny": {("proximal", "adamw"): 1.5},
    "resnet101": LARGE,
    "vit_l_32": LARGE,
}
MEMORY_BARS = {"proximal": 1.25, "proximal-in-backward": 1.0}  # peak over AdamW's
WITH_MEMORY_BARS = ("resnet101", "vit_l_32")
SMALL, SMALL_BAR = "mlp-small", 1e-3  # seconds that a step of a small network may take longer than AdamW's


@dataclass(frozen=True)
class StepPlan:
    """How a network is measured.

    Arguments:
        patience: seconds that one answer of a worker may take.
        deadline: the time (time.monotonic) at which to stop with what there is.
        latency: whether to measure the first step of our methods with an empty and a filled compile cache.
        code: names the version of the source; measurements of other versions do not count.
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


@dataclass(frozen=True)
class Measurement:
    """One method on one network.

    Arguments:
        key: what was measured and with which code; measurements of another key do not count.
        block: names the set of processes among which it was measured.
        anchor: the anchor's seconds in the same rounds; empty where it was not there.
        done: whether it need not be measured again.
    """

    key: dict[str, Any]
    method: str
    block: str
    seconds: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    anchor: list[float] = field(default_factory=list)
    note: str = ""
    done: bool = True

    def line(self) -> bytes:
        """As one line of JSON, with its newline."""
        return (dumps(vars(self)) + "\n").encode()

    @classmethod
    def parse(cls, line: bytes) -> Measurement:
        """The inverse of `line`; ValueError where it is no measurement, or one of another version."""
        values = loads(line)
        check_shape(values, _MEASUREMENT, "the measurement")
        if strange := values.keys() - _MEASUREMENT.keys():
            raise ValueError(f"the measurement has the unknown field {min(strange)!r:.40}")
        if not all(0 < number < math.inf for number in (*values["seconds"], *values["anchor"])):
            raise ValueError("the measurement has seconds that are not positive numbers")
        return cls(**values)


_MEASUREMENT = {
    "key": dict,
    "method": str,
    "block": str,
    "seconds": [float],
    "phases": Each([float]),
    "numbers": Each(float),
    "anchor": [float],
    "note": str,
    "done": bool,
}


class Measurements:
    """What a benchmark has measured; with a file an interrupted one goes on where it stopped."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = None if path is None else Lines(path, Measurement.parse, Measurement.line)
        self._all = [] if self._file is None else self._file.read()

    def add(self, found: Sequence[Measurement]) -> None:
        """Keep further measurements; of two with the same key and method the later counts."""
        self._all += found
        if self._file is not None and found:
            self._file.append(*found)

    def of(self, key: dict[str, Any]) -> dict[str, Measurement]:
        """The measurements of a key by method."""
        return {one.method: one for one in self._all if one.key == key}


def needs(plan: StepPlan) -> dict[str, int]:
    """Bytes that each method will hold, roughly: copies of the weights, and activations."""
    with torch.device("meta"):
        model = make_network(plan.net)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    shape, active = plan.net.inputs(plan.batch), 0
    if shape is not None:
        found = memory_estimate(model, "sgd", shape)
        active = found.activations + found.heap
    extra = 0 if plan.device.startswith("cuda") else PROCESS
    return {name: int(step_method(name).copies * weights) + active + extra for name in plan.names}


def measure(plan: StepPlan, store: Measurements, notify: Notify) -> Iterator[None]:
    """Measure what `store` does not hold yet; yields after every block. An interruption loses nothing."""
    have = store.of(plan.key)
    todo = [name for name in plan.names if name not in have or not have[name].done]
    absent = [name for name in todo if step_method(name).missing]
    store.add([_absent(plan, name, step_method(name).missing or "", again=True) for name in absent])
    todo = [name for name in todo if name not in absent]
    if not todo:
        return
    need, room = needs(plan), int(ROOM * _free(plan.device))
    large = [name for name in todo if need[name] > room]
    for name in large:
        notify(f"{name}: is it too large?")
        store.add([_too_large(plan, name, need[name], room)])
    todo = [name for name in todo if name not in large]
    for block in pack(todo, {n: b for n, b in need.items() if n not in large}, ANCHOR, room) if todo else []:
        with _Caches(plan, notify) as caches:
            _run(plan, block, caches, store, have, notify)
        have = store.of(plan.key)
        yield


def _run(
    plan: StepPlan,
    block: list[str],
    caches: _Caches,
    store: Measurements,
    have: Mapping[str, Measurement],
    notify: Notify,
) -> None:
    """Measure one block and keep what was measured, also when it is interrupted."""
    name, found, load = uuid.uuid4().hex[:8], {each: MethodTimes() for each in block}, os.getloadavg()[0]
    wanted = [each for each in block if each not in have or not have[each].done]
    try:
        if plan.latency:
            caches.fill([each for each in wanted if step_method(each).ours])
        run_block(found, caches.worker, plan.build, plan.repeats, notify, plan.deadline)
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
            rows.append(Measurement(plan.key, each, name, *what))
        store.add(rows)


def _cache_variables(folder: Path) -> dict[str, str]:
    """Environment variables that make a process keep what it compiles in `folder`."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME")
    return {name: str(folder / name.lower()) for name in names}


class _Caches:
    """Compile caches of this run alone, one per method, and how long the first step takes with them."""

    def __init__(self, plan: StepPlan, notify: Notify) -> None:
        self.plan, self.notify = plan, notify
        self.latencies: dict[str, dict[str, float]] = {}

    def __enter__(self) -> _Caches:
        self._folder = tempfile.TemporaryDirectory(prefix="bayescore-bench-", ignore_cleanup_errors=True)
        return self

    def __exit__(self, *ending: object) -> None:
        self._folder.cleanup()

    def worker(self, method: str) -> Worker:
        """A worker for a method."""
        cached = self.plan.latency and step_method(method).ours
        variables = _cache_variables(Path(self._folder.name) / method) if cached else None
        return Worker(WORKER, self.plan.patience, variables)

    def fill(self, methods: Sequence[str]) -> None:
        """Make the first step twice in processes of their own: with an empty cache, and with a full one."""
        for method in methods:
            for state in ("cold", "warm"):
                if time.monotonic() > self.plan.deadline:
                    raise TimeUp
                self.notify(f"{method}: first step, {state} cache")
                with self.worker(method) as worker:
                    try:
                        worker.ask(do="build", **self.plan.build(method), preload=True)
                        seconds = worker.ask(do="turn", steps=1)["seconds"][0]
                    except (RequestError, WorkerError):
                        break  # the measurement itself will say why
                self.latencies.setdefault(method, {})[f"{state}_first_step_seconds"] = seconds


def _too_large(plan: StepPlan, method: str, need: int, room: int) -> Measurement:
    """Why a method that does not fit is not run; one that cannot even be set up says so itself."""
    why = f"not run: it needs about {need / 1e9:.1f} GB and {room / 1e9:.1f} GB are free"
    try:
        with Worker(WORKER, plan.patience) as worker:
            worker.ask(do="build", **plan.build(method))
    except RequestError as problem:
        return _absent(plan, method, str(problem), again=False)
    except WorkerError:
        pass
    return _absent(plan, method, why, again=True)


def _absent(plan: StepPlan, method: str, why: str, *, again: bool) -> Measurement:
    return Measurement(plan.key, method, "", note=why, done=not again)


def _free(device: str) -> int:
    """Bytes that can be had now."""
    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else available_memory()


class Answering(Protocol):
    """What a block needs of a worker."""

    def ask(self, **request: Any) -> dict[str, Any]: ...
    def end(self) -> None: ...


class TimeUp(Exception):
    """The time that was given for the whole run is over."""


@dataclass
class MethodTimes:
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
    found: dict[str, MethodTimes],
    start: Callable[[str], Answering],
    build: Callable[[str], Mapping[str, Any]],
    repeats: int,
    notify: Notify,
    deadline: float,
) -> None:
    """Measure the methods of a block, all of them alive, and write into `found`, which names them.

    Arguments:
        start, build: a worker for a method, and its "build" request.
        deadline: the time (time.monotonic) after which TimeUp is raised, between two turns.
    """
    workers: dict[str, Answering] = {}

    def ask(name: str, **request: Any) -> dict[str, Any] | None:
        if time.monotonic() > deadline:
            raise TimeUp
        try:
            return workers[name].ask(**request)
        except (RequestError, WorkerError) as why:
            found[name].note, found[name].again = str(why), isinstance(why, WorkerError)
            workers.pop(name).end()
            return None

    try:
        for name in found:
            notify(f"{name}: first steps")
            workers[name] = start(name)
            _begin(found[name], partial(ask, name), build(name))
        if not workers:
            return
        one = found[next(iter(workers))].numbers["warm_step_seconds"]
        steps = max(1, min(MOST_STEPS, math.ceil(TURN / one)))
        for i in range(repeats):
            for name in list(found)[:: 1 if i % 2 == 0 else -1]:
                if name in workers:
                    notify(f"{name}: round {i + 1} of {repeats}")
                    answer = ask(name, do="turn", steps=steps + (steps > 1))
                    if answer is not None:
                        _add(found[name], answer, skip=int(steps > 1))
    finally:
        for worker in workers.values():
            worker.end()


def _begin(row: MethodTimes, ask: Callable[..., dict[str, Any] | None], request: Mapping[str, Any]) -> None:
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


def _add(row: MethodTimes, answer: Mapping[str, Any], skip: int) -> None:
    """A turn as one number per phase: the median of its steps, without the one that wakes the process."""
    row.seconds.append(statistics.median(answer["seconds"][skip:]))
    for name, values in answer["phases"].items():
        row.phases.setdefault(name, []).append(statistics.median(values[skip:]))
    row.numbers["peak"] = answer["peak"]
    row.numbers["resident"] = answer["resident"]


def step_part(plan: StepPlan, store: Measurements) -> Part:
    """One network: a row per method in the order of the table, ratios to the baselines, and notes."""
    found = store.of(plan.key)
    names = [name for name in plan.names if name in found]
    rows = tuple(_row(plan, found[name]) for name in names)
    ratios = tuple(
        ratio
        for name in names
        for base in BASELINES
        if (ratio := _ratio(plan, found, name, base)) is not None
    )
    blocks = {row.block for row in found.values() if row.block}
    weights = next((row.numbers["weights"] for row in found.values() if "weights" in row.numbers), 0)
    threads = plan.key["threads"]
    notes = [
        f"{int(weights):,} weights, batch {plan.batch}, {threads} threads, {plan.device}, float32; "
        "medians over rounds with their 95 % intervals",
        *_small_bar(plan, found),
        *_memory_bars(plan, found),
    ]
    if len(blocks) > 1:
        notes.append(
            f"measured in {len(blocks)} blocks, {ANCHOR} again in each: ratios between blocks go through it"
        )
    load = max((row.numbers.get("load_average", 0.0) for row in found.values()), default=0.0)
    if load > threads + 0.5:  # one worker at a time is busy with so many threads
        notes.append(f"the machine was busy (load average {load:g}): trust the ratios, not the times")
    return Part(
        name=plan.net.name,
        title=f"one training step of {plan.net.title}",
        kind="profile",
        config={**plan.key, "methods": list(plan.names), "load_average": load, "blocks": len(blocks)},
        rows=rows,
        ratios=ratios,
        notes=tuple(notes),
    )


def _row(plan: StepPlan, row: Measurement) -> Row:
    phases = {name: tuple(values) for name, values in row.phases.items()}
    numbers = {**row.numbers, **_latencies(row)}
    return Row(
        problem=plan.net.name,
        arm=row.method,
        seconds=tuple(row.seconds),
        setting=step_method(row.method).title,
        note=row.note,
        phases=phases,
        numbers=numbers,
    )


def _latencies(row: Measurement) -> dict[str, float]:
    """What a first step takes beyond a later one, with an empty and with a full cache."""
    found = {}
    for state in ("cold", "warm"):
        first = row.numbers.get(f"{state}_first_step_seconds")
        if first is not None and row.seconds:
            found[f"{state}_latency_seconds"] = max(0.0, first - statistics.median(row.seconds))
    return found


def _ratio(plan: StepPlan, found: Mapping[str, Measurement], name: str, base: str) -> Ratio | None:
    """The seconds of a method over those of a baseline.

    Round by round where both were measured together; else both over the anchor in the same rounds, the
    baseline's by its median.
    """
    over, under = found[name], found.get(base)
    if name == base or under is None or not over.seconds or not under.seconds:
        return None
    if base == ANCHOR and over.anchor:
        values = [a / b for a, b in zip(over.seconds, over.anchor, strict=False)]
    elif over.block == under.block:
        values = [a / b for a, b in zip(over.seconds, under.seconds, strict=False)]
    elif over.anchor and (under.anchor or base == ANCHOR):
        scale = statistics.median(a / b for a, b in zip(under.seconds, under.anchor, strict=False))
        values = [a / b / scale for a, b in zip(over.seconds, over.anchor, strict=False)]
    else:
        values = [a / statistics.median(under.seconds) for a in over.seconds]
    bar = TIME_BARS.get(plan.net.name, {}).get((name, base))
    return Ratio(plan.net.name, name, base, tuple(values), bar, at_least=False) if values else None


def _small_bar(plan: StepPlan, found: Mapping[str, Measurement]) -> list[str]:
    """What our step adds to AdamW's on a small network, where a ratio says little."""
    row = found.get("proximal")
    if plan.net.name != SMALL or row is None or not row.anchor:
        return []
    more = statistics.median(a - b for a, b in zip(row.seconds, row.anchor, strict=False))
    met = "met" if more <= SMALL_BAR else "missed"
    return [f"a step of proximal takes {1e3 * more:.2f} ms longer than {ANCHOR}'s (<= 1 ms: {met})"]


def _memory_bars(plan: StepPlan, found: Mapping[str, Measurement]) -> list[str]:
    """The memory bars as sentences."""
    if plan.net.name not in WITH_MEMORY_BARS or "peak" not in getattr(found.get(ANCHOR), "numbers", {}):
        return []
    most = found[ANCHOR].numbers["peak"]
    words = []
    for name, bar in MEMORY_BARS.items():
        if name in found and "peak" in found[name].numbers:
            ratio = found[name].numbers["peak"] / most
            met = "met" if ratio <= bar else "missed"
            words.append(f"peak memory of {name}: {ratio:.3g} x {ANCHOR} (<= {bar:g}: {met})")
    return words
