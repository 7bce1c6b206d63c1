"""A contact sheet: the pictures of which a classifier is most and least certain, and what it says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayescore.checks import check_count
from bayescore.plotting.style import figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_contact_sheet"]

RIGHT, WRONG, UNKNOWN = "#009E73", "#D55E00", "#666666"
LONGEST = 15  # characters of a class
COLUMNS = 8
# inches: a picture, the same with its lines, a title, the edge
SIDE, WIDTH, HEIGHT, TITLE, EDGE = 0.88, 0.98, 1.16, 0.26, 0.06


def plot_contact_sheet(
    pictures: Tensor, prediction: Any, classes: Sequence[str], labels: Tensor | None = None, count: int = 16
) -> Figure:
    """The `count` most certain pictures above the `count` least certain ones, by the entropy.

    Of few pictures a third is shown as certain and a third as uncertain, in full rows.

    Under a picture stand the class and its probability, green if it is right, orange if it is wrong, and then
    also the true class.

    Arguments:
        pictures: (n, channels, side, side) in bytes.
        prediction: a `ClassPrediction` of these pictures.
        classes: their names.
        labels: (n,), the true classes, if they are known.
    """
    check_count("count", count)
    if len(pictures) != len(prediction.probs):
        raise ValueError(f"{len(pictures)} pictures, and predictions for {len(prediction.probs)}")
    order = prediction.entropy.argsort().tolist()
    if count > len(order) // 3:
        count = max(1, len(order) // 3)
        count -= count % COLUMNS if count > COLUMNS else 0
    blocks = {"most certain": order[:count], "least certain": order[::-1][:count]}
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    block = TITLE + HEIGHT * rows
    width, height = WIDTH * columns + 2 * EDGE, 2 * block + EDGE
    with figure_style():
        figure = new_figure(width, height)
        figure.set_layout_engine("none")  # every place is given here
        for number, (title, chosen) in enumerate(blocks.items()):
            top = height - number * block - EDGE  # inches from below, as all places here
            figure.text(EDGE / width, top / height, title, va="top", fontweight="bold", fontsize="medium")
            for place, i in enumerate(chosen):
                row, column = divmod(place, columns)
                left = EDGE + WIDTH * column + (WIDTH - SIDE) / 2
                below = top - TITLE - HEIGHT * row - SIDE
                axes = figure.add_axes((left / width, below / height, SIDE / width, SIDE / height))
                axes.set_axis_off()
                _draw(axes, pictures[i], prediction, classes, i, labels)
    return figure


def _draw(
    axes: Axes, picture: Tensor, prediction: Any, classes: Sequence[str], i: int, labels: Tensor | None
) -> None:
    shown = picture.permute(1, 2, 0).numpy()  # (side, side, channels)
    grey = shown.shape[2] == 1
    axes.imshow(shown[..., 0] if grey else shown, cmap="gray" if grey else None, vmin=0, vmax=255)
    top = int(prediction.classes[i])
    truth = None if labels is None else int(labels[i])
    colour = UNKNOWN if truth is None else RIGHT if truth == top else WRONG
    lines = [f"{_shortened(classes[top])} {100 * float(prediction.probs[i, top]):.0f} %"]
    if truth is not None and truth != top:
        lines.append(f"is {_shortened(classes[truth])}")
    axes.text(
        0.5, -0.04, "\n".join(lines), transform=axes.transAxes, ha="center", va="top", color=colour,
        fontsize=5.6, linespacing=1.15,
    )  # fmt: skip


def _shortened(name: str) -> str:
    shown = name.replace("_", " ")
    shown = shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
    return shown.replace("$", r"\$")  # which would begin a formula
