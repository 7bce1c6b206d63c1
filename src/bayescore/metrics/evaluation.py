"""All metrics of a classifier's predictions in one dictionary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescore.metrics.calibration import all_class_ece, ece, ece_floor, mce
from bayescore.metrics.classes import brier, error, nll
from bayescore.metrics.detection import aurc, auroc

__all__ = ["evaluate"]


def evaluate(prediction: Any, labels: Tensor, outside: Any = None) -> dict[str, float]:
    """All metrics of class predictions.

    Arguments:
        prediction: a `ClassPrediction`, or probabilities (N, K).
        labels: (N,).
        outside: the prediction for data of another distribution, for the two AUROCs.

    Returns error, nll, brier, ece and mce (top-label, 15 bins of equal width), ece_mass (of equal mass),
    all_class_ece, all_class_ece_mass and its floor (mean and 95 % quantile), all in percent, and aurc; with
    `outside` also auroc_entropy and auroc_mutual_information.

    >>> scores = evaluate(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
    >>> scores["error"], round(scores["ece"], 2)
    (0.0, 0.15)
    """
    probs = _probs(prediction)
    y = labels.flatten().long() if _binary(prediction) else labels
    floor = ece_floor(probs)
    scores = {
        "error": error(probs, y),
        "nll": nll(probs, y),
        "brier": brier(probs, y),
        "ece": ece(probs, y),
        "ece_mass": ece(probs, y, by="mass"),
        "mce": mce(probs, y),
        "all_class_ece": all_class_ece(probs, y),
        "all_class_ece_mass": all_class_ece(probs, y, by="mass"),
        "all_class_ece_floor": floor.mean,
        "all_class_ece_floor95": floor.quantile,
        "aurc": aurc(probs, y),
    }
    if outside is not None:
        for name in ("entropy", "mutual_information"):
            inside, other = (getattr(p, name, None) for p in (prediction, outside))
            if inside is None or other is None:
                kinds = f"{type(prediction).__name__} and {type(outside).__name__}"
                raise TypeError(f"the AUROCs need two class predictions; got {kinds}")
            scores[f"auroc_{name}"] = auroc(inside.flatten(), other.flatten())
    return scores


def _binary(prediction: Any) -> bool:
    return bool(getattr(prediction, "binary", False))


def _probs(prediction: Any) -> Tensor:
    """Probabilities (N, K); binary outcomes become two classes."""
    probs = prediction if isinstance(prediction, Tensor) else getattr(prediction, "probs", None)
    if not isinstance(probs, Tensor):
        raise TypeError(f"evaluate takes class predictions or probabilities; got {type(prediction).__name__}")
    if _binary(prediction):
        one = probs.flatten()
        return torch.stack([1 - one, one], 1)
    return probs
