"""Whether uncertainty shows errors: out-of-distribution detection, and risk against coverage.

AUROC of a criterion s that separates positives from negatives, a rank statistic:
    AUROC = P(s+ > s-) + P(s+ = s-)/2                                                                      (1)
Risk and coverage (selective prediction): the share c of data with the highest confidence is answered,
    risk(c) = error among them,   AURC = mean of risk over c = 1/N, 2/N, ..., 1                            (2)
Data of equal confidence share their mean error, so that neither depends on the order of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayescore.metrics.classes import check_probs

__all__ = ["RiskCoverage", "aurc", "auroc", "risk_coverage"]


def auroc(negative: Tensor, positive: Tensor) -> float:
    """(1) of criteria (n,) and (m,): entropy or mutual information inside and outside the distribution."""
    if negative.dim() != 1 or positive.dim() != 1 or not len(negative) or not len(positive):
        raise ValueError(
            f"auroc needs two vectors of scores; got {tuple(negative.shape)} and {tuple(positive.shape)}"
        )
    scores = torch.cat([negative, positive.to(negative.device)]).detach().double()
    if scores.isnan().any():
        raise ValueError(f"{int(scores.isnan().sum())} of the scores are not numbers")
    _, group, count = scores.unique(return_inverse=True, return_counts=True)
    middle = count.cumsum(0) - (count - 1) / 2  # the mean rank of equal scores, from 1
    n, m = len(negative), len(positive)
    above = middle[group][n:].sum() - m * (m + 1) / 2
    return float(above / (n * m))


@dataclass(frozen=True)
class RiskCoverage:
    """The curve (2): `risk[i]` is the error on the share `coverage[i]` of the most confident data."""

    coverage: Tensor
    risk: Tensor

    @property
    def area(self) -> float:
        """AURC."""
        return float(self.risk.mean())


def risk_coverage(probs: Tensor, labels: Tensor, confidence: Tensor | None = None) -> RiskCoverage:
    """The curve (2) of class probabilities (N, K); `confidence` is the largest of them unless given."""
    p, y = check_probs(probs, labels)
    confidence = p.max(1).values if confidence is None else confidence.detach().to(p)
    if confidence.shape != y.shape:
        raise ValueError(f"confidence must be one number per datum; got {tuple(confidence.shape)}")
    wrong = (p.argmax(1) != y).double()
    _, group, count = (-confidence).unique(return_inverse=True, return_counts=True)
    mean = torch.bincount(group, wrong) / count  # of equal confidences, the most confident first
    errors = mean.repeat_interleave(count).cumsum(0)
    answered = torch.arange(1, len(y) + 1, device=p.device, dtype=p.dtype)
    return RiskCoverage(answered / len(y), errors / answered)


def aurc(probs: Tensor, labels: Tensor) -> float:
    """The area under `risk_coverage`."""
    return risk_coverage(probs, labels).area
