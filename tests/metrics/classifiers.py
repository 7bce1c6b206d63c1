"""Made-up classifiers whose calibration is known."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["classifier"]


def classifier(n: int = 4000, k: int = 5, sharpness: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities, and labels drawn from them: calibrated if the sharpness is 1."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=rng).squeeze(1)
    return (sharpness * logits).softmax(1), labels
