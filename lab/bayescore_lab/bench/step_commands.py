"""The commands `bayescore bench step`, `predict` and `scaling`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from bayescore_lab.bench.blocks import Out
from bayescore_lab.bench.kept import Kept
from bayescore_lab.bench.networks import NAMED, Network, network
from bayescore_lab.bench.plot import draw_parts
from bayescore_lab.bench.predict import SAMPLES, predict
from bayescore_lab.bench.records import record, write_records
from bayescore_lab.bench.rows import Part
from bayescore_lab.bench.scaling import SIZES, scaling
from bayescore_lab.bench.step import Plan, measure
from bayescore_lab.bench.step_methods import METHODS, contestant
from bayescore_lab.bench.step_part import step_part
from bayescore_lab.bench.tables import part_table
from bayescore_lab.bench.timing import Tell
from bayescore_lab.engine.files import prepare_folder
from bayescore_lab.engine.provenance import commit

__all__ = ["add_step_commands"]

_PIPE_WIDTH = 200
_INTERRUPTED, _UNFINISHED = 130, 1
ROWS = "records.jsonl"

Nets = Annotated[
    list[str], typer.Option("--net", help=f"Network: {', '.join(NAMED)}, or any of torchvision; repeatable.")
]
Batch = Annotated[int | None, typer.Option(min=1, help="Rows of a mini-batch; every network has its own.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds in which all take turns.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch; all cores by default.")]
Minutes = Annotated[float, typer.Option(min=0.01, help="Stop after so long with what there is.")]
Folder = Annotated[
    Path | None,
    typer.Option("--out", help="Write record.json, rows.csv, table.md and figure.png to this folder, and go "
                 "on there where an earlier run stopped."),
]  # fmt: skip


def bench_step(
    net: Nets = ["mlp"],  # noqa: B006
    batch: Batch = None,
    methods: Annotated[
        list[str] | None, typer.Option(help=f"Methods, with commas: {', '.join(METHODS)}; all by default.")
    ] = None,
    repeats: Repeats = 7,
    threads: Threads = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where there is one.")] = None,
    latency: Annotated[
        bool, typer.Option(help="Measure the first step with an empty and with a full compile cache.")
    ] = True,
    patience: Annotated[float, typer.Option(min=1.0, help="Seconds that one step may take.")] = 600.0,
    minutes: Minutes = 240.0,
    out: Folder = None,
) -> None:
    """One training step of a network with every method: time, where it goes, and peak memory."""
    nets = [_chosen(network, name) for name in net]
    names = tuple(word for words in methods or [",".join(METHODS)] for word in words.split(",") if word)
    for name in names:
        _chosen(contestant, name)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if place.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter(f"torch finds no CUDA device; got --device {place}")
    session = _Session("step", out, minutes)
    session.config = {"net": list(net), "batch": batch, "methods": list(names), "repeats": repeats}

    def run(tell: Tell) -> Iterator[Part]:
        kept = session.kept()
        for each in nets:
            plan = Plan(each, batch or each.batch, names, repeats, place, threads)
            plan = session.bounded(plan, patience, latency)
            try:
                for _ in measure(plan, kept, lambda text, each=each: tell(f"{each.name}, {text}")):  # type: ignore[misc]
                    session.keep(step_part(plan, kept))
            finally:
                session.keep(step_part(plan, kept))
            yield session.parts[each.name]

    session.play(run)


def bench_predict(
    net: Nets = ["mlp"],  # noqa: B006
    batch: Batch = None,
    samples: Annotated[str, typer.Option(help="Numbers of draws, with commas.")] = ",".join(
        map(str, SAMPLES)
    ),
    repeats: Repeats = 5,
    threads: Threads = None,
    minutes: Minutes = 60.0,
    out: Folder = None,
) -> None:
    """A prediction from S draws of the weights against a forward pass and a draw alone."""
    nets = [_chosen(network, name) for name in net]
    counts = _numbers("--samples", samples)
    session = _Session("predict", out, minutes)
    session.config = {"net": list(net), "batch": batch, "samples": counts, "repeats": repeats}
    if threads is not None:
        torch.set_num_threads(threads)

    def run(tell: Tell) -> Iterator[Part]:
        for each in nets:
            for part in predict(each, batch or each.batch, repeats, counts, session.deadline, tell):
                session.keep(part)
            yield session.parts[f"predict {each.name}"]

    session.play(run)


def bench_scaling(
    sizes: Annotated[str, typer.Option(help="Numbers of weights, with commas.")] = ",".join(map(str, SIZES)),
    repeats: Repeats = 7,
    threads: Threads = None,
    patience: Annotated[float, typer.Option(min=1.0, help="Seconds that one step may take.")] = 300.0,
    minutes: Minutes = 60.0,
    out: Folder = None,
) -> None:
    """The optimizer step alone: cost per weight, share of the memory's bandwidth, noise, draws per step."""
    counts = _numbers("--sizes", sizes)
    session = _Session("scaling", out, minutes)
    session.config = {"sizes": counts, "repeats": repeats}

    def run(tell: Tell) -> Iterator[Part]:
        plan = Plan(network(f"weights:{counts[0]}"), 1, (), repeats, threads=threads)
        plan = session.bounded(plan, patience, latency=False)
        for part in scaling(plan, counts, session.kept(), tell):
            session.keep(part)
        yield from session.parts.values()

    session.play(run)


class _Session:
    """One command: what it has measured, where it writes, and when it must end."""

    def __init__(self, benchmark: str, out: Path | None, minutes: float) -> None:
        self.benchmark, self.out = benchmark, out
        self.deadline = time.monotonic() + 60 * minutes
        self.minutes = minutes
        self.config: dict[str, object] = {}
        self.parts: dict[str, Part] = {}
        if out is not None:
            try:
                prepare_folder(out)
            except OSError as problem:
                raise typer.BadParameter(f"{problem.filename}: {problem.strerror}") from problem

    def bounded(self, plan: Plan, patience: float, latency: bool) -> Plan:
        """The plan with the limits of this run, and with the version of the source."""
        from dataclasses import replace

        code = commit()
        if code.endswith("-dirty"):  # the next run may be of other code under the same name
            code += f" {time.time():.0f}"
        return replace(plan, patience=patience, latency=latency, deadline=self.deadline, code=code)

    def kept(self) -> Kept:
        return Kept(None if self.out is None else self.out / ROWS)

    def keep(self, part: Part) -> None:
        """Keep a part, or a later state of it."""
        if part.rows:
            self.parts[part.name] = part

    def play(self, run: Callable[[Tell], Iterator[Part]]) -> None:
        """Run, show every finished part, write the files; an interrupt and a deadline keep what there is."""
        output = Console() if Console().is_terminal else Console(width=_PIPE_WIDTH)
        errors = Console(stderr=True)
        shown: set[str] = set()
        code = 0
        with errors.status("starting") as status:
            try:
                for part in run(status.update):
                    shown.add(part.name)
                    status.stop()
                    output.print(part_table(part))
                    status.start()
            except KeyboardInterrupt:
                code = _INTERRUPTED
                status.stop()
                errors.print("stopped; what was measured is kept, and the same command goes on")
            except Out:
                code = _UNFINISHED
                status.stop()
                errors.print(f"stopped after {self.minutes:g} minutes; the same command goes on")
            finally:
                status.stop()
                for name, part in self.parts.items():
                    if name not in shown:
                        output.print(part_table(part))
                self._write(errors)
        if code:
            raise typer.Exit(code)

    def _write(self, errors: Console) -> None:
        if self.out is None or not self.parts:
            return
        parts = list(self.parts.values())
        found = record(self.benchmark, self.config, parts)
        for name in ("record.json", "rows.csv", "table.md"):
            write_records(self.out / name, found, parts)
        if find_spec("matplotlib") is None:
            errors.print("no figure: it needs matplotlib, pip install 'bayescore[plot]'")
            return
        draw_parts(self.out / "figure.png", parts, frozenset(n for n, m in METHODS.items() if m.own))


def _chosen(find: Callable[[str], object], name: str) -> Network:
    """Something by name; a name nobody knows is the user's mistake."""
    try:
        return find(name)  # type: ignore[return-value]
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from problem


def _numbers(option: str, words: str) -> list[int]:
    try:
        found = sorted({int(float(word)) for word in words.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise typer.BadParameter(f"{option} takes positive numbers with commas between them; got {words!r}")
    return found


def add_step_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("step")(bench_step)
    app.command("predict")(bench_predict)
    app.command("scaling")(bench_scaling)
