"""Logits of a last-layer Laplace approximation and their covariance, without Jacobians.

With features phi of a row, the logits are W phi + b, and their covariance follows from that of W and b:
    Kronecker, precision of W (U L U') x (Q M Q') + I/s0^2:
        V = U diag_i(sum_j (Q' phi)_j^2 / (L_i M_j + 1/s0^2)) U' + Cov b                                   (1)
    diagonal:  V = diag_i(sum_j phi_j^2 Var W_ij + Var b_i)                                                (2)
laplace-torch builds J = I x phi' for every row, which costs (outputs) times more memory and time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["last_layer_logits"]


def last_layer_logits(approximation: Any, x: Tensor, structure: str) -> tuple[Tensor, Tensor]:
    """Mean (n, K) and covariance (n, K, K) of the logits, for "kron" and "diag"."""
    f, phi = approximation.model.forward_with_features(x)
    if structure == "diag":
        variance = approximation.posterior_variance
        K, d = f.shape[1], phi.shape[1]
        V = phi.square() @ variance[: K * d].view(K, d).T  # (2)
        if len(variance) > K * d:
            V = V + variance[K * d :]
        return f, torch.diag_embed(V)
    precision = approximation.posterior_precision
    (L, M), (U, Q) = precision.eigenvalues[0], precision.eigenvectors[0]
    spread = (phi @ Q).square() @ (torch.outer(L, M) + precision.deltas[0]).reciprocal().T  # (n, K)
    V = (U * spread.unsqueeze(1)) @ U.T  # (1)
    if len(precision.eigenvalues) > 1:
        (values,), (B,) = precision.eigenvalues[1], precision.eigenvectors[1]
        V = V + (B / (values + precision.deltas[1])) @ B.T
    return f, V
