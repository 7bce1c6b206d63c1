"""`bayescore train`: a Bayesian network for pictures, texts or a table, and the measure of its probabilities.

What needs torch is imported when the command runs, so that its help and its completion do not wait for it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import bayescore as bs
from bayescore.checks import check_count, check_memory, unknown_name
from bayescore.cli.terminal import (
    INTERRUPTED,
    UserError,
    console,
    errors_as_sentences,
    warnings_as_sentences,
)

if TYPE_CHECKING:
    from bayescore.finetune import FineTuning, TrainedModel
    from bayescore.tables import TrainedTable

__all__ = ["parse_options", "train_command"]

#: names for the help and the completion; a test compares them with `bayescore.data` and `bayescore.finetune`
DATA_SETS = ["pets", "flowers102", "aircraft", "dtd", "dtd10", "mnist", "digits"]
METHODS = [
    "proximal", "calibrated", "descent", "advi", "bam", "published-bam", "sgld", "plain", "dropout",
    "weight-dropout", "swag", "laplace", "ensemble", "last-layer",
]  # fmt: skip
KINDS = ["images", "text", "table"]
TASKS = ["classes", "values"]
GREY = {"mnist": 28, "digits": 8}  # sets of small grey pictures, and their sides
NAMED = 5  # classes that a sentence names
MOST = 10**9  # epochs, rows of a batch, draws
WIDEST = 10**6  # units of a layer
CHOOSE_BY = 5000  # pictures or texts on which the best epoch is chosen, at most
NUMBERS = 5  # per weight while it is trained: itself, its gradient, and three of the optimizer's
HEADINGS = {
    "error": "test error",
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "ECE, top label, 15 bins",
    "all_class_ece": "ECE, all classes, %",
    "all_class_ece_floor": "  of a calibrated network, %",
    "mce": "MCE",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "crps": "CRPS",
    "coverage_50": "values in 50 % intervals",
    "width_50": "  width of these",
    "coverage_90": "values in 90 % intervals",
    "width_90": "  width of these",
    "pit_distance": "distance of the PIT from uniform",
    "auroc_entropy": "AUROC of --outside, entropy",
    "auroc_mutual_information": "AUROC of --outside, mutual information",
}


@dataclass(frozen=True)
class _Request:
    """What the user asked for."""

    data: str
    kind: str
    target: str | None
    task: str | None
    net: str | None
    weights: str | None
    size: int | None
    length: int
    fraction: float | None
    hidden: list[int] | None
    freeze: int
    adapters: int
    augment: bool
    problems: str
    outside: str | None


def train_command(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of class folders, a CSV of paths or texts with labels, a CSV table, or a name: "
            f"{', '.join(DATA_SETS)}.",
            autocompletion=lambda: DATA_SETS,
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option(help=f"{' or '.join(KINDS)}; found out if left out.", autocompletion=lambda: KINDS),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column of a table to predict; the others are learned from.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="What the target is: classes or values; found out if left out.", autocompletion=lambda: TASKS
        ),
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(
            help="The network: a name of torchvision (resnet101), timm/<name>, efficientnet_lite0, small or "
            "mlp; for texts a transformers folder."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="'pretrained', by the library's own loader, or a file (.safetensors, .pth, .npz)."),
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"{', '.join(METHODS)}.", autocompletion=lambda: METHODS)
    ] = "proximal",
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the data: 20, or of a table about 600 steps, if left out."),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without improvement on validation.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Rows per step: 16, 128 for the network mlp, a twentieth of a table, if left out."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of a table's network.")] = None,
    body_lr: Annotated[float | None, typer.Option(help="Learning rate of the body.")] = None,
    head_lr: Annotated[float | None, typer.Option(help="Learning rate of the new head.")] = None,
    batchnorm: Annotated[
        str, typer.Option(help="BatchNorm's statistics: frozen, training or re-estimated.")
    ] = "frozen",
    fraction: Annotated[
        float | None,
        typer.Option(help="Share of the training data to learn from; up to 5,000 others choose the epoch."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Side of the network's pictures: 224, or that of the data, if left out."),
    ] = None,
    length: Annotated[int, typer.Option(help="Most tokens of a text.")] = 128,
    hidden: Annotated[
        str | None,
        typer.Option(help="Widths of the hidden layers: 1000,1000,1000 of mlp, 64,64 of a table."),
    ] = None,
    freeze: Annotated[
        int, typer.Option(help="Stages, from the first, that are frozen, and what they make kept.")
    ] = 0,
    adapters: Annotated[
        int, typer.Option(help="Rank of low-rank adapters, trained in place of the body.")
    ] = 0,
    augment: Annotated[bool, typer.Option(help="Show random views of the pictures in training.")] = True,
    problems: Annotated[
        str, typer.Option(help="Files that are no pictures, rows without a text or a label: skip or refuse.")
    ] = "skip",
    accumulate: Annotated[int, typer.Option(help="Run every batch in so many pieces, to save memory.")] = 1,
    bf16: Annotated[bool, typer.Option("--bf16", help="Run the network in bfloat16.")] = False,
    draws: Annotated[int, typer.Option(help="Draws of the weights for the predictions at the end.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the split, the weights and the noise.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any option of the method, such as lr=0.003; may be repeated."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Write the state of training here after every epoch (.safetensors), and go on from it if "
            "the file exists."
        ),
    ] = None,
    checkpoint_minutes: Annotated[
        float | None, typer.Option(help="Also write it after so many minutes.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The folder of the model, for `bayescore predict`.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A picture of the calibration (.png, .pdf or .svg).")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(help="The most and least certain test pictures (.png, .pdf or .svg).")
    ] = None,
    outside: Annotated[
        str | None, typer.Option(help="Data of another kind, as DATA: can the network tell them?")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="A folder for TensorBoard's scalars.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show problems only.")] = False,
) -> None:
    """Train a network on pictures, texts or a table, Bayesian or plain, and measure it on test data.

    Exit codes: 0 for a model, 2 for a request that cannot be met, 130 for Ctrl-C (what was trained by then is
    measured and written).
    """
    from bayescore.cli.card import calibration_figure, write_card
    from bayescore.cli.files import check_folder, check_plot, check_weights, report_written, write_figure

    with warnings_as_sentences():
        with errors_as_sentences():
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
            if kind is not None and kind not in KINDS:
                raise unknown_name("kind of data", kind, KINDS)
            if fraction is not None and not 0 < fraction < 1:
                raise ValueError(f"--fraction must lie strictly between 0 and 1; got {fraction:g}")
            counts = {"--epochs": epochs, "--draws": draws, "--length": length, "--accumulate": accumulate}
            counts |= {"--patience": patience, "--batch-size": batch_size, "--size": size}
            for option, count in counts.items():
                if count is not None:
                    check_count(option, count, most=MOST)
            for option, count in {"--freeze": freeze, "--adapters": adapters}.items():
                check_count(option, count, 0, most=MOST)
            if not -(2**63) <= seed < 2**63:
                raise ValueError(f"--seed must be a whole number from -2^63 to 2^63 - 1; got {seed}")
            request = _Request(
                data, kind or _kind(data, target), target, task, net, weights, size, length, fraction,
                None if hidden is None else _widths(hidden), freeze, adapters, augment, problems, outside,
            )  # fmt: skip
            options = parse_options(settings or [])
        if output is not None:
            check_folder("--output", output)
        if checkpoint is not None:
            check_weights("--checkpoint", checkpoint)
        elif checkpoint_minutes is not None:
            raise UserError("--checkpoint-minutes lie between two writes; name the file with --checkpoint")
        for option, picture in {"--plot": plot, "--sheet": sheet}.items():
            if picture is not None:
                check_plot(picture, option)
        if sheet is not None and request.kind != "images":
            raise UserError(f"--sheet shows pictures, and the data are of the kind {request.kind}")
        with errors_as_sentences():
            pictures_only = {"--body-lr": body_lr, "--head-lr": head_lr, "--bf16": bf16}
            _check_options(request, lr, {**pictures_only, "--accumulate": accumulate > 1})
            chosen: Any = (
                bs.tables.RowSettings(
                    method,
                    hidden=request.hidden or [64, 64],
                    lr=lr,
                    epochs=epochs,
                    batch_size=batch_size,
                    patience=patience,
                    seed=seed,
                    options=options,
                )
                if request.kind == "table"
                else bs.finetune.FineTuning(
                    method,
                    epochs=epochs or 20,
                    batch_size=batch_size or (128 if _net(request) == "mlp" else 16),
                    body_lr=body_lr,
                    head_lr=head_lr,
                    pretrained=request.kind == "text" or weights is not None,
                    batchnorm=batchnorm,
                    patience=patience,
                    draws=draws,
                    seed=seed,
                    accumulate=accumulate,
                    autocast=bf16,
                    options=options,
                )
            )
            parts, train = _prepared(request, seed, draws)
        if not quiet:
            what = {"images": "pictures", "text": "texts", "table": "rows"}[request.kind]
            count = len(parts.train.classes)
            kinds = f"{count} classes" if count else "values"
            console().print(
                f"{len(parts.train):,} {what} to learn from, {len(parts.validation):,} to choose by, "
                f"{len(parts.test):,} to test on; {kinds}{_untested(parts)}",
                highlight=False,
                markup=False,
            )
            if checkpoint is not None and checkpoint.exists():
                console().print(f"continuing from {checkpoint}", highlight=False, markup=False)
        with errors_as_sentences():
            found = train(
                chosen,
                checkpoint=checkpoint,
                checkpoint_minutes=checkpoint_minutes,
                callbacks=None if tensorboard is None else bs.nn.TensorBoard(tensorboard),
                progress=False if quiet else None,
            )
        with errors_as_sentences():
            if output is not None:
                found.save(output)
                sizes = {name: len(getattr(parts, name)) for name in ("train", "validation", "test")}
                write_card(output, found, data, sizes, HEADINGS)
            if plot is not None:
                write_figure(calibration_figure(found), plot)
            if sheet is not None:
                pictures, classes = parts.test.pixels, found.description.outputs
                drawn = bs.plotting.plot_contact_sheet(pictures, found.prediction, classes, found.y)
                write_figure(drawn, sheet)
        if not quiet:  # last: what is trained is kept, also if nobody reads on
            _show(found, draws)
            report_written(output, plot, sheet)
    if "interrupted in epoch" in found.status:
        if checkpoint is not None and not quiet:
            console().print(f"the same command goes on from {checkpoint}", highlight=False, markup=False)
        raise typer.Exit(INTERRUPTED)


def _untested(parts: Any) -> str:
    """The classes that no test datum is of: they had too few data to be divided."""
    tested = set(parts.test.y.tolist()) if parts.train.classes else set()
    names = [name for i, name in enumerate(parts.train.classes) if i not in tested]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"; too few to be tested too: {', '.join(names[:NAMED])}{more}" if names else ""


def _kind(data: str, target: str | None) -> str:
    """The kind of the data: pictures, unless they are a CSV with a column of texts, or any other."""
    from bayescore.data.label_tables import TABLES, table_kind

    if data in DATA_SETS:
        return "images"
    place = Path(data)
    if place.is_dir():
        return "images"
    if not place.exists():
        raise unknown_name("folder, file or data set", data, DATA_SETS)
    if place.suffix.lower() not in TABLES:
        raise ValueError(
            f"{data} is neither a folder of class folders nor a .csv or .tsv: a table, or one with a column "
            "of paths ('path') or of texts ('text') and one of labels ('label'); save other tables as CSV"
        )
    return "table" if target is not None else table_kind(place) or "table"


def _check_options(request: _Request, lr: float | None, others: dict[str, Any]) -> None:
    """Refuse what a kind of data has no use for, and a table without a target."""
    if request.kind != "table":
        if request.target is not None or request.task is not None:
            raise ValueError("--target and --task name what is predicted in a table; leave them out")
        if lr is not None:
            raise ValueError(
                "--lr is for tables; networks for pictures and texts have --body-lr and --head-lr"
            )
        if request.kind == "text":
            _net(request)  # there must be one
            of_pictures = {
                "--weights": request.weights, "--size": request.size, "--freeze": request.freeze,
                "--hidden": request.hidden,
            }  # fmt: skip
            for option, value in of_pictures.items():
                if value:
                    raise ValueError(f"{option} is for pictures, and {request.data} has texts; leave it out")
        return
    if request.target is None:
        from bayescore.data.label_tables import csv_rows

        columns = ", ".join(csv_rows(Path(request.data))[0])
        raise ValueError(f"name the column to predict with --target; the columns are {columns[:200]}")
    unused = {
        "--net": request.net, "--weights": request.weights, "--size": request.size,
        "--fraction": request.fraction, "--freeze": request.freeze, "--adapters": request.adapters,
        "--outside": request.outside, **others,
    }  # fmt: skip
    for option, value in unused.items():
        if value:
            raise ValueError(
                f"{option} is for pictures and texts, and {request.data} is a table; leave it out"
            )


def _net(request: _Request) -> str:
    if request.net is not None:
        return request.net
    if request.kind == "text":
        raise ValueError("texts need an encoder; name a transformers folder with --net")
    return "mlp" if request.data in GREY else "small"


def _prepared(
    request: _Request, seed: int, draws: int
) -> tuple[Any, Callable[..., TrainedModel | TrainedTable]]:
    """The data in three parts, and the function that trains on them."""
    from bayescore.models.encoders import read_tokens
    from bayescore.models.networks import check_network

    if request.kind == "table":
        table = bs.data.parts(bs.data.read_table(request.data, request.target or "", request.task), seed)
        table = _limited(table)
        return table, lambda settings, **options: bs.tables.train_table(
            table, settings, draws=draws, **options
        )
    share = None if request.fraction is None else 1 - request.fraction
    net = _net(request)
    if request.kind == "text":
        read_tokens(net, request.length)  # what lacks of the encoder is said before anything is read
        texts = bs.data.read_texts(request.data, problems=request.problems)
        texts = _limited(bs.data.parts(texts, seed, validation=share))
        other: Any = None
        if request.outside is not None:
            other = bs.data.read_texts(request.outside, problems=request.problems)

        def train_texts(settings: FineTuning, **options: Any) -> TrainedModel:
            return bs.finetune.train_texts(
                texts,
                net,
                settings,
                length=request.length,
                adapters=request.adapters,
                outside=other,
                **options,
            )

        return texts, train_texts
    check_network(net, request.weights)
    size = request.size or GREY.get(request.data) or _side(net, request.data)
    small = net in ("small", "mlp")
    stored = size if small or request.data in DATA_SETS else round(size * 8 / 7)
    pictures = _pictures(request.data, stored, request.problems)
    parts = _limited(bs.data.parts(pictures, seed, validation=share))
    hidden = request.hidden or [1000, 1000, 1000]
    arguments: dict[str, Any] = {"hidden": hidden} if net == "mlp" else {}
    if net == "mlp":
        widths = (pictures.pixels[0].numel(), *hidden, len(pictures.classes))
        need = NUMBERS * 4 * sum((before + 1) * after for before, after in itertools.pairwise(widths))
        check_memory("training this network", need, _cpu(), "make --hidden smaller")
    other = None
    if request.outside is not None:
        other = _pictures(
            request.outside, pictures.pixels.shape[-1], request.problems, pictures.pixels.shape[1]
        )

    def train_images(settings: FineTuning, **options: Any) -> TrainedModel:
        return bs.finetune.train_images(
            parts, net, settings, weights=request.weights, size=size, freeze=request.freeze,
            adapters=request.adapters, augment=request.augment and request.data not in GREY, outside=other,
            arguments=arguments, **options,
        )  # fmt: skip

    return parts, train_images


def _cpu() -> Any:
    import torch

    return torch.device("cpu")


def _side(net: str, data: str) -> int:
    """The side of a network's pictures, if none is given."""
    if net in ("small", "mlp"):
        return 64
    return 96 if data in DATA_SETS else 224


def _pictures(data: str, size: int, problems: str, channels: int | None = None) -> bs.data.Pictures:
    if data in DATA_SETS:
        found = bs.data.named_pictures(data, size)
        if channels is not None and channels != found.pixels.shape[1]:
            raise ValueError(
                f"--outside {data} has {found.pixels.shape[1]} channels, the data have {channels}"
            )
        return found
    return bs.data.read_pictures(data, size, channels=channels or 3, problems=problems)


def _limited(parts: Any) -> Any:
    """At most so many rows to choose by: they are predicted after every epoch."""
    import torch

    if len(parts.validation) <= CHOOSE_BY:
        return parts
    return bs.data.Parts(parts.train, parts.validation[torch.arange(CHOOSE_BY)], parts.test)


def _widths(text: str) -> list[int]:
    try:
        widths = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--hidden is a list of widths such as 1000,1000; got {text!r}") from None
    for width in widths:
        check_count("--hidden", width, most=WIDEST)
    return widths


def parse_options(words: list[str]) -> dict[str, Any]:
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


def _show(found: TrainedModel | TrainedTable, draws: int) -> None:
    out = console()
    for note in getattr(found, "notes", ()):
        out.print(note, highlight=False, markup=False)
    out.print(f"{found.status} ({found.seconds:.0f} s)", highlight=False, markup=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(f"{len(found.y):,} test data, {draws} draws")
    table.add_column("", justify="right")
    for name, heading in HEADINGS.items():
        if name in found.scores:
            table.add_row(heading, f"{found.scores[name]:.4f}")
    out.print(table)
