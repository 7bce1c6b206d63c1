"""`bayescore train`: train a Bayesian network on a named data set, and measure its probabilities.

What needs torch is imported when the command runs, so that its help and its completion do not wait for it.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import bayescore as bs
from bayescore.checks import check_count, check_memory, unknown_name
from bayescore.cli.terminal import UserError, console, errors_as_sentences, warnings_as_sentences

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["train_command"]

#: names for the help and the completion; a test compares them with `bayescore.data` and `bayescore.nn`
DATA_SETS = ["mnist", "digits"]
METHODS = [
    "proximal",
    "calibrated",
    "descent",
    "advi",
    "bam",
    "published-bam",
    "sgld",
    "plain",
    "dropout",
    "weight-dropout",
    "swag",
]
MOST = 10**9  # epochs, images of a batch, draws
WIDEST = 10**6  # units of a layer
NUMBERS = 5  # per weight while it is trained: itself, its gradient, and three of the optimizer's
HEADINGS = {
    "error": "test error",
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "ECE, top label, 15 bins",
    "all_class_ece": "ECE, all classes, %",
    "mce": "MCE",
}


def train_command(
    data: Annotated[
        str, typer.Option(help=f"The images: {' or '.join(DATA_SETS)}.", autocompletion=lambda: DATA_SETS)
    ] = "digits",
    fraction: Annotated[
        float, typer.Option(help="Share of the training images to learn from; up to 5,000 others validate.")
    ] = 0.5,
    method: Annotated[
        str, typer.Option(help=f"{', '.join(METHODS)}.", autocompletion=lambda: METHODS)
    ] = "proximal",
    epochs: Annotated[int, typer.Option(help="Passes over the images.")] = 50,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without improvement on validation.")
    ] = None,
    hidden: Annotated[str, typer.Option(help="Widths of the hidden layers.")] = "1000,1000,1000",
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 128,
    draws: Annotated[int, typer.Option(help="Draws of the weights for the predictions at the end.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the split, the weights and the noise.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any option of the method, such as lr=0.003; may be repeated.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Write the state of training here after every epoch (.safetensors), and go on from it if "
            "the file exists."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The posterior (.safetensors).")] = None,
    plot: Annotated[Path | None, typer.Option(help="A reliability diagram (.png, .pdf or .svg).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show problems only.")] = False,
) -> None:
    """Train a perceptron on images, Bayesian or plain, and measure its probabilities on the test images."""
    from bayescore.cli.files import check_plot, check_weights, report_written, write_figure

    with warnings_as_sentences():
        with errors_as_sentences():
            if data not in DATA_SETS:
                raise unknown_name("data set", data, DATA_SETS)
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
            if not 0 < fraction < 1:
                raise ValueError(f"--fraction must lie strictly between 0 and 1; got {fraction:g}")
            counts = {"--epochs": epochs, "--batch-size": batch_size, "--draws": draws}
            counts |= {} if patience is None else {"--patience": patience}
            for option, count in counts.items():
                check_count(option, count, most=MOST)
            if not -(2**63) <= seed < 2**63:
                raise ValueError(f"--seed must be a whole number from -2^63 to 2^63 - 1; got {seed}")
            widths = _widths(hidden)
            options = _options(settings or [])
        if output is not None:
            check_weights("--output", output)
        if checkpoint is not None:
            check_weights("--checkpoint", checkpoint)
            if output is not None and checkpoint.resolve() == output.resolve():
                raise UserError("--checkpoint and --output are the same file; name another for one of them")
        if plot is not None:
            check_plot(plot)
        with errors_as_sentences():
            train, test = bs.data.images(data, "train"), bs.data.images(data, "test")
            parts = bs.data.split(train, max(1, round(len(train) * fraction)), seed)
        if not quiet:
            console().print(
                f"{len(parts.train):,} images to learn from, {len(parts.validation):,} to choose by, "
                f"{len(test):,} to test on",
                highlight=False,
            )
            if checkpoint is not None and checkpoint.exists():
                console().print(f"continuing from {checkpoint}", highlight=False, markup=False)
        with errors_as_sentences():
            trained = _train(
                parts, method, widths, epochs, patience, batch_size, seed, checkpoint, quiet, options
            )
            prediction = trained.predict(test.x, draws, batch_size=1000)
            scores = bs.metrics.evaluate(prediction, test.y)
        if not quiet:
            _show(trained, scores, draws)
        with errors_as_sentences():
            if output is not None:
                trained.posterior.save(output)
            if plot is not None:
                figure = bs.plotting.plot_reliability({method: (prediction.probs, test.y)})
                write_figure(figure, plot)
        if not quiet:
            report_written(output, plot)


def _widths(text: str) -> list[int]:
    try:
        widths = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--hidden is a list of widths such as 1000,1000; got {text!r}") from None
    for width in widths:
        check_count("--hidden", width, most=WIDEST)
    return widths


def _options(words: list[str]) -> dict[str, Any]:
    """Options of the method from words of the form key=value."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"--set takes key=value; got {word!r}")
        try:
            found[key] = math.inf if text == "inf" else json.loads(text.lower())
        except (ValueError, RecursionError):  # no JSON, or none that can be read: the method will judge it
            found[key] = text
    return found


def _train(
    parts: bs.data.Split,
    method: str,
    widths: list[int],
    epochs: int,
    patience: int | None,
    batch_size: int,
    seed: int,
    checkpoint: Path | None,
    quiet: bool,
    options: dict[str, Any],
) -> bs.nn.NetworkFit:
    import torch

    from bayescore.models import mlp

    train, validation = parts.train, parts.validation
    classes = 1 + int(torch.cat([train.y, validation.y]).max())
    layers = itertools.pairwise((train.x[0].numel(), *widths, classes))
    need = NUMBERS * 4 * sum((before + 1) * after for before, after in layers)
    check_memory("training this network", need, torch.device("cpu"), "make --hidden smaller")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = mlp(train.x[0].numel(), widths, classes)
    if method == "dropout":
        options.setdefault("p", 0.2)
    return bs.nn.fit(
        model,
        _loader(train, batch_size, seed),
        method=method,
        epochs=epochs,
        validation=_loader(validation, 1000),
        patience=patience,
        seed=seed,
        checkpoint=checkpoint,
        progress=False if quiet else None,
        **options,
    )


def _loader(part: bs.data.Images, batch_size: int, seed: int | None = None) -> DataLoader[Any]:
    """Batches of images, in a new order every epoch if a seed is given."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rng = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(part.x, part.y), batch_size, shuffle=seed is not None, generator=rng)


def _show(trained: bs.nn.NetworkFit, scores: dict[str, float], draws: int) -> None:
    out = console()
    out.print(f"{trained.status} ({trained.seconds:.0f} s)", highlight=False, markup=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(f"test images, {draws} draws")
    table.add_column("", justify="right")
    for name, heading in HEADINGS.items():
        table.add_row(heading, f"{scores[name]:.4f}")
    out.print(table)
