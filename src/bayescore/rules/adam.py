"""Adam and SGD with momentum.

    Adam:  a <- b1 a + (1 - b1) g,   b <- b2 b + (1 - b2) g^2                                          (1)
           x <- x - eta/(1 - b1^k) a / d,   d = sqrt(b/(1 - b2^k)) + f                                 (2)
    SGD:   a <- mu a + g,   x <- x - eta a                                                             (3)

b1 = 0.9, b2 = 0.999, and k counts the steps from 1. f > 0 is a floor with the units of g: without it Adam
would still take steps of size eta where the gradient has become negligible. Plain Adam has f = 1e-8.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["B1", "B2", "EPSILON", "adam_moments", "corrections", "sgd_velocity"]

B1, B2, EPSILON = 0.9, 0.999, 1e-8


def corrections(k: int) -> tuple[float, float]:
    """Adam's bias corrections: 1/(1 - b1^k) of the first and 1/sqrt(1 - b2^k) of the second moment."""
    return 1 / (1 - B1**k), (1 - B2**k) ** -0.5


def adam_moments(
    first: Tensor,
    second: Tensor,
    g: Tensor,
    correction: float | Tensor,
    floor: float | Tensor = EPSILON,
) -> tuple[Tensor, Tensor, Tensor]:
    """The moments (1), and the divisor d of (2), given the second of the two `corrections`."""
    first = torch.lerp(first, g, 1 - B1)
    second = torch.mul(second, B2).addcmul_(g, g, value=1 - B2)
    return first, second, second.sqrt().mul_(correction).add_(floor)


def sgd_velocity(velocity: Tensor, g: Tensor, momentum: float | Tensor) -> Tensor:
    """(3): the new velocity."""
    return momentum * velocity + g
