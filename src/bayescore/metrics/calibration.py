"""Calibration: whether events that are predicted with probability p happen a share p of the time.

Pairs (c, h) of a confidence and its outcome, 0 or 1, are put into M bins; with n_m of the n pairs in bin m,
    ECE = sum_m (n_m/n) |mean h - mean c|_m,      MCE = max_m |mean h - mean c|_m                          (1)
Top-label: one pair per datum, c = max_k p_k and h = 1[argmax_k p_k = y] (Guo et al. 2017).
All-class: N K pairs, c = p_ik and h = 1[y_i = k], pooled over classes; given in percent, and without the
factor 1/M that some papers print. It is about 2/K of the top-label number.
Bins are M intervals of equal width, the last one closed, or hold equal shares of the pairs (ties stay
together).

Noise floor: on finitely many data even a perfectly calibrated classifier has a positive ECE. It is
    (1) with labels drawn from the probabilities themselves, y_i ~ p_i                                     (2)
and a classifier with an ECE of that size cannot be distinguished from a calibrated one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayescore.checks import check_count, unknown_name
from bayescore.metrics.classes import check_probs
from bayescore.rng import generator

__all__ = ["Floor", "Reliability", "all_class_ece", "ece", "ece_floor", "mce", "reliability"]

WAYS = ("mass", "width")
POOLS = ("all", "top")
AT_ONCE = 20  # resampled sets of labels in memory at a time


@dataclass(frozen=True)
class Reliability:
    """The bins that are not empty: mean confidence, share of outcomes 1, share of all pairs."""

    confidence: Tensor
    accuracy: Tensor
    share: Tensor

    @property
    def ece(self) -> float:
        """(1), a fraction."""
        return float((self.share * (self.accuracy - self.confidence).abs()).sum())

    @property
    def mce(self) -> float:
        """(1), a fraction."""
        return float((self.accuracy - self.confidence).abs().max())


class Floor(NamedTuple):
    """(2): mean and 95 % quantile over resampled labels."""

    mean: float
    quantile: float


def reliability(
    probs: Tensor, labels: Tensor, bins: int = 15, *, by: str = "width", classes: str = "top"
) -> Reliability:
    """The reliability curve.

    Arguments:
        probs, labels: (N, K) and (N,).
        bins: M.
        by: "width" for bins of equal width, "mass" for bins with equal shares of the pairs.
        classes: "top" for the most probable class, "all" for all of them.
    """
    p, y = check_probs(probs, labels)
    return _curve(_binned(p, bins, by, classes), p, y)


def ece(probs: Tensor, labels: Tensor, bins: int = 15, *, by: str = "width") -> float:
    """Top-label expected calibration error, a fraction."""
    return reliability(probs, labels, bins, by=by).ece


def mce(probs: Tensor, labels: Tensor, bins: int = 15, *, by: str = "width") -> float:
    """Top-label maximal calibration error, a fraction."""
    return reliability(probs, labels, bins, by=by).mce


def all_class_ece(probs: Tensor, labels: Tensor, bins: int = 15, *, by: str = "width") -> float:
    """All-class expected calibration error, in percent."""
    return 100 * reliability(probs, labels, bins, by=by, classes="all").ece


def ece_floor(
    probs: Tensor, bins: int = 15, *, by: str = "width", classes: str = "all", draws: int = 200, seed: int = 0
) -> Floor:
    """The noise floor (2), like the errors in percent for all classes and a fraction for the top label."""
    check_count("draws", draws)
    p, _ = check_probs(probs, probs.argmax(-1))
    binned = _binned(p, bins, by, classes)
    unit = 100 if classes == "all" else 1
    rng = generator(seed, p.device, "ece floor")
    values: list[float] = []
    while len(values) < draws:
        labels = torch.multinomial(p, min(AT_ONCE, draws - len(values)), replacement=True, generator=rng)
        values += [unit * _curve(binned, p, y).ece for y in labels.T]  # (2)
    found = torch.tensor(values, dtype=torch.float64)
    return Floor(float(found.mean()), float(found.quantile(0.95)))


@dataclass(frozen=True)
class _Binned:
    """The bin of every pair, and the number of pairs and mean confidence of every bin."""

    index: Tensor
    count: Tensor
    confidence: Tensor
    top: bool


def _binned(p: Tensor, bins: int, by: str, classes: str) -> _Binned:
    check_count("bins", bins)
    if by not in WAYS:
        raise unknown_name("way of binning", by, WAYS)
    if classes not in POOLS:
        raise unknown_name("choice of classes", classes, POOLS)
    confidence = p.max(1).values if classes == "top" else p.flatten()
    inner = torch.arange(1, bins, dtype=p.dtype, device=p.device) / bins
    if by == "mass":
        position = (inner * len(confidence)).long()
        inner = confidence.sort().values[position]
    index = torch.bucketize(confidence, inner, right=True)  # [low, high), the last closed
    count = torch.bincount(index, minlength=bins).to(p.dtype)
    return _Binned(index, count, torch.bincount(index, confidence, bins) / count, classes == "top")


def _curve(binned: _Binned, p: Tensor, y: Tensor) -> Reliability:
    if binned.top:
        true = binned.index[p.argmax(1) == y]
    else:
        true = binned.index.view_as(p).gather(1, y.unsqueeze(1)).squeeze(1)
    hits = torch.bincount(true, minlength=len(binned.count)) / binned.count
    used = binned.count > 0
    return Reliability(binned.confidence[used], hits[used], binned.count[used] / len(binned.index))
