"""The card of a trained model, written beside it: what it is, what it learned from, how well it does.

model_card.md      data, columns, settings, metrics on the test part, how to use it
calibration.png    whether its probabilities, or its intervals, are as right as they say
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayescore.cli.files import write_figure
from bayescore.io import write_bytes
from bayescore.plotting import plot_reliability, plot_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bayescore.finetune import TrainedModel
    from bayescore.tables import TrainedTable

__all__ = ["calibration_figure", "write_card"]

CARD, PICTURE = "model_card.md", "calibration.png"
SHOWN = 50  # classes or columns that are listed


def calibration_figure(found: TrainedModel | TrainedTable) -> Figure:
    """The reliability diagram of classes, or the calibration of values' intervals."""
    if hasattr(found.prediction, "outputs"):
        return plot_values(found.prediction, found.y)
    return plot_reliability({str(found.description.settings["method"]): (found.prediction, found.y)})


def write_card(
    folder: Path,
    found: TrainedModel | TrainedTable,
    data: str,
    counts: Mapping[str, int],
    headings: Mapping[str, str],
) -> None:
    """Write the card and, where matplotlib is installed, its picture into the folder of a model.

    Arguments:
        data: the name that the user gave.
        counts: rows of the parts, by name.
        headings: of the metrics, by name.
    """
    d = found.description
    drawn = find_spec("matplotlib") is not None
    if drawn:
        write_figure(calibration_figure(found), folder / PICTURE)
    what = d.preprocessing.get("target") if d.kind == "table" else "class"
    lines = [
        f"# Model card: {what} from {Path(data).name}",
        "",
        f"A Bayesian network of the kind `{d.kind}` ({d.network}), trained by the method "
        f"`{d.settings['method']}` in {found.seconds:.0f} s.",
        "",
        "## Data",
        "",
        f"- source: `{Path(data).name}`",
        *(f"- {count:,} rows: {name}" for name, count in counts.items()),
        f"- outputs: {_listed(d.outputs)}",
    ]
    columns = d.preprocessing.get("columns")
    if d.kind == "table" and columns:
        known = ["{name} ({kind})".format(**column) for column in columns]
        lines.append(f"- learned from: {_listed(known)}")
    lines += [f"- {note}" for note in getattr(found, "notes", ())]
    lines += ["", f"## Metrics on the {counts['test']:,} test rows", "", "| metric | value |", "|---|---|"]
    lines += [
        f"| {headings[name].strip()} (`{name}`) | {value:.4g} |"
        for name, value in d.metrics.items()
        if name in headings
    ]
    lines += ["", f"How training ended: {found.status}."]
    if drawn:
        lines += ["", "## Calibration", "", f"![calibration on the test rows]({PICTURE})"]
    lines += ["", "## Settings", "", "| setting | value |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in d.settings.items()]
    lines += ["", "## Use", "", "```shell", f"bayescore predict {folder} NEW", "```", ""]
    write_bytes(folder / CARD, "\n".join(lines).encode())


def _listed(words: list[str]) -> str:
    more = f", and {len(words) - SHOWN:,} more" if len(words) > SHOWN else ""
    return ", ".join(_cell(word) for word in words[:SHOWN]) + more


def _cell(value: Any) -> str:
    """A text that cannot end a cell of a table, or its line."""
    return " ".join(str(value).split()).replace("|", "\\|")
