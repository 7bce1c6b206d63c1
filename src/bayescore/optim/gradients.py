"""What a step asks of the gradients before it uses them: are they finite, and has somebody scaled them?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["finite", "scale_of"]


LARGEST = 1e18  # squares of what is larger are not finite


def finite(parts: Sequence[Tensor]) -> bool:
    """Whether every number and its square are finite.

    The extremes are not where any number is not, and cost a tenth of asking.
    """
    extremes: dict[Any, list[Tensor]] = {}
    for part in parts:
        if part.numel():
            extremes.setdefault((part.dtype, part.device), []).extend(part.aminmax())
    return all(bool((torch.stack(found).abs() < LARGEST).all()) for found in extremes.values())


def scale_of(optimizer: torch.optim.Optimizer, draws: int) -> float | None:
    """The factor a GradScaler put on the gradients; None if it found them not finite."""
    if not hasattr(optimizer, "found_inf"):
        return 1.0
    if bool(optimizer.found_inf):
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None and draws > 1:
        raise RuntimeError(
            "GradScaler.unscale_ reaches the last of several draws only; leave it out, or make one draw"
        )
    return 1.0 if scale is None else float(scale)
