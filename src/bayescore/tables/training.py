"""From a table to a trained model with its scores on held-out rows, its folder, and predictions of new rows.

parts = bs.data.parts(bs.data.read_table("houses.csv", "price"))
found = bs.tables.train_table(parts)
found.save("model")
bs.tables.load_table("model").predict("new.csv")
"""

from __future__ import annotations

import itertools
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayescore.data.splitting import Parts
from bayescore.data.tables import Table, read_columns
from bayescore.metrics.evaluation import evaluate
from bayescore.model_folder import ModelDescription, SavedModel, read_model, write_model
from bayescore.models.members import MLPMembers
from bayescore.posteriors.base import WeightPosterior
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction
from bayescore.tables.columns import Column, encode, learn_columns
from bayescore.tables.rows import RowSettings, RowsModel, Scaling, fit_rows

__all__ = ["TableModel", "TrainedTable", "load_table", "predict_new", "train_table"]

Floats = NDArray[np.float64]
NETWORK = "perceptrons side by side"
LEVEL = 0.9  # of the intervals in the rows of a prediction


@dataclass(frozen=True)
class TableModel:
    """A model for the rows of a table: its columns, and the network behind them.

    unused: columns of the table that were left out.
    """

    columns: list[Column]
    unused: list[str]
    target: str
    classes: list[str]
    rows: RowsModel

    def predict(
        self, new: str | Path | Table, draws: int = 30, seed: int = 0
    ) -> ClassPrediction | ValuePrediction:
        """The prediction for the rows of a CSV file, or of a table that was read."""
        numbers: tuple[int, ...] = ()
        if isinstance(new, Table):
            cells, what, numbers = new.columns, new.source, new.rows
        else:
            cells, what = read_columns(Path(new)), str(new)
            known = {column.name for column in self.columns} | {self.target, *self.unused}
            more = [name for name in cells if name not in known]
            if more:
                shown = ", ".join(map(repr, more[:5]))
                warnings.warn(
                    f"{what}: the columns {shown} were not there in training and are ignored", stacklevel=2
                )
        return self.rows.predict(encode(self.columns, cells, what, numbers), draws, seed)


@dataclass(frozen=True)
class TrainedTable:
    """A model trained on a table and its scores on the test rows.

    y: of the test rows, classes or values.  notes: what was decided about columns and rows, in sentences.
    """

    description: ModelDescription
    model: TableModel
    prediction: ClassPrediction | ValuePrediction
    y: torch.Tensor
    notes: list[str]

    @property
    def scores(self) -> dict[str, float]:
        """The metrics of the description."""
        return self.description.metrics

    @property
    def status(self) -> str:
        """How training went."""
        return self.model.rows.status

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.model.rows.seconds

    def save(self, folder: str | os.PathLike[str]) -> SavedModel:
        """Write the model into a folder."""
        return write_model(folder, self.description, self.model.rows.posterior)


def train_table(
    parts: Parts[Table], settings: RowSettings | None = None, *, draws: int = 30, **options: Any
) -> TrainedTable:
    """Train the default network on a table.

    Arguments:
        parts: of a table, to learn from, to choose the best epoch by and to test on.
        draws: of the weights, for the prediction of the test rows.
        options: of `nn.fit`: checkpoint, on_epoch, progress, ...
    """
    if not isinstance(parts, Parts):
        raise TypeError(
            "train_table takes the parts of a table, bs.data.parts(bs.data.read_table('houses.csv', 'price'))"
            f"; got a {type(parts).__name__} (bayescore.sklearn has estimators for arrays and frames)"
        )
    s = settings or RowSettings()
    if s.network is not None:
        raise ValueError("a table is learned by the default network, so that it can be loaded again")
    columns, notes = learn_columns(parts.train.columns)
    x, y = _numbers(columns, parts.train)
    count = len(parts.train.classes)
    rows = fit_rows(x, y, count, s, validation=_numbers(columns, parts.validation), **options)
    used = {column.name for column in columns}
    unused = [name for name in parts.train.columns if name not in used]
    model = TableModel(columns, unused, parts.train.target, list(parts.train.classes), rows)
    prediction = model.predict(parts.test, draws)
    answers = torch.as_tensor(_answers(parts.test))
    network = rows.posterior.model
    assert isinstance(network, MLPMembers)
    description = ModelDescription(
        "table",
        NETWORK,
        {
            "inputs": x.shape[1],
            "hidden": list(s.hidden),
            "outputs": int(network.weights[-1].shape[2]),
            "members": s.members,
            "classes": network.classes,
        },
        {
            "target": model.target,
            "columns": [column.as_json() for column in columns],
            "unused": unused,
            "inputs": _as_json(rows.inputs),
            "targets": None if rows.targets is None else _as_json(rows.targets),
            "bent": rows.bent,
        },
        model.classes or [model.target],
        _recorded(rows.settings or s, count),
        evaluate(prediction, answers),
    )
    return TrainedTable(description, model, prediction, answers, [*parts.train.notes, *notes])


def _recorded(s: RowSettings, classes: int) -> dict[str, Any]:
    """The settings that say something of a table's model, whose validation rows are given."""
    without = ["network", "early_stopping", "validation_fraction", "options", *["noise"] * (classes > 0)]
    found = {name: value for name, value in asdict(s).items() if name not in without and value is not None}
    return {**found, **s.options}


def _numbers(columns: list[Column], table: Table) -> tuple[Floats, NDArray[Any]]:
    return encode(columns, table.columns, table.source, table.rows), _answers(table)


def _answers(table: Table) -> NDArray[Any]:
    return table.y.numpy() if table.classes else table.values[:, None]


def _as_json(scaling: Scaling) -> dict[str, list[float]]:
    return {"mean": scaling.mean.tolist(), "sd": scaling.sd.tolist()}


def _scaling(entry: Any, count: int) -> Scaling:
    mean, sd = (np.array(entry[name], dtype=np.float64) for name in ("mean", "sd"))
    if mean.shape != (count,) or sd.shape != (count,) or not (sd > 0).all():
        raise ValueError(f"its scaling is not that of {count} columns")
    return Scaling(mean, sd)


def load_table(folder: str | os.PathLike[str]) -> TableModel:
    """The model in a folder."""
    return _model(read_model(folder))


def _model(saved: SavedModel) -> TableModel:
    d = saved.description
    if d.kind != "table":
        raise ValueError(f"the model in {saved.folder} is for {d.kind}, not for a table")
    try:
        _check_size(saved)
        columns = [Column.from_json(entry) for entry in d.preprocessing["columns"]]
        unused = [str(name) for name in d.preprocessing["unused"]]
        arguments, target = d.arguments, d.preprocessing["target"]
        network = MLPMembers(
            arguments["inputs"],
            arguments["hidden"],
            arguments["outputs"],
            arguments["members"],
            classes=bool(arguments["classes"]),
        )
        inputs = _scaling(d.preprocessing["inputs"], arguments["inputs"])
        values = d.preprocessing["targets"]
        targets = None if values is None else _scaling(values, 1)
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        raise ValueError(f"{saved.folder} does not describe a table's model: {problem!r}") from problem
    posterior = saved.posterior(network)
    if not isinstance(posterior, WeightPosterior):
        raise TypeError(f"the weights in {saved.folder} are those of an ensemble, not of a table's model")
    network.double()
    rows = RowsModel(posterior, inputs, targets, bool(d.preprocessing["bent"]), True, "", [], 0, 0.0)
    return TableModel(columns, unused, str(target), list(d.outputs) if targets is None else [], rows)


def _check_size(saved: SavedModel) -> None:
    """Raise if the network that is described has more weights than its file can hold."""
    a = saved.description.arguments
    widths = [a["inputs"], *a["hidden"], a["outputs"]]
    need = 4 * a["members"] * sum((before + 1) * after for before, after in itertools.pairwise(widths))
    there = sum(file.stat().st_size for file in saved.folder.glob("*.safetensors"))
    if need > there:
        raise ValueError(f"its network needs {need:,} bytes, and the weights beside it have {there:,}")


def predict_new(saved: SavedModel, new: Path, draws: int, seed: int) -> list[dict[str, str | int | float]]:
    """A row for each row of a new table: the class with its probability, or the value with its interval."""
    model = _model(saved)
    found = model.predict(new, draws, seed)
    if isinstance(found, ClassPrediction):
        top, probability = found.classes.tolist(), found.probs.max(1).values.tolist()
        return [
            {
                "row": i + 1,
                model.target: model.classes[top[i]],
                "probability": probability[i],
                "entropy": entropy,
                "mutual_information": information,
            }
            for i, (entropy, information) in enumerate(
                zip(found.entropy.tolist(), found.mutual_information.tolist(), strict=True)
            )
        ]
    low, high = found.interval(LEVEL)
    ends = f"{100 * LEVEL:.0f}"
    names = ("row", model.target, "std", f"lower_{ends}", f"upper_{ends}")
    columns = (v[:, 0].tolist() for v in (found.mean, found.std, low, high))
    return [dict(zip(names, (i, *row), strict=True)) for i, row in enumerate(zip(*columns, strict=True), 1)]
