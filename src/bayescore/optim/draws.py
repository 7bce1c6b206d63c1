"""Rules of a draw (optim/fused.py): written into the module, put aside for the step, or added to sums."""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.optim.noise import Noise, drawn

__all__ = ["collect_draw", "draw_weights", "set_aside"]


def draw_weights(weight: Tensor, mean: Tensor, sd: Tensor, noise: Noise) -> None:
    """theta = mean + sd * eps, written into the module."""
    weight.copy_(torch.addcmul(mean, sd, drawn(noise, mean)))


def set_aside(weight: Tensor, mean: Tensor) -> None:
    """The mean goes into the module, and theta - mean to where it was."""
    apart = weight - mean
    weight.copy_(mean)
    mean.copy_(apart)


def collect_draw(
    sum_g: Tensor, sum_xg: Tensor, sum_e: Tensor, sum_ee: Tensor, g: Tensor, noise: Noise
) -> None:
    """Add a draw to the running sums of a step with several draws."""
    eps = drawn(noise, g)
    sum_g.add_(g)
    sum_xg.addcmul_(eps, g)
    sum_e.add_(eps)
    sum_ee.addcmul_(eps, eps)
