"""The demonstration: three networks that learn to read digits, and whether they know what they do not know.

    python examples/demo.py        # prints a table, writes demo/demo.png

A perceptron learns the digits 0 to 7 from 200 of scikit-learn's images: as a plain network, by ADVI, and by
proximal score matching with the paper's inner loop. The last two run at a temperature of 0.1; all other
options keep their defaults. The eights and nines are never shown in training: a network that knows what it
has seen is less certain about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from bayescore.data import Images, images, split
from bayescore.metrics import evaluate
from bayescore.models import mlp
from bayescore.nn import ClassPrediction, fit
from bayescore.plotting import draw_reliability
from bayescore.plotting.style import figure_style, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Reader", "demonstrate", "main", "make_table", "picture"]

KNOWN = 8  # classes 0 to 7; 8 and 9 are unseen
TRAIN, BATCH, EPOCHS, DRAWS = 200, 32, 100, 50
HIDDEN = (200, 200)
PLACE = Path("demo/demo.png")
METHODS: dict[str, dict[str, Any]] = {
    "plain network": {"method": "plain"},
    "ADVI": {"method": "advi", "temperature": 0.1},
    "ProximalDescent": {"method": "descent", "temperature": 0.1},
}
COLUMNS: dict[str, Callable[[dict[str, float]], str]] = {
    "accuracy": lambda s: f"{100 * (1 - s['error']):.1f} %",
    "NLL": lambda s: f"{s['nll']:.3f}",
    "ECE": lambda s: f"{100 * s['ece']:.1f} %",
    "OOD AUROC": lambda s: f"{s['auroc_entropy']:.3f}",
}


@dataclass(frozen=True)
class Reader:
    """A trained network: its predictions for known and unseen digits, their scores, and the time it took."""

    known: ClassPrediction
    unseen: ClassPrediction
    scores: dict[str, float]
    seconds: float


def digits() -> tuple[Images, Images, Images]:
    """Images to learn from, test images of the known classes, and images of the unseen ones."""
    train, test = images("digits", "train"), images("digits", "test")
    known = train[train.y < KNOWN]
    return split(known, TRAIN, seed=0).train, test[test.y < KNOWN], test[test.y >= KNOWN]


def demonstrate(epochs: int = EPOCHS) -> dict[str, Reader]:
    """Train the three networks, from the same initial weights and on the same images."""
    train, test, unseen = digits()
    found = {}
    for name, options in METHODS.items():
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            model = mlp(64, HIDDEN, KNOWN)
        trained = fit(model, _loader(train), epochs=epochs, progress=False, **options)
        on_known, on_unseen = (trained.predict(part.x, DRAWS) for part in (test, unseen))
        scores = evaluate(on_known, test.y, on_unseen)
        found[name] = Reader(on_known, on_unseen, scores, trained.seconds)
    return found


def _loader(part: Images) -> DataLoader[Any]:
    rng = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(part.x, part.y), BATCH, shuffle=True, generator=rng)


def make_table(readers: Mapping[str, Reader]) -> Table:
    """Accuracy, calibration, detection of unseen digits, and cost."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("network", no_wrap=True)
    for column in (*COLUMNS, "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, reader in readers.items():
        table.add_row(name, *(show(reader.scores) for show in COLUMNS.values()), f"{reader.seconds:.1f} s")
    return table


def picture(readers: Mapping[str, Reader]) -> Figure:
    """Reliability diagrams; the digits that ProximalDescent is least certain about; the unseen ones."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("the picture needs matplotlib: pip install 'bayescore[plot]'") from missing
    _, test, unseen = digits()
    last = readers["ProximalDescent"]
    with figure_style():
        figure = Figure(figsize=(8.6, 6.2), layout="constrained")
        rows: Any = figure.subfigures(3, 1, height_ratios=(2.3, 1.25, 1.25))
        above, middle, below = rows
        above.suptitle("Confidence, and how often it was right: digits 0 to 7 from 200 images")
        panels = above.subplots(1, len(readers), sharey=True)
        for axes, (name, reader) in zip(panels, readers.items(), strict=True):
            draw_reliability(axes, reader.known.probs, test.y, bins=10, colour=looks(readers)[name].colour)
            axes.set_title(f"{name}, {100 * (1 - reader.scores['error']):.1f} % right")
            axes.set_xlabel("confidence")
        panels[0].set_ylabel("accuracy")
        middle.suptitle("What ProximalDescent is least certain about")
        _row(middle.subplots(1, 8), test, last.known)
        below.suptitle("What it has never seen: eights and nines")
        _row(below.subplots(1, 8), unseen, last.unseen)
    return figure


def _row(panels: Any, part: Images, prediction: ClassPrediction) -> None:
    """The most uncertain images with their two most probable classes."""
    for axes, index in zip(panels, prediction.entropy.argsort(descending=True)[: len(panels)], strict=True):
        _image(axes, part, prediction, int(index))


def _image(axes: Axes, part: Images, prediction: ClassPrediction, index: int) -> None:
    share, classes = prediction.probs[index].topk(2)
    axes.imshow(part.x[index].numpy(), cmap="gray_r")
    classes_and_shares = ", ".join(
        f"{int(k)}: {100 * float(p):.0f} %" for k, p in zip(classes, share, strict=True)
    )
    axes.set_title(f"a {int(part.y[index])}", fontsize=9)
    axes.set_xlabel(classes_and_shares, fontsize=8)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)


def main() -> None:
    """Train, print the table, write the picture."""
    out = Console(soft_wrap=True, highlight=False)
    out.print(f"Three networks learn the digits 0 to 7 from {TRAIN} images of scikit-learn's ...")
    readers = demonstrate()
    out.print(make_table(readers))
    count = len(readers["ProximalDescent"].known.probs)
    out.print(f"\nTested on {count} other images; ECE: top label, 15 bins; lower is better for NLL and ECE.")
    out.print("ADVI and ProximalDescent at temperature 0.1, one seed: an illustration, not a comparison.")
    out.print(
        "OOD AUROC: how well the entropy tells the eights and nines, never seen, from the other digits."
    )
    PLACE.parent.mkdir(exist_ok=True)
    picture(readers).savefig(PLACE, dpi=110)
    out.print(f"wrote {PLACE}")


if __name__ == "__main__":
    main()
