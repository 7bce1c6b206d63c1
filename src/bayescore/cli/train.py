"""`bayescore train`: a Bayesian network on a data set by name, and how good its probabilities are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from bayescore.checks import check_count, unknown_name
from bayescore.cli.errors import explained, spoken_warnings
from bayescore.cli.files import check_plot, check_weights, write_figure
from bayescore.cli.summary import console
from bayescore.data import IMAGE_SETS, Images, images, split
from bayescore.metrics import evaluate
from bayescore.models import mlp
from bayescore.nn import NetworkFit, fit
from bayescore.nn.methods import METHODS
from bayescore.plotting.calibration import plot_reliability

__all__ = ["add_commands", "train_command"]

TRAINABLE = tuple(name for name in IMAGE_SETS if name != "fashion_mnist")
HEADINGS = {
    "error": "test error",
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "ECE, top label, 15 bins",
    "all_class_ece": "ECE, all classes, %",
    "mce": "MCE",
}


def train_command(
    data: Annotated[str, typer.Option(help=f"The images: {' or '.join(TRAINABLE)}.")] = "digits",
    fraction: Annotated[
        float, typer.Option(help="Share of the training images to learn from; up to 5,000 others validate.")
    ] = 0.5,
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}.")] = "proximal",
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
            help="Any option of the method, such as prior_sd=0.5; may be repeated.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The posterior (.safetensors).")] = None,
    plot: Annotated[Path | None, typer.Option(help="A reliability diagram (.png, .pdf or .svg).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show problems only.")] = False,
) -> None:
    """Train a perceptron on images, Bayesian or plain, and measure its probabilities on the test images."""
    with spoken_warnings():
        with explained():
            if data not in TRAINABLE:
                raise unknown_name("data set", data, TRAINABLE)
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
            if not 0 < fraction < 1:
                raise ValueError(f"--fraction must lie strictly between 0 and 1; got {fraction:g}")
            for option, count in {
                "--epochs": epochs,
                "--batch-size": batch_size,
                "--draws": draws,
            }.items():
                check_count(option, count)
            widths = _widths(hidden)
            options = _options(settings or [])
        if output is not None:
            check_weights(output)
        if plot is not None:
            check_plot(plot)
        with explained():
            train, test = images(data, "train"), images(data, "test")
            parts = split(train, max(1, round(len(train) * fraction)), seed)
        if not quiet:
            console().print(
                f"{len(parts.train):,} images to learn from, {len(parts.validation):,} to choose by, "
                f"{len(test):,} to test on",
                highlight=False,
            )
        with explained():
            found = _train(parts.train, parts.validation, method, widths, epochs, patience, batch_size, seed,
                           None if not quiet else False, options)  # fmt: skip
            prediction = found.predict(test.x, draws, batch_size=1000)
            scores = evaluate(prediction, test.y)
        if not quiet:
            _show(found, scores, draws)
        with explained():
            if output is not None:
                found.posterior.save(output)
            if plot is not None:
                write_figure(plot_reliability({method: (prediction.probs, test.y)}), plot)
        for path in (output, plot):
            if path is not None and not quiet:
                console().print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def _widths(text: str) -> list[int]:
    try:
        widths = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--hidden is a list of widths such as 1000,1000; got {text!r}") from None
    for width in widths:
        check_count("--hidden", width)
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
        except json.JSONDecodeError:
            found[key] = text
    return found


def _loader(part: Images, batch_size: int, seed: int | None = None) -> DataLoader[Any]:
    rng = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(part.x, part.y), batch_size, shuffle=seed is not None, generator=rng)


def _train(
    train: Images,
    validation: Images,
    method: str,
    widths: list[int],
    epochs: int,
    patience: int | None,
    batch_size: int,
    seed: int,
    progress: bool | None,
    options: dict[str, Any],
) -> NetworkFit:
    classes = 1 + int(torch.cat([train.y, validation.y]).max())
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = mlp(train.x[0].numel(), widths, classes)
    if method == "dropout":
        options.setdefault("p", 0.2)
    return fit(
        model,
        _loader(train, batch_size, seed),
        method=method,
        epochs=epochs,
        validation=_loader(validation, 1000),
        patience=patience,
        seed=seed,
        progress=progress,
        **options,
    )


def _show(found: NetworkFit, scores: dict[str, float], draws: int) -> None:
    out = console()
    out.print(f"{found.status} ({found.seconds:.0f} s)", highlight=False, markup=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(f"test images, {draws} draws")
    table.add_column("", justify="right")
    for name, heading in HEADINGS.items():
        table.add_row(heading, f"{scores[name]:.4f}")
    out.print(table)


def add_commands(app: typer.Typer) -> None:
    """Add `train` to the command."""
    app.command("train")(train_command)
    app.callback()(lambda: None)  # without it, a single command would stand for the whole
