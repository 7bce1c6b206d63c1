"""Calibration: whether what is said to happen with probability p happens a share p of the time.

Pairs (c, h) of a confidence and whether it came true are put into M bins; with n_m of the n pairs in bin m,
    ECE = sum_m (n_m/n) |mean h - mean c|_m,      MCE = max_m |mean h - mean c|_m                          (1)
Top-label: one pair per datum, c = max_k p_k and h = 1[argmax_k p_k = y] (Guo et al. 2017).
All-class: N K pairs, c = p_ik and h = 1[y_i = k], pooled over classes; given in percent, and without the
factor 1/M that some papers print. It is about 2/K of the top-label number.
Bins are M intervals of equal width, the last one closed, or hold equal shares of the pairs (ties together).

Noise floor: a finite sample of a perfectly calibrated classifier has a positive ECE. With labels drawn from
the probabilities themselves, y_i ~ p_i, (1) is what calibration cannot be told from                       (2)
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


@dataclass(frozen=True)
class Reliability:
    """The bins that are not empty: mean confidence, share that came true, share of all pairs."""

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
        by: "width" or "mass", what the bins have in common.
        classes: "top" for the most probable class, "all" for all of them.
    """
    p, y = check_probs(probs, labels)
    confidence, index = _bins(p, bins, by, classes)
    return _curve(confidence, index, _hits(p, y, classes), bins)


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
    """The noise floor (2), in percent for all classes and a fraction for the top label, as the errors are."""
    check_count("draws", draws)
    p, _ = check_probs(probs, probs.argmax(-1))
    confidence, index = _bins(p, bins, by, classes)
    unit = 100 if classes == "all" else 1
    rng = generator(seed, p.device, "ece floor")
    values = []
    for _ in range(draws):
        y = torch.multinomial(p, 1, generator=rng).squeeze(1)
        values.append(unit * _curve(confidence, index, _hits(p, y, classes), bins).ece)
    found = torch.tensor(values, dtype=torch.float64)
    return Floor(float(found.mean()), float(found.quantile(0.95)))


def _bins(p: Tensor, bins: int, by: str, classes: str) -> tuple[Tensor, Tensor]:
    """Confidence and bin of every pair, (n,) each."""
    check_count("bins", bins)
    if by not in WAYS:
        raise unknown_name("way of binning", by, WAYS)
    if classes not in POOLS:
        raise unknown_name("choice of classes", classes, POOLS)
    confidence = p.max(1).values if classes == "top" else p.flatten()
    inner = torch.arange(1, bins, dtype=p.dtype, device=p.device) / bins
    if by == "mass":
        place = (inner * len(confidence)).long()
        inner = confidence.sort().values[place]
    return confidence, torch.bucketize(confidence, inner, right=True)  # [low, high), the last closed


def _hits(p: Tensor, y: Tensor, classes: str) -> Tensor:
    if classes == "top":
        return (p.argmax(1) == y).to(p.dtype)
    return torch.nn.functional.one_hot(y, p.shape[1]).to(p.dtype).flatten()


def _curve(confidence: Tensor, index: Tensor, hits: Tensor, bins: int) -> Reliability:
    count = torch.bincount(index, minlength=bins).to(confidence.dtype)
    full = count > 0
    mean = torch.bincount(index, confidence, bins)[full] / count[full]
    true = torch.bincount(index, hits, bins)[full] / count[full]
    return Reliability(mean, true, count[full] / len(confidence))
