"""`bayescore train`: fine-tune a Bayesian network on pictures or texts, and measure its probabilities.

What needs torch is imported when the command runs, so that its help and its completion do not wait for it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import bayescore as bs
from bayescore.checks import check_count, check_memory, unknown_name
from bayescore.cli.terminal import UserError, console, errors_as_sentences, warnings_as_sentences

if TYPE_CHECKING:
    from bayescore.finetune import FineTuning, TrainedModel

__all__ = ["parse_options", "train_command"]

#: names for the help and the completion; a test compares them with `bayescore.data` and `bayescore.finetune`
DATA_SETS = ["pets", "flowers102", "aircraft", "dtd", "dtd10", "mnist", "digits"]
METHODS = [
    "proximal", "calibrated", "descent", "advi", "bam", "published-bam", "sgld", "plain", "dropout",
    "weight-dropout", "swag", "laplace", "ensemble", "last-layer",
]  # fmt: skip
KINDS = ["images", "text"]
GREY = {"mnist": 28, "digits": 8}  # sets of small grey pictures, and their sides
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
    "auroc_entropy": "AUROC of --outside, entropy",
    "auroc_mutual_information": "AUROC of --outside, mutual information",
}


@dataclass(frozen=True)
class _Request:
    """What the user asked for."""

    data: str
    kind: str
    net: str | None
    weights: str | None
    size: int | None
    length: int
    fraction: float | None
    hidden: list[int]
    freeze: int
    adapters: int
    augment: bool
    problems: str
    outside: str | None


def train_command(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of class folders, a CSV of paths or texts with labels, or a name: "
            f"{', '.join(DATA_SETS)}.",
            autocompletion=lambda: DATA_SETS,
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option(help=f"{' or '.join(KINDS)}; found out if left out.", autocompletion=lambda: KINDS),
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
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 20,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without improvement on validation.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per step: 16, or 128 for the network mlp, if left out.")
    ] = None,
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
    hidden: Annotated[str, typer.Option(help="Widths of the hidden layers of mlp.")] = "1000,1000,1000",
    freeze: Annotated[
        int, typer.Option(help="Stages, from the first, that are frozen, and what they make kept.")
    ] = 0,
    adapters: Annotated[
        int, typer.Option(help="Rank of low-rank adapters, trained in place of the body.")
    ] = 0,
    augment: Annotated[bool, typer.Option(help="Show random views of the pictures in training.")] = True,
    problems: Annotated[str, typer.Option(help="Files that are no pictures: skip or refuse.")] = "skip",
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
    plot: Annotated[Path | None, typer.Option(help="A reliability diagram (.png, .pdf or .svg).")] = None,
    sheet: Annotated[
        Path | None, typer.Option(help="The most and least certain test pictures (.png, .pdf or .svg).")
    ] = None,
    outside: Annotated[
        str | None, typer.Option(help="Data of another kind, as DATA: can the network tell them?")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="A folder for TensorBoard's scalars.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show problems only.")] = False,
) -> None:
    """Fine-tune a network on pictures or texts, Bayesian or plain, and measure it on test data."""
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
            counts |= {} if patience is None else {"--patience": patience}
            counts |= {} if batch_size is None else {"--batch-size": batch_size}
            counts |= {} if size is None else {"--size": size}
            for option, count in counts.items():
                check_count(option, count, most=MOST)
            for option, count in {"--freeze": freeze, "--adapters": adapters}.items():
                check_count(option, count, 0, most=MOST)
            if not -(2**63) <= seed < 2**63:
                raise ValueError(f"--seed must be a whole number from -2^63 to 2^63 - 1; got {seed}")
            request = _Request(
                data, kind or _kind(data), net, weights, size, length, fraction, _widths(hidden), freeze,
                adapters, augment, problems, outside,
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
            raise UserError("--sheet shows pictures, and the data are texts; leave it out")
        with errors_as_sentences():
            chosen = bs.finetune.FineTuning(
                method,
                epochs=epochs,
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
            parts, train = _prepared(request, seed)
        if not quiet:
            what = "pictures" if request.kind == "images" else "texts"
            console().print(
                f"{len(parts.train):,} {what} to learn from, {len(parts.validation):,} to choose by, "
                f"{len(parts.test):,} to test on; {len(parts.train.classes)} classes",
                highlight=False,
            )
            if checkpoint is not None and checkpoint.exists():
                console().print(f"continuing from {checkpoint}", highlight=False, markup=False)
        with errors_as_sentences(), _scalars(tensorboard) as log:
            found = train(
                chosen,
                checkpoint=checkpoint,
                checkpoint_minutes=checkpoint_minutes,
                on_epoch=log,
                progress=False if quiet else None,
            )
        if not quiet:
            _show(found, draws)
        with errors_as_sentences():
            if output is not None:
                found.save(output)
            if plot is not None:
                arms = {method: (found.prediction.probs, found.y)}
                write_figure(bs.plotting.plot_reliability(arms), plot)
            if sheet is not None:
                pictures, classes = found.test.pixels, found.description.outputs
                drawn = bs.plotting.plot_contact_sheet(pictures, found.prediction, classes, found.y)
                write_figure(drawn, sheet)
        if not quiet:
            report_written(output, plot, sheet)


def _kind(data: str) -> str:
    """The kind of the data: pictures, unless they are a table with a column of texts."""
    from bayescore.data.label_tables import table_kind

    if data in DATA_SETS:
        return "images"
    place = Path(data)
    if place.is_dir():
        return "images"
    if not place.exists():
        raise unknown_name("folder, file or data set", data, DATA_SETS)
    found = table_kind(place) if place.suffix.lower() == ".csv" else None
    if found is None:
        raise ValueError(
            f"{data} is neither a folder of class folders nor a .csv with a column of paths ('path') or of "
            "texts ('text') and one of labels ('label')"
        )
    return found


def _net(request: _Request) -> str:
    if request.net is not None:
        return request.net
    if request.kind == "text":
        raise ValueError("texts need an encoder; name a transformers folder with --net")
    return "mlp" if request.data in GREY else "small"


def _prepared(request: _Request, seed: int) -> tuple[Any, Callable[..., TrainedModel]]:
    """The data in three parts, and the function that trains on them."""
    share = None if request.fraction is None else 1 - request.fraction
    net = _net(request)
    if request.kind == "text":
        texts = bs.data.parts(bs.data.read_texts(request.data), seed, validation=share)
        texts = _limited(texts)
        other: Any = None if request.outside is None else bs.data.read_texts(request.outside)

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
    size = request.size or GREY.get(request.data) or _side(net, request.data)
    small = net in ("small", "mlp")
    stored = size if small or request.data in DATA_SETS else round(size * 8 / 7)
    pictures = _pictures(request.data, stored, request.problems)
    parts = _limited(bs.data.parts(pictures, seed, validation=share))
    arguments: dict[str, Any] = {"hidden": request.hidden} if net == "mlp" else {}
    if net == "mlp":
        widths = (pictures.pixels[0].numel(), *request.hidden, len(pictures.classes))
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


@contextmanager
def _scalars(folder: Path | None) -> Iterator[Callable[[dict[str, float]], None] | None]:
    """What writes the rows of the epochs for TensorBoard, if a folder is named."""
    if folder is None:
        yield None
        return
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise ImportError("--tensorboard needs tensorboard: pip install 'bayescore[tensorboard]'") from None
    writer = SummaryWriter(str(folder))

    def log(row: dict[str, float]) -> None:
        for name, value in row.items():
            if name != "epoch":
                writer.add_scalar(name, value, int(row["epoch"]))

    try:
        yield log
    finally:
        writer.close()


def _show(found: TrainedModel, draws: int) -> None:
    out = console()
    out.print(f"{found.status} ({found.seconds:.0f} s)", highlight=False, markup=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(f"{len(found.y):,} test data, {draws} draws")
    table.add_column("", justify="right")
    for name, heading in HEADINGS.items():
        if name in found.scores:
            table.add_row(heading, f"{found.scores[name]:.4f}")
    out.print(table)
