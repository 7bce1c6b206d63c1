"""The gradient of score matching at fixed points while the parameters move in place.

Score matching needs thousands of times
    J^T e = grad over lambda of sum_s e_s . g(x_s),   e = k g + c held fixed,                     (1)
at the same points x. What does not change between two evaluations is prepared once: views, masks, buffers.
For full Gaussians by the factor L of their precision, rows being points, d = m - x and u = d L, so that
g = u L^T, the gradient of sum_s e_s . g(x_s) + a_s log q(x_s) is
    w = e L - a u;   m: sum_s w_s L^T;   L: tril([e; d]^T [u; w]) + diag(sum_s a_s / L_ii)        (2)
and the diagonal of the gradient in R is that in L times L_ii (families/factor.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from bayescore.families.base import Family

__all__ = ["Matching", "PrecisionFrame", "PrecisionMatching"]


class Matching:
    """(1) for any family, by its pullback.

    Arguments:
        family: a batch of F densities whose parameters are views into one tensor (`Family.from_flat`).
        x: points (F, S, D).
    """

    def __init__(self, family: Family, x: Tensor) -> None:
        self._family, self._x = family, x
        self.refresh()

    def refresh(self) -> None:
        """Recompute what depends on the parameters, after they have moved."""
        self._g, self._pullback = self._family.score_and_pullback(self._x)

    def score(self) -> Tensor:
        """g at the points, (F, S, D)."""
        return self._g

    def gradient(self, k: float, c: Tensor) -> Tensor:
        """(1), J^T (k g + c), in the order of `Family.flat`, (F, P); the next call may overwrite it."""
        gradients = self._pullback(torch.add(c, self._g, alpha=k))
        return torch.cat([g.reshape(len(c), -1) for g in gradients.values()], -1)


class PrecisionFrame:
    """The tensors of (2) for full Gaussians with the batch shape B; `refresh` and `pull_back` overwrite them.

    Arguments:
        mean, raw: the parameters m (B, D) and R (B, D, D).
        x: points, broadcast to (B, S, D).
        lower: ones strictly below the diagonal, (D, D).
    """

    def __init__(self, mean: Tensor, raw: Tensor, x: Tensor, lower: Tensor) -> None:
        B, S, D = raw.shape[:-2], x.shape[-2], x.shape[-1]
        self._mean, self._raw, self._x, self._lower = mean.unsqueeze(-2), raw, x, lower
        # L, and dL/dR entrywise: L_ii on the diagonal and one below it
        factors = lower.expand(2, *B, D, D).contiguous()
        self._factor, self._diagonal = factors[0], factors.diagonal(dim1=-2, dim2=-1)
        self.log_diagonal = raw.diagonal(dim1=-2, dim2=-1)  # (B, D)
        self._log_diagonal = self.log_diagonal.expand_as(self._diagonal)
        left, right = x.new_empty(2, *B, 2 * S, D)  # [e; d] and [u; w]
        self.e, self._d = left[..., :S, :], left[..., S:, :]
        self.u, self._w = right[..., :S, :], right[..., S:, :]
        # torch.bmm needs a single batch dimension
        self.L, self._dL = factors.view(2, -1, D, D)
        self.LT = self.L.mT
        left, self._right = left.view(-1, 2 * S, D), right.view(-1, 2 * S, D)
        self._left = left.mT
        self.e_rows, self._d_rows = left[:, :S], left[:, S:]
        self.u_rows, self._w_rows = self._right[:, :S], self._right[:, S:]

    def refresh(self) -> None:
        """L, d and u from the parameters."""
        torch.mul(self._raw, self._lower, out=self._factor)
        torch.exp(self._log_diagonal, out=self._diagonal)
        torch.sub(self._mean, self._x, out=self._d)
        torch.bmm(self._d_rows, self.L, out=self.u_rows)

    def pull_back(self, mean: Tensor, raw: Tensor, a: Tensor | None = None) -> None:
        """(2) without its last term, from `e`, written into mean (|B|, 1, D) and raw (|B|, D, D)."""
        torch.bmm(self.e_rows, self.L, out=self._w_rows)
        if a is not None:
            self._w.addcmul_(a.unsqueeze(-1), self.u, value=-1.0)
        rows = self._w_rows if self._w.shape[-2] == 1 else self._w_rows.sum(-2, keepdim=True)
        torch.bmm(rows, self.LT, out=mean)
        torch.bmm(self._left, self._right, out=raw)
        raw.mul_(self._dL)


class PrecisionMatching(Matching):
    """(1) for full Gaussians by their precision factor, in nine operations that allocate no tensor."""

    def __init__(self, mean: Tensor, raw: Tensor, x: Tensor, lower: Tensor) -> None:
        F, D = mean.shape
        self._frame = PrecisionFrame(mean, raw, x, lower)
        self._grad = x.new_empty(F, D + D * D)
        self._grad_mean = self._grad[:, :D].unsqueeze(-2)
        self._grad_raw = self._grad[:, D:].unflatten(-1, (D, D))
        self.refresh()

    def refresh(self) -> None:
        self._frame.refresh()

    def score(self) -> Tensor:
        return torch.bmm(self._frame.u_rows, self._frame.LT)

    def gradient(self, k: float, c: Tensor) -> Tensor:
        frame = self._frame
        torch.baddbmm(c, frame.u_rows, frame.LT, alpha=k, out=frame.e_rows)
        frame.pull_back(self._grad_mean, self._grad_raw)
        return self._grad
