"""The commands of `bayescore bench`; what measures is imported when one runs, so that help needs no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from bayescore_lab.bench.choices import METHODS, NETWORKS, SAMPLES, SIZES
from bayescore_lab.engine.records import prepare_folder

if TYPE_CHECKING:
    from bayescore_lab.bench.results import Part
    from bayescore_lab.bench.step import Measurements, StepPlan
    from bayescore_lab.bench.timing import Notify

__all__ = ["app", "bench_step"]

app = typer.Typer(no_args_is_help=True, help="Measure speed, side by side with peers.")

_FIT_WIDTH, _STEP_WIDTH = 160, 200  # columns of a table that goes to a pipe
_INTERRUPTED, _UNFINISHED = 130, 1  # 130 is what a shell reports for Ctrl-C
_MEASUREMENTS = "records.jsonl"
_SUFFIXES = (".json", ".csv", ".md")

T = TypeVar("T")

Nets = Annotated[
    list[str],
    typer.Option("--net", help=f"Network: {', '.join(NETWORKS)}, or any of torchvision; repeatable."),
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


@app.callback()
def _bench() -> None:
    """Measure speed, side by side with peers."""


@app.command("fit")
def bench_fit(
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which all arms take turns.")] = 5,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Write the records to this .json or .csv file, or tables to .md; may be repeated."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the result to this .png file.")] = None,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Run NumPyro and BlackJAX beside ours.")
    ] = True,
    quick: Annotated[
        bool, typer.Option(help="Tiny sizes, to see that everything runs; the numbers mean little.")
    ] = False,
) -> None:
    """The inner loop against plain autograd, a batch of fits against one, and the time to the same ELBO."""
    from bayescore_lab.bench.entries import OURS
    from bayescore_lab.bench.figures import draw_parts
    from bayescore_lab.bench.results import record
    from bayescore_lab.bench.tables import part_table, write_results

    _check_files(out or [], plot)
    output, errors = _console(_FIT_WIDTH), Console(stderr=True)
    parts: list[Part] = []
    with errors.status("starting") as status:
        try:
            for part in _measure_fits(repeats, peers, quick, status.update):
                status.stop()
                output.print(part_table(part).terminal())
                status.start()
                parts.append(part)
        except KeyboardInterrupt:
            status.stop()
            errors.print(f"stopped after {len(parts)} of 3 parts")
            raise typer.Exit(_INTERRUPTED) from None
        finally:
            if out and parts:
                config = {"repeats": repeats, "peers": peers, "quick": quick}
                found = record("fit", config, parts)
                for path in out:
                    write_results(path, found, parts)
            if plot is not None and parts:
                draw_parts(plot, parts, frozenset(entry.name for entry in OURS))


@app.command("step")
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
    import torch

    from bayescore_lab.bench import step
    from bayescore_lab.bench.networks import network
    from bayescore_lab.bench.steppers import step_method
    from bayescore_lab.bench.timing import prefixed

    nets = [_known(network, name) for name in net]
    names = tuple(word for words in methods or [",".join(METHODS)] for word in words.split(",") if word)
    for name in names:
        _known(step_method, name)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if place.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter(f"torch finds no CUDA device; got --device {place}")
    session = _Session("step", out, minutes)
    session.config = {"net": list(net), "batch": batch, "methods": list(names), "repeats": repeats}

    def run(notify: Notify) -> Iterator[Part]:
        store = session.measurements()
        for each in nets:
            plan = step.StepPlan(each, batch or each.batch, names, repeats, place, threads)
            plan = session.bounded(plan, patience, latency)
            try:
                for _ in step.measure(plan, store, prefixed(each.name, notify)):
                    session.keep(step.step_part(plan, store))
            finally:
                session.keep(step.step_part(plan, store))
            yield session.parts[each.name]

    session.run(run)


@app.command("predict")
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
    import torch

    from bayescore_lab.bench.networks import network
    from bayescore_lab.bench.predict import predict_parts

    nets = [_known(network, name) for name in net]
    counts = _numbers("--samples", samples)
    session = _Session("predict", out, minutes)
    session.config = {"net": list(net), "batch": batch, "samples": counts, "repeats": repeats}
    if threads is not None:
        torch.set_num_threads(threads)

    def run(notify: Notify) -> Iterator[Part]:
        for each in nets:
            for part in predict_parts(each, batch or each.batch, repeats, counts, session.deadline, notify):
                session.keep(part)
            yield session.parts[f"predict {each.name}"]

    session.run(run)


@app.command("scaling")
def bench_scaling(
    sizes: Annotated[str, typer.Option(help="Numbers of weights, with commas.")] = ",".join(map(str, SIZES)),
    repeats: Repeats = 7,
    threads: Threads = None,
    patience: Annotated[float, typer.Option(min=1.0, help="Seconds that one step may take.")] = 300.0,
    minutes: Minutes = 60.0,
    out: Folder = None,
) -> None:
    """The optimizer step alone: cost per weight, share of the memory's bandwidth, noise, draws per step."""
    from bayescore_lab.bench.choices import bare_weights
    from bayescore_lab.bench.scaling import scaling_parts
    from bayescore_lab.bench.step import StepPlan

    counts = _numbers("--sizes", sizes)
    session = _Session("scaling", out, minutes)
    session.config = {"sizes": counts, "repeats": repeats}

    def run(notify: Notify) -> Iterator[Part]:
        plan = StepPlan(bare_weights(counts[0]), 1, (), repeats, threads=threads)
        plan = session.bounded(plan, patience, latency=False)
        for part in scaling_parts(plan, counts, session.measurements(), notify):
            session.keep(part)
        yield from session.parts.values()

    session.run(run)


@app.command("sharded")
def bench_sharded(
    net: Nets = ["mlp"],  # noqa: B006
    batch: Annotated[int, typer.Option(min=1, help="Rows of each process.")] = 16,
    processes: Annotated[int, typer.Option(min=1, help="Processes that hold the network together.")] = 2,
    methods: Annotated[str, typer.Option(help="Methods of `bench step`, with commas.")] = "adamw,proximal",
    repeats: Annotated[int, typer.Option(min=0, help="Rounds in which all take turns; 0: memory only.")] = 7,
    minutes: Minutes = 60.0,
    out: Folder = None,
) -> None:
    """One training step under FSDP2 with several processes: time and the peak memory of a process."""
    from bayescore_lab.bench.networks import network
    from bayescore_lab.bench.sharded import sharded_part
    from bayescore_lab.bench.steppers import step_method

    nets = [_known(network, name) for name in net]
    names = [word for word in methods.split(",") if word]
    for name in names:
        _known(step_method, name)
    session = _Session("sharded", out, minutes)
    session.config = {"net": list(net), "batch": batch, "processes": processes, "methods": names}
    session.config["repeats"] = repeats

    def run(notify: Notify) -> Iterator[Part]:
        for each in nets:
            session.keep(sharded_part(each, batch, processes, names, repeats, session.deadline, notify))
            yield session.parts[f"sharded {each.name}"]

    session.run(run)


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

    def bounded(self, plan: StepPlan, patience: float, latency: bool) -> StepPlan:
        """The plan with the limits of this run, and with the version of the source."""
        from bayescore_lab.engine.provenance import commit

        code = commit()
        if code.endswith("-dirty"):  # the next run may be of other code under the same name
            code += f" {time.time():.0f}"
        return replace(plan, patience=patience, latency=latency, deadline=self.deadline, code=code)

    def measurements(self) -> Measurements:
        """What earlier runs have measured in this folder."""
        from bayescore_lab.bench.step import Measurements

        return Measurements(None if self.out is None else self.out / _MEASUREMENTS)

    def keep(self, part: Part) -> None:
        """Keep a part, or a later state of it."""
        if part.rows:
            self.parts[part.name] = part

    def run(self, measure: Callable[[Notify], Iterator[Part]]) -> None:
        """Measure, show every finished part, write the files; an interruption keeps what there is."""
        from bayescore_lab.bench.step import TimeUp
        from bayescore_lab.bench.tables import part_table

        output, errors = _console(_STEP_WIDTH), Console(stderr=True)
        shown: set[str] = set()
        code = 0
        with errors.status("starting") as status:
            try:
                for part in measure(status.update):
                    shown.add(part.name)
                    status.stop()
                    output.print(part_table(part).terminal())
                    status.start()
            except KeyboardInterrupt:
                code = _INTERRUPTED
                status.stop()
                errors.print("stopped; what was measured is kept, and the same command goes on")
            except TimeUp:
                code = _UNFINISHED
                status.stop()
                errors.print(f"stopped after {self.minutes:g} minutes; the same command goes on")
            finally:
                status.stop()
                for name, part in self.parts.items():
                    if name not in shown:
                        output.print(part_table(part).terminal())
                self._write(errors)
        if code:
            raise typer.Exit(code)

    def _write(self, errors: Console) -> None:
        from bayescore_lab.bench.figures import draw_parts
        from bayescore_lab.bench.results import record
        from bayescore_lab.bench.tables import write_results

        if self.out is None or not self.parts:
            return
        parts = list(self.parts.values())
        found = record(self.benchmark, self.config, parts)
        for name in ("record.json", "rows.csv", "table.md"):
            write_results(self.out / name, found, parts)
        if not any(row.seconds for part in parts for row in part.rows):
            return  # nothing was timed
        if find_spec("matplotlib") is None:
            errors.print("no figure: it needs matplotlib, pip install 'bayescore[plot]'")
            return
        draw_parts(self.out / "figure.png", parts, frozenset(n for n, m in METHODS.items() if m.ours))


def _measure_fits(repeats: int, peers: bool, quick: bool, notify: Notify) -> Iterator[Part]:
    from bayescore_lab.bench.batch import batch_part
    from bayescore_lab.bench.inner_loop import inner_loop_part
    from bayescore_lab.bench.problems import banana, gaussian
    from bayescore_lab.bench.same_elbo import same_elbo_part

    if quick:
        yield inner_loop_part(repeats, notify, steps=3, mixture_steps=3)
        yield batch_part(repeats, notify, steps=3)
        small = [banana(budget=10), gaussian(dim=5, condition=10.0, budget=10)]
        yield same_elbo_part(repeats, notify, small, peers=peers, settings=1)
        return
    yield inner_loop_part(repeats, notify)
    yield batch_part(repeats, notify)
    yield same_elbo_part(repeats, notify, [banana(), gaussian()], peers=peers)


def _check_files(out: Sequence[Path], plot: Path | None) -> None:
    """Refuse now what could not be written in the end."""
    for path in out:
        if path.suffix not in _SUFFIXES:
            raise typer.BadParameter(
                f"records are written to {' or '.join(_SUFFIXES)} files; got --out {path}"
            )
    if plot is not None and plot.suffix != ".png":
        raise typer.BadParameter(f"pictures are written to .png files; got --plot {plot}")
    if plot is not None and find_spec("matplotlib") is None:
        raise typer.BadParameter("--plot needs matplotlib: pip install 'bayescore[plot]'")
    for path in [*out, *([] if plot is None else [plot])]:
        try:
            prepare_folder(path.parent)
        except OSError as problem:
            raise typer.BadParameter(f"{problem.filename}: {problem.strerror}") from problem


def _console(width: int) -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=width)


def _known(find: Callable[[str], T], name: str) -> T:
    """Something by name; an unknown name is the user's mistake."""
    try:
        return find(name)
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
