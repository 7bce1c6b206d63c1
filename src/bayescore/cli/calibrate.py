"""`bayescore calibrate`: fit data that are simulated from the model, and see where the truth lies.

What needs torch is imported when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bayescore.checks import check_count
from bayescore.cli.terminal import FAILED, UserError, console, errors_as_sentences, warnings_as_sentences

__all__ = ["calibrate_command"]


def calibrate_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A Stan program, model.stan, or path/to/file.py:function from data to a target.",
        ),
    ],
    simulator: Annotated[
        str,
        typer.Argument(
            metavar="SIMULATOR",
            help="path/to/file.py:function from a torch.Generator to (parameters, data): a draw of the prior "
            "and of the data given it, both by name.",
        ),
    ],
    runs: Annotated[int, typer.Option(help="How many data sets are simulated and fitted.")] = 100,
    draws: Annotated[int, typer.Option(help="Draws of a fit among which the truth is placed.")] = 1000,
    resample: Annotated[
        bool, typer.Option("--resample", help="Use draws resampled by importance weights.")
    ] = False,
    effort: Annotated[str, typer.Option(help="Of every fit: quick, normal or thorough.")] = "normal",
    seed: Annotated[int, typer.Option(help="Seed of the simulations.")] = 0,
) -> None:
    """Check the whole pipeline by simulation: are the truths where the fits expect them?

    Exit codes: 0 where nothing was found, 1 where a parameter is not calibrated, 2 for a request that cannot
    be met.
    """
    from bayescore.cli.choose import load_function
    from bayescore.inference.simulation import check_calibration
    from bayescore.targets.stan import Stan

    with warnings_as_sentences(), errors_as_sentences():
        check_count("--runs", runs, most=10**6)
        check_count("--draws", draws, most=10**8)
        simulate = load_function(simulator, "a simulator")
        if model.endswith(".stan"):
            if not Path(model).is_file():
                raise UserError(f"there is no file {model}")

            def target(data: Any) -> Any:
                return Stan(model, data)
        else:
            target = load_function(model, "a model")
        options: Any = {"resample": resample, "effort": effort, "seed": seed}
        try:
            found = check_calibration(simulate, target, runs=runs, draws=draws, **options)
        except RuntimeError as problem:
            raise UserError(str(problem), FAILED) from problem
    console().print(found.summary(), highlight=False, markup=False, soft_wrap=True)
    if found.wrong:
        raise typer.Exit(FAILED)
