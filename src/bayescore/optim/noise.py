"""Noise as a function of (seed, step, draw, parameter): it is regenerated, never stored.

Every parameter tensor of every draw has a generator of its own, seeded with a hash of the four numbers
(splitmix64 [1], applied once per number), so that
    - a draw is the same on every process of a distributed run and after a checkpoint,
    - a parameter's noise does not depend on which other parameters are trained,
    - the noise of a block can be made again at the step that needs it.
Draws come in antithetic pairs: draw 2j + 1 is minus draw 2j. Where both draws of a pair see the same data,
what the mini-batch adds to the gradient cancels in their difference, and curvature is left.

[1] Steele, Lea & Flood 2014, the finaliser of Java's SplittableRandom.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["hashed", "standard_normal"]

MASK = (1 << 64) - 1


def hashed(*numbers: int) -> int:
    """A 63-bit number that depends on every one of `numbers` and their order."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state + (number & MASK) + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


def standard_normal(
    like: Tensor, seed: int, step: int, draw: int, index: int, *, antithetic: bool = True
) -> Tensor:
    """Standard normal numbers of the shape, dtype and device of `like`."""
    pair, sign = (draw // 2, 1 - 2 * (draw % 2)) if antithetic else (draw, 1)
    rng = torch.Generator(device=like.device)
    rng.manual_seed(hashed(seed, step, pair, index))
    eps = torch.empty_like(like, memory_format=torch.contiguous_format).normal_(generator=rng)
    return eps if sign > 0 else eps.neg_()
