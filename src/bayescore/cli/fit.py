"""`bayescore fit`: fit a family to a target by a method, and say how good the fit is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayescore.checks import check_count
from bayescore.cli.choose import AUTO, choose_family, choose_method
from bayescore.cli.densities import Source, choose_target
from bayescore.cli.errors import FAILED, INTERRUPTED, UserError, complain, explained, spoken_warnings
from bayescore.cli.files import check_output, check_plot, write_output, write_plot
from bayescore.cli.summary import console, show_fit
from bayescore.families.base import Family
from bayescore.inference.fitting import fit
from bayescore.inference.result import Fit, Outcome
from bayescore.initial.finding import Start, can_search, find_start
from bayescore.methods import Method
from bayescore.targets.base import Target

__all__ = ["fit_command"]

_CODES = {Outcome.DIVERGED: FAILED, Outcome.WORSE: FAILED, Outcome.INTERRUPTED: INTERRUPTED}
_STAN, _START, _METHOD, _FILES = "Stan and PosteriorDB", "Start", "Method", "What is written"


def fit_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A name that `bayescore list targets` shows, model.stan, posteriordb:NAME, or "
            "path/to/file.py:function, a log density.",
        ),
    ],
    dim: Annotated[
        int | None, typer.Option(help="Dimensions of the target; needed for a function of yours.")
    ] = None,
    target_seed: Annotated[int, typer.Option(help="Seed of a target that is drawn at random.")] = 0,
    noise: Annotated[float | None, typer.Option(help="Noise level beta of the scores, 0 or more.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data of a Stan program, JSON.", rich_help_panel=_STAN)
    ] = None,
    data_folder: Annotated[
        Path | None,
        typer.Option(
            help="PosteriorDB folder; $BAYESCORE_DATA/posteriordb unless given.", rich_help_panel=_STAN
        ),
    ] = None,
    program: Annotated[
        Path | None,
        typer.Option(help="Stan program for a posterior whose folder holds none.", rich_help_panel=_STAN),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="full, diagonal, low-rank, mixture, planar or zuko; by the dimension unless given.",
            rich_help_panel=_START,
        ),
    ] = None,
    components: Annotated[
        int | None, typer.Option(help="Components of a mixture; 5 unless given.", rich_help_panel=_START)
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of low-rank; at most 10 unless given.", rich_help_panel=_START)
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers of planar (4) or zuko (3).", rich_help_panel=_START)
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the start q0; 1 unless given, but Stan programs and posteriors begin "
            "near a mode then.",
            rich_help_panel=_START,
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto, proximal, advi, gsm, bam, fisher or score.", rich_help_panel=_METHOD)
    ] = AUTO,
    steps: Annotated[
        int | None,
        typer.Option(help="Iterations; 1000 unless given, what suits with auto.", rich_help_panel=_METHOD),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the run and of a random start.", rich_help_panel=_METHOD)
    ] = 0,
    samples: Annotated[
        int | None, typer.Option(help="Draws, hence score calls, per iteration.", rich_help_panel=_METHOD)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Step size of the methods that have one.", rich_help_panel=_METHOD)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any hyper-parameter of the method, such as clip=2; may be repeated.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Draws for ArviZ (.nc) or the fit itself (.safetensors).", rich_help_panel=_FILES),
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws in the .nc file; 4000 unless given.", rich_help_panel=_FILES)
    ] = None,
    resample: Annotated[
        bool,
        typer.Option(
            "--resample", help="Keep draws by Pareto-smoothed importance weights.", rich_help_panel=_FILES
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="A picture of the fit (.png, .pdf or .svg).", rich_help_panel=_FILES)
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show problems only.", rich_help_panel=_FILES)
    ] = False,
) -> None:
    """Fit a family to a target and say how good the fit is.

    Exit codes: 0 for a fit, 1 for one that diverged or got worse, 2 for a request that cannot be met,
    130 for Ctrl-C (what was reached by then is shown and written).
    """
    with spoken_warnings():
        with explained():
            counts = {
                "--dim": dim,
                "--steps": steps,
                "--components": components,
                "--rank": rank,
                "--layers": layers,
            }
            for option, count in {**counts, "--samples": samples, "--draws": draws}.items():
                if count is not None:
                    check_count(option, count)
        if output is not None:
            check_output(output, draws, resample)
        elif draws is not None or resample:
            option = "--draws says how many" if draws is not None else "--resample says which"
            raise UserError(f"{option} draws the output holds; name it with --output fit.nc")
        if plot is not None:
            check_plot(plot)
        with explained():
            how = choose_method(method, samples=samples, learning_rate=learning_rate, settings=settings or [])
            source = Source(target, dim, target_seed, noise, data, data_folder, program)
            aim = choose_target(source, quiet=quiet)
            sizes = {"components": components, "rank": rank, "layers": layers}
            start = choose_family(family, aim.dim, scale=scale, seed=seed, automatic=how == AUTO, **sizes)
            begun = _begun(aim, start, seed) if source.is_model and scale is None and how != AUTO else start
        result = _run(aim, begun, how, steps, seed, quiet)
        if not quiet:
            kinds = f"{type(result.method).__name__}, {type(result.family).__name__}"
            show_fit(result, console(), f"{kinds}, {target} in {aim.dim} dimensions")
        _write(result, output, draws, resample, plot, quiet)
    if code := _CODES.get(result.outcome):
        if quiet:
            complain(f"the fit {result.status}")
        raise typer.Exit(code)


def _begun(aim: Target, start: Family | None, seed: int) -> Family | Start | None:
    """A start near a mode, where a search can find one."""
    if start is None or not can_search(aim, start):
        return start
    return find_start(aim, start, seed=seed)


def _run(
    aim: Target, start: Family | Start | None, how: Method | str, steps: int | None, seed: int, quiet: bool
) -> Fit:
    try:
        with explained():
            return fit(aim, start, how, steps=steps, seed=seed, progress=False if quiet else None)
    except RuntimeError as problem:  # a factorisation that failed, memory that ran out
        raise UserError(f"the fit failed: {problem}", FAILED) from problem


def _write(
    result: Fit, output: Path | None, draws: int | None, resample: bool, plot: Path | None, quiet: bool
) -> None:
    if output is None and plot is None:
        return
    if not result.family.flat().isfinite().all():
        raise UserError("nothing was written: the parameters of the fit are not finite", FAILED)
    with explained():
        if output is not None:
            write_output(result, output, draws, resample)
        if plot is not None:
            write_plot(result, plot)
    for path in (output, plot):
        if path is not None and not quiet:
            console().print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)
