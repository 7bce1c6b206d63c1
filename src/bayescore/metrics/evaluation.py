"""All metrics of predictions in one dictionary: of classes, of several labels at once, or of values.

A calibrated prediction of values puts a share q of them below its q-quantile: P(Y <= y) is uniform over data
(the probability integral transform, PIT). With u_(1) <= ... <= u_(N) the sorted transforms,
    PIT distance = max_i max(i/N - u_(i), u_(i) - (i-1)/N)          (Kolmogorov's distance from uniform)   (1)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescore.metrics.calibration import all_class_ece, ece, ece_floor, mce
from bayescore.metrics.classes import brier, error, nll
from bayescore.metrics.detection import aurc, auroc
from bayescore.metrics.forecasts import interval_scores

__all__ = ["as_classes", "as_tensor", "evaluate"]

IGNORED = -100  # torch's label of a datum without one
LEVELS = (50, 90)  # percent, of the intervals


def evaluate(prediction: Any, y: Any, outside: Any = None) -> dict[str, float]:
    """All metrics of a prediction.

    Arguments:
        prediction: a `ClassPrediction`, probabilities (N, K), or a `ValuePrediction`. Probabilities may be
            (N, K, ...), as in segmentation and of tokens, with labels (N, ...): every position counts as a
            datum, unless its label is -100. Of several binary labels every one counts.
        y: labels, or values of the shape of the prediction's mean; an array or a list too.
        outside: the class prediction for data of another distribution, for the two AUROCs.

    Returns for classes error, nll, brier, ece and mce (top-label, 15 bins of equal width), ece_mass (of equal
    mass), all_class_ece, all_class_ece_mass and its floor (mean and 95 % quantile), all in percent, and aurc;
    with `outside` also auroc_entropy and auroc_mutual_information. For values nll, rmse, mae, crps,
    pit_distance (1), and coverage and width of the central intervals of 50 and 90 %.

    >>> scores = evaluate(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
    >>> scores["error"], round(scores["ece"], 2)
    (0.0, 0.15)
    """
    if hasattr(prediction, "outputs"):
        if outside is not None:
            raise TypeError("the AUROCs of `outside` are of class predictions; this one is of values")
        return _value_scores(prediction, y)
    probs, labels = as_classes(prediction, y)
    floor = ece_floor(probs)
    scores = {
        "error": error(probs, labels),
        "nll": nll(probs, labels),
        "brier": brier(probs, labels),
        "ece": ece(probs, labels),
        "ece_mass": ece(probs, labels, by="mass"),
        "mce": mce(probs, labels),
        "all_class_ece": all_class_ece(probs, labels),
        "all_class_ece_mass": all_class_ece(probs, labels, by="mass"),
        "all_class_ece_floor": floor.mean,
        "all_class_ece_floor95": floor.quantile,
        "aurc": aurc(probs, labels),
    }
    if outside is not None:
        for name in ("entropy", "mutual_information"):
            inside, other = (getattr(p, name, None) for p in (prediction, outside))
            if inside is None or other is None:
                kinds = f"{type(prediction).__name__} and {type(outside).__name__}"
                raise TypeError(f"the AUROCs need two class predictions; got {kinds}")
            scores[f"auroc_{name}"] = auroc(inside.flatten(), other.flatten())
    return scores


def as_tensor(y: Any) -> Tensor:
    """Labels or values as a tensor: from an array, a list or a column of a frame."""
    if isinstance(y, Tensor):
        return y
    array = np.asarray(y)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"labels are the numbers of classes, and values are numbers; got a {type(y).__name__}"
        )
    return torch.tensor(array)


def as_classes(prediction: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K) and labels (N,), every position of (N, K, ...) a datum; binary outcomes become two
    classes."""
    if isinstance(prediction, np.ndarray) and prediction.dtype.kind == "f":
        prediction = torch.tensor(prediction)
    probs = prediction if isinstance(prediction, Tensor) else getattr(prediction, "probs", None)
    if not isinstance(probs, Tensor):
        raise TypeError(
            "a prediction, or probabilities, and the labels or values are needed, as in "
            f"evaluate(fit.predict(x), y); got a {type(prediction).__name__}"
        )
    labels = as_tensor(y).to(probs.device)
    if getattr(prediction, "binary", False):
        if labels.shape != probs.shape:
            raise ValueError(
                f"binary labels must have the shape of the probabilities, {tuple(probs.shape)}; "
                f"got {tuple(labels.shape)}"
            )
        one = probs.flatten()
        return torch.stack([1 - one, one], 1), labels.flatten().long()
    if probs.dim() < 3:
        return probs, labels
    if labels.shape != (len(probs), *probs.shape[2:]):
        raise ValueError(
            f"labels must have the shape {(len(probs), *probs.shape[2:])}, one for each position of the "
            f"probabilities {tuple(probs.shape)}; got {tuple(labels.shape)}"
        )
    kept = labels.flatten() != IGNORED
    return probs.movedim(1, -1).flatten(0, -2)[kept], labels.flatten()[kept]


def _value_scores(prediction: Any, y: Any) -> dict[str, float]:
    mean = prediction.mean
    values = as_tensor(y).to(mean)
    if values.shape != mean.shape:
        if values.numel() != mean.numel() or len(values) != len(mean):
            raise ValueError(
                f"values must have the shape of the prediction's mean, {tuple(mean.shape)}; "
                f"got {tuple(values.shape)}"
            )
        values = values.reshape(mean.shape)  # (N,) beside (N, 1)
    transforms = prediction.cdf(values).double().flatten().sort().values
    steps = torch.arange(1, len(transforms) + 1).to(transforms) / len(transforms)
    above, below = (steps - transforms).max(), (transforms - steps + 1 / len(transforms)).max()
    scores = {
        "nll": -float(prediction.log_prob(values).mean()),
        "rmse": float((mean - values).square().mean().sqrt()),
        "mae": float((mean - values).abs().mean()),
        "crps": float(prediction.crps(values).mean()),
        "pit_distance": float(torch.maximum(above, below)),  # (1)
    }
    for level in LEVELS:
        low, high = prediction.interval(level / 100)
        inside, width = interval_scores(low, high, values)
        scores |= {f"coverage_{level}": inside, f"width_{level}": width}
    return scores
