"""`bayescore predict`: what a saved model says of new images, texts, rows or series, as a table and as CSV.

What needs torch is imported when the command runs, so that its help and its completion do not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bayescore.checks import check_count
from bayescore.cli.terminal import UserError, console, errors_as_sentences, warnings_as_sentences

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PREDICTORS", "Row", "predict_command"]

Row = dict[str, str | int | float]
#: by kind of model, the function (saved model, new, draws, seed) -> rows that all have the same keys, which
#: are the columns of the table
PREDICTORS: dict[str, str] = {
    "forecast": "bayescore.cli.forecast:predict_rows",
    "images": "bayescore.finetune.images:predict_new",
    "table": "bayescore.tables.training:predict_new",
    "text": "bayescore.finetune.texts:predict_new",
}
MOST = 10**6  # draws
SHOWN = 20  # rows on the terminal; the file has all


def predict_command(
    model: Annotated[
        Path,
        typer.Argument(
            help="The folder of the model, as `bayescore train` or `bayescore forecast` wrote it."
        ),
    ],
    new: Annotated[Path, typer.Argument(help="New data of the kind that the model learned from.")],
    output: Annotated[Path | None, typer.Option(help="All predictions (.csv).")] = None,
    draws: Annotated[int, typer.Option(help="Draws of the weights.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show problems only.")] = False,
) -> None:
    """Predict with a saved model: one row per image, text, row or step ahead, with its uncertainty."""
    from bayescore.cli.files import check_table, report_written, write_table
    from bayescore.model_folder import read_model

    with warnings_as_sentences():
        with errors_as_sentences():
            check_count("--draws", draws, most=MOST)
            if not 0 <= seed < 2**63:
                raise ValueError(f"--seed must be a whole number from 0 to 2^63 - 1; got {seed}")
        if output is not None:
            check_table(output)
        with errors_as_sentences():
            saved = read_model(model)
            rows = _predictor(saved.description.kind)(saved, new, draws, seed)
            if output is not None:
                write_table(rows, output)
        if not quiet:
            _show(rows)
            report_written(output)


def _predictor(kind: str) -> Callable[..., list[Row]]:
    if kind not in PREDICTORS:
        raise UserError(f"this bayescore cannot predict with a model of the kind {kind!r}")
    module, _, name = PREDICTORS[kind].partition(":")
    found: Callable[..., list[Row]] = getattr(import_module(module), name)
    return found


def _show(rows: list[Row]) -> None:
    out = console()
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for name, value in rows[0].items() if rows else ():
        table.add_column(name, justify="left" if isinstance(value, str) else "right", overflow="fold")
    for row in rows[:SHOWN]:
        table.add_row(*(Text(f"{v:.4g}" if isinstance(v, float) else str(v)) for v in row.values()))
    out.print(table)
    if len(rows) > SHOWN:
        out.print(f"{len(rows) - SHOWN:,} more rows; --output predictions.csv keeps all", highlight=False)
