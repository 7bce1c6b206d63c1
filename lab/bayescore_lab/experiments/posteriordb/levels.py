"""One density under several noise levels, one per fit of a batch.

    s_hat(x_f) = s(x_f) + beta_f |s(x_f)|_inf e,   e ~ N(0, I)                  (1)

Row f of a batch has the numbers that `NoisyScore(target, beta_f)` gives it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayescore.rng import Streams
from bayescore.targets.base import Target

__all__ = ["NoiseLevels"]


class NoiseLevels(Target):
    """`target` with noisy scores, at level betas[f] > 0 in fit f of a batch.

    Arguments:
        target: the density that all fits share.
        betas: a noise level for every fit.
    """

    name = "noise levels"
    stochastic = True

    def __init__(self, target: Target, betas: Sequence[float]) -> None:
        self.target, self.dim, self.dtype, self.device = target, target.dim, target.dtype, target.device
        self.betas = torch.tensor(betas, dtype=target.dtype, device=target.device)[:, None, None]

    def log_prob(self, x: Tensor) -> Tensor:
        return self.target.log_prob(x)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        if streams is None:
            raise TypeError("a noisy score needs `streams`, the random numbers of the fit")
        exact = self.target.score(x)
        return exact + self.betas * exact.abs().amax(-1, keepdim=True) * streams.normal(*x.shape[1:])  # (1)
