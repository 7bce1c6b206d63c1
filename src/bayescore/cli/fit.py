"""`bayescore fit`: fit a family to a target by a method, and say how good the fit is.

What needs torch is imported when the command runs, so that its help and its completion do not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

import bayescore as bs
from bayescore.checks import check_count
from bayescore.cli import names
from bayescore.cli.terminal import (
    FAILED,
    INTERRUPTED,
    UserError,
    complain,
    console,
    errors_as_sentences,
    waiting,
    warnings_as_sentences,
)

__all__ = ["fit_command"]

_STAN, _START, _METHOD, _FILES = "Stan and PosteriorDB", "Start", "Method", "What is written"


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"


def fit_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A name that `bayescore list targets` shows, model.stan, posteriordb:NAME, or "
            "path/to/file.py:function, a log density.",
            autocompletion=lambda: list(names.targets().items()),
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
            help=f"{_either(names.families())}; chosen by the dimension unless given.",
            autocompletion=lambda: list(names.families().items()),
            rich_help_panel=_START,
        ),
    ] = None,
    components: Annotated[
        int | None, typer.Option(help="Components of a mixture; 5 unless given.", rich_help_panel=_START)
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="Rank of low-rank and spiked; at most 10 unless given.", rich_help_panel=_START),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(help="Layers of planar (4), coupling (4) or zuko (3).", rich_help_panel=_START),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of q0, 1 unless given; without it Stan programs and posteriors begin "
            "near a mode.",
            rich_help_panel=_START,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"{_either(names.methods())}.",
            autocompletion=lambda: list(names.methods().items()),
            rich_help_panel=_METHOD,
        ),
    ] = names.AUTO,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps; 1000 unless given, and auto chooses its own.", rich_help_panel=_METHOD),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            help="Of auto: quick, normal (unless given) or thorough; it bounds the score calls.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the run and of a random q0.", rich_help_panel=_METHOD)
    ] = 0,
    draws: Annotated[
        int | None, typer.Option(help="Draws, hence score calls, per step.", rich_help_panel=_METHOD)
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the methods that have one.", rich_help_panel=_METHOD),
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
    output_draws: Annotated[
        int | None, typer.Option(help="Draws in the .nc file; 4000 unless given.", rich_help_panel=_FILES)
    ] = None,
    resample: Annotated[
        bool,
        typer.Option(
            "--resample",
            help="Keep draws by Pareto-smoothed importance weights, and move them where q is not good.",
            rich_help_panel=_FILES,
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
    from bayescore.cli.choose import (
        TargetOptions,
        choose_family,
        choose_method,
        choose_target,
        search_start,
    )
    from bayescore.cli.files import check_fit_files, report_written, write_fit_files
    from bayescore.cli.summary import show_fit
    from bayescore.inference.result import Outcome

    sizes = {"components": components, "rank": rank, "layers": layers}
    with warnings_as_sentences():
        with errors_as_sentences():
            for option, (count, most) in {
                "--dim": (dim, 10**9),
                "--steps": (steps, 10**9),
                **{f"--{size}": (count, 10**4) for size, count in sizes.items()},
                "--draws": (draws, 10**8),
                "--output-draws": (output_draws, 10**8),
            }.items():
                if count is not None:
                    check_count(option, count, most=most)
        check_fit_files(output, plot, output_draws, resample)
        with errors_as_sentences():
            chosen = choose_method(method, draws=draws, lr=lr, settings=settings or [])
            automatic = chosen == names.AUTO
            options = TargetOptions(target, dim, target_seed, noise, data, data_folder, program)
            density = choose_target(options, quiet=quiet)
            q0 = choose_family(family, density.dim, scale=scale, seed=seed, automatic=automatic, **sizes)
            searched = options.is_model and scale is None and not automatic
            start = search_start(density, q0, seed) if searched else q0
        try:
            with errors_as_sentences():
                progress = False if quiet else None
                bound = {} if effort is None else {"effort": effort}
                result = bs.fit(density, start, chosen, steps=steps, seed=seed, progress=progress, **bound)  # type: ignore[arg-type]
        except RuntimeError as problem:  # a factorisation that failed, memory that ran out
            raise UserError(f"the fit failed: {problem}", FAILED) from problem
        if not quiet:
            with waiting("checking the fit with importance weights and moves"):
                _ = result.diagnosis
            kinds = f"{type(result.method).__name__}, {type(result.family).__name__}"
            show_fit(result, console(), f"{kinds}, {target} in {density.dim} dimensions")
        write_fit_files(result, output, plot, output_draws, resample)
        if not quiet:
            report_written(output, plot)
    codes = {Outcome.DIVERGED: FAILED, Outcome.WORSE: FAILED, Outcome.INTERRUPTED: INTERRUPTED}
    if code := codes.get(result.outcome):
        if quiet:
            complain(f"the fit {result.status}")
        raise typer.Exit(code)
