"""The gradient of score matching for mixtures of full Gaussians by their precision factors.

With the notation of families/mixture.py and families/matching.py, for fixed e and every component k:
    a_k = r_k e . (g_k - g);   logits_k: sum_s a_k                                                (1)
    mean and factor: those of sum_s (r_k e) . g_k + a_k log N_k, r_k and a_k held fixed           (2)
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.families.matching import Matching, PrecisionFrame

__all__ = ["MixtureMatching"]


class MixtureMatching(Matching):
    """Score matching for a batch of F mixtures of K components.

    Arguments:
        logits, mean, raw: the parameters (F, K), (F, K, D) and (F, K, D, D), views into one tensor.
        x: points (F, S, D).
        lower: ones strictly below the diagonal, (D, D).
    """

    def __init__(self, logits: Tensor, mean: Tensor, raw: Tensor, x: Tensor, lower: Tensor) -> None:
        F, K, D = mean.shape
        self._logits, self._frame = logits, PrecisionFrame(mean, raw, x.unsqueeze(-3), lower)
        self._shape = F, K, *x.shape[1:]
        self._grad_mean, self._grad_raw = x.new_empty(F * K, 1, D), x.new_empty(F * K, D, D)
        self._flat_mean, self._flat_raw = self._grad_mean.view(F, K * D), self._grad_raw.view(F, K * D * D)
        self._grad_diagonal = self._grad_raw.diagonal(dim1=-2, dim2=-1).view(F, K, D)
        self.refresh()

    def refresh(self) -> None:
        frame = self._frame
        frame.refresh()
        log_r = (self._logits.log_softmax(-1) + frame.log_diagonal.sum(-1)).unsqueeze(-1)
        self._r = torch.sub(log_r, frame.u.square().sum(-1), alpha=0.5).softmax(-2).unsqueeze(-1)
        self._g_k = torch.bmm(frame.u_rows, frame.LT).view(self._shape)  # (F, K, S, D)
        self._g = (self._r * self._g_k).sum(-3)

    def gradient(self, k: float, c: Tensor) -> Tensor:
        e = torch.add(c, self._g, alpha=k).unsqueeze(-3)
        torch.mul(self._r, e, out=self._frame.e)
        a = (self._frame.e * (self._g_k - self._g.unsqueeze(-3))).sum(-1)  # (F, K, S)
        self._frame.pull_back(self._grad_mean, self._grad_raw, a)  # (2)
        logits = a.sum(-1)  # (1)
        self._grad_diagonal.add_(logits.unsqueeze(-1))
        return torch.cat([logits, self._flat_mean, self._flat_raw], -1)
