"""`bayescore forecast`: train a forecaster on a CSV, say how well it forecasts, draw the fan, keep the model.

What needs torch is imported when the command runs, so that its help and its completion do not wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import bayescore as bs
from bayescore.checks import check_count
from bayescore.cli.predict import Row
from bayescore.cli.terminal import UserError, console, errors_as_sentences, warnings_as_sentences
from bayescore.cli.train import parse_options

if TYPE_CHECKING:
    from bayescore.data import Series
    from bayescore.forecast import Backtest, Forecaster
    from bayescore.model_folder import SavedModel

__all__ = ["forecast_command", "predict_rows"]

#: names for the help and the completion; a test compares them with `bayescore.forecast`
METHODS = ["proximal", "plain", "advi", "descent", "dropout", "ensemble"]
CALIBRATIONS = ["conformal", "noise", "single"]
MOST = 10**6


def forecast_command(
    data: Annotated[Path, typer.Argument(help="A CSV with a line of column names and a column of dates.")],
    horizon: Annotated[int, typer.Option(help="Rows to forecast.")] = 48,
    context: Annotated[
        int | None, typer.Option(help="Rows that the network looks at; twice the horizon unless given.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns to forecast, with commas; all but the dates unless given.")
    ] = None,
    date: Annotated[str | None, typer.Option(help="The column of dates, if it is not called date.")] = None,
    date_format: Annotated[
        str | None, typer.Option(help="How dates are written, such as %d.%m.%Y; the year first unless given.")
    ] = None,
    missing: Annotated[
        list[float] | None, typer.Option(help="A number that stands for a missing value; may be repeated.")
    ] = None,
    max_gap: Annotated[
        int | None,
        typer.Option(help="Missing rows to fill in at most; a quarter of the context unless given."),
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"{', '.join(METHODS)}.", autocompletion=lambda: METHODS)
    ] = "proximal",
    calibration: Annotated[
        str, typer.Option(help=f"{', '.join(CALIBRATIONS)}.", autocompletion=lambda: CALIBRATIONS)
    ] = "conformal",
    test: Annotated[
        float, typer.Option(help="Share of the rows, from the end, to test on instead of learning from them.")
    ] = 0.0,
    epochs: Annotated[int, typer.Option(help="Passes over the rows at most.")] = 10,
    draws: Annotated[int, typer.Option(help="Draws of the weights.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the weights and the noise.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any option of the method, such as lr=0.0003."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Write the state of training here after every epoch, and go on from it."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The folder for the model.")] = None,
    table: Annotated[Path | None, typer.Option(help="The forecasts (.csv).")] = None,
    plot: Annotated[Path | None, typer.Option(help="The fan chart (.png, .pdf or .svg).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show problems only.")] = False,
) -> None:
    """Forecast the series of a CSV, with intervals that are calibrated on its last rows."""
    from bayescore.cli.files import (
        check_plot,
        check_table,
        check_weights,
        report_written,
        write_figure,
        write_table,
    )

    with warnings_as_sentences():
        with errors_as_sentences():
            for option, count in {"--horizon": horizon, "--epochs": epochs, "--draws": draws}.items():
                check_count(option, count, most=MOST)
            if not 0 <= test < 1:
                raise ValueError(f"--test is a share of the rows, from 0 to below 1; got {test:g}")
            if not 0 <= seed < 2**63:
                raise ValueError(f"--seed must be a whole number from 0 to 2^63 - 1; got {seed}")
            options = parse_options(settings or [])
        if output is not None and output.exists() and not output.is_dir():
            raise UserError(f"--output {output} is a file, and a model is a folder; name another")
        if checkpoint is not None:
            check_weights("--checkpoint", checkpoint)
        if table is not None:
            check_table(table, "--table")
        if plot is not None:
            check_plot(plot)
        with errors_as_sentences():
            series = bs.data.read_series(
                data,
                date=date,
                columns=None if columns is None else [name.strip() for name in columns.split(",")],
                date_format=date_format,
                missing=missing or (),
            )
            forecaster = bs.forecast.Forecaster(
                horizon=horizon,
                context=context,
                method=method,
                calibration=calibration,
                epochs=epochs,
                max_gap=max_gap,
                options=options,
                seed=seed,
            )
            kept = len(series) - int(test * len(series))
            if test and len(series) - kept < horizon:
                raise ValueError(
                    f"--test {test:g} of {len(series):,} rows are {len(series) - kept} to test on, and a "
                    f"forecast needs horizon = {horizon}; test on more, or give a shorter horizon"
                )
            forecaster.fit(
                series.take(slice(0, kept)), checkpoint=checkpoint, progress=False if quiet else None
            )
            result = forecaster.backtest(series, draws=draws) if kept < len(series) else None
            forecast = forecaster.predict(series, draws=draws)
        if not quiet:
            _show(forecaster, series, kept, result)
        with errors_as_sentences():
            if output is not None:
                forecaster.save(output)
            if table is not None:
                write_table(forecast.rows(), table)
            if plot is not None:
                title = f"{data.stem}: the next {horizon} rows"
                write_figure(bs.plotting.plot_forecast(forecast, title=title), plot)
        if not quiet:
            report_written(output, table, plot)


def predict_rows(saved: SavedModel, new: Path, draws: int, seed: int) -> list[Row]:
    """The forecast after the last row of a CSV, one row per step and column."""
    forecaster = bs.forecast.Forecaster.from_saved(saved)
    return forecaster.predict(new, draws=draws, seed=seed).rows()


def _show(forecaster: Forecaster, series: Series, kept: int, result: Backtest | None) -> None:
    out = console()
    frequency = "" if forecaster.frequency is None else f", {forecaster.frequency} apart"
    out.print(
        f"{len(series):,} rows of {len(series.columns)} series{frequency}; {kept:,} learned from",
        highlight=False,
        markup=False,
    )
    for note in (*forecaster.notes, forecaster.status):
        out.print(note, highlight=False, markup=False)
    where = "validation rows" if result is None else f"test rows, {result.origins:,} origins"
    scores = {name.removeprefix("validation_"): value for name, value in forecaster.metrics.items()}
    if result is not None:
        scores = result.metrics()
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(where)
    table.add_column("", justify="right")
    for name, heading in (("mse", "mean squared error"), ("mae", "mean absolute error")):
        table.add_row(f"{heading}, training sd = 1", f"{scores[name]:.4f}")
    table.add_row("CRPS", f"{scores['crps']:.4f}")
    table.add_row("NLL", f"{scores['nll']:.4f}")
    for level in (50, 80, 95):
        table.add_row(f"values inside the {level} % intervals", f"{100 * scores[f'coverage_{level}']:.1f} %")
    out.print(table)
