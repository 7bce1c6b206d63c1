"""The commands of `bayescore bench`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bayescore_lab.bench.batch import batch
from bayescore_lab.bench.contest import OURS
from bayescore_lab.bench.inner_loop import inner_loop
from bayescore_lab.bench.plot import draw_parts
from bayescore_lab.bench.problems import banana, gaussian
from bayescore_lab.bench.race import race
from bayescore_lab.bench.records import SUFFIXES, record, write_records
from bayescore_lab.bench.rows import Part
from bayescore_lab.bench.step_commands import add_step_commands
from bayescore_lab.bench.tables import part_table
from bayescore_lab.bench.timing import Tell
from bayescore_lab.engine.files import prepare_folder

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Measure speed, side by side with peers.")

_PIPE_WIDTH = 160
_INTERRUPTED = 130  # what a shell reports for Ctrl-C


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
    _check_files(out or [], plot)
    output = Console() if Console().is_terminal else Console(width=_PIPE_WIDTH)
    errors = Console(stderr=True)
    parts: list[Part] = []
    with errors.status("starting") as status:
        try:
            for part in _measure(repeats, peers, quick, status.update):
                status.stop()
                output.print(part_table(part))
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
                    write_records(path, found, parts)
            if plot is not None and parts:
                draw_parts(plot, parts, frozenset(entry.name for entry in OURS))


def _measure(repeats: int, peers: bool, quick: bool, tell: Tell) -> Iterator[Part]:
    if quick:
        yield inner_loop(repeats, tell, steps=3, mixture_steps=3)
        yield batch(repeats, tell, steps=3)
        small = [banana(budget=10), gaussian(dim=5, condition=10.0, budget=10)]
        yield race(repeats, tell, small, peers=peers, settings=1)
        return
    yield inner_loop(repeats, tell)
    yield batch(repeats, tell)
    yield race(repeats, tell, [banana(), gaussian()], peers=peers)


def _check_files(out: list[Path], plot: Path | None) -> None:
    """Refuse now what could not be written in the end."""
    for path in out:
        if path.suffix not in SUFFIXES:
            raise typer.BadParameter(
                f"records are written to {' or '.join(SUFFIXES)} files; got --out {path}"
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


add_step_commands(app)
