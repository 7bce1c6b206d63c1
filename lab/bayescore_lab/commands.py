"""The commands that the lab adds to `bayescore`: `reproduce`, `report` and `bench`.

What runs, draws or measures is imported when a command runs: help and `reproduce list` need no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from bayescore.checks import unknown_name
from bayescore_lab.bench.commands import app as bench
from bayescore_lab.engine.declare import Experiment, find_experiments
from bayescore_lab.engine.on_ray import work_on_ray
from bayescore_lab.engine.plans import Plan, check_jobs, listed, pick, plan
from bayescore_lab.engine.terminal import Terminal, show_progress, tally_text

__all__ = ["add_commands"]

Finder = Callable[[], Mapping[str, Experiment]]

_INTERRUPTED = 130  # what a shell reports for Ctrl-C
_OUT = typer.Option(help="The folder of records, tables and figures.")


def add_commands(app: typer.Typer, find: Finder = find_experiments) -> None:
    """Give an app the commands of the lab; `reproduce` is for the experiments that `find` finds."""
    app.add_typer(bench, name="bench")

    @app.command()
    def reproduce(
        ids: Annotated[
            list[str],
            typer.Argument(help="Experiments by id; the single word `list` shows them.", metavar="ID"),
        ],
        profile: Annotated[
            str, typer.Option(help="The size: quick, paper, or another that it names.")
        ] = "quick",
        seeds: Annotated[
            int | None, typer.Option(help="How many seeds; the profile's number unless given.")
        ] = None,
        methods: Annotated[str | None, typer.Option(help="Only these methods, separated by commas.")] = None,
        jobs: Annotated[
            int | None, typer.Option(help="Processes, one thread each; all cores unless given.")
        ] = None,
        engine: Annotated[
            str, typer.Option(help="Where runs are executed: local, on this machine, or ray, on a cluster.")
        ] = "local",
        address: Annotated[
            str | None, typer.Option(help="Of a Ray cluster; one of this machine's cores unless given.")
        ] = None,
        path: Annotated[
            Path | None,
            typer.Option(help="A PosteriorDB folder of yours, for the experiments that read one."),
        ] = None,
        out: Annotated[Path, _OUT] = Path("results"),
    ) -> None:
        """Make tables and figures of the paper again; what was stopped continues where it was."""
        if ids == ["list"]:
            Terminal().list_experiments(find())
            return
        if path is not None:
            if not path.is_dir():
                raise typer.BadParameter(f"there is no folder {path}", param_hint="--path")
            os.environ["BAYESCORE_POSTERIORDB"] = str(path.resolve())  # the processes of runs inherit it
        try:
            experiments = find()
            chosen = [pick(experiments, name) for name in dict.fromkeys(ids)]
            plans = [
                plan(one, profile, seeds, None if methods is None else listed(methods, one.methods))
                for one in chosen
            ]
            if engine not in ("local", "ray"):
                raise unknown_name("engine", engine, ("local", "ray"))
            if address is not None and engine != "ray":
                raise ValueError("an address is that of a Ray cluster; give --engine ray with it")
            if jobs is not None and address is None:
                check_jobs(jobs)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from problem
        pool = partial(work_on_ray, address=address) if engine == "ray" else None
        raise typer.Exit(_reproduce(plans, out, jobs, pool))

    @app.command()
    def report(out: Annotated[Path, _OUT] = Path("results")) -> None:
        """Put all that was drawn on one page of HTML, claims and verdicts first."""
        from bayescore_lab.engine.report import build_report

        terminal = Terminal()
        try:
            terminal.say(f"wrote {build_report(out)}")
        except (OSError, ValueError) as problem:
            terminal.complain(problem)
            raise typer.Exit(1) from problem


def _reproduce(plans: Sequence[Plan], out: Path, jobs: int | None, pool: Any) -> int:
    """Run, draw and show; the exit code is 0 where every run is finished."""
    terminal = Terminal()
    missing = [name for name in ("matplotlib", "scipy") if find_spec(name) is None]
    if missing:
        terminal.complain(f"{' and '.join(missing)} must be installed: pip install ./lab")
        return 1
    from bayescore_lab.engine.drawing import CannotDraw, NothingToDraw, draw
    from bayescore_lab.engine.runner import run_plans

    terminal.announce(plans)
    state, drawn = "no run was started", True
    try:
        with show_progress(terminal.errors) as progress:
            try:
                tally = run_plans(plans, out, jobs, progress, pool)
            finally:
                state = tally_text(progress.last) if progress.last else state
        for one in plans:
            try:
                terminal.show(one, draw(one, out))
            except NothingToDraw as problem:
                terminal.complain(problem)
            except CannotDraw as problem:
                terminal.complain(problem)
                drawn = False
    except KeyboardInterrupt:
        terminal.complain(f"stopped: {state}; they are kept in {out}, and the same command continues there")
        return _INTERRUPTED
    except (ModuleNotFoundError, OSError) as problem:
        terminal.complain(problem)
        return 1
    if tally.failures:
        terminal.show_failures(tally)
        return 1
    return 0 if drawn else 1
