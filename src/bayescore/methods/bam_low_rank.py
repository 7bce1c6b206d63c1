"""BaM for low-rank plus diagonal covariances: "batch, match and patch" (Modi et al. 2025).

The BaM step from Sigma_t = diag(psi) + A A^T gives, with V = diag(psi) + R R^T and U = Q Q^T (see BaM),
    S = V - Y Y^T,   Y = V Q W diag(1/t) W^T,   Q^T V Q = W diag(l) W^T,   t = 1/2 + sqrt(l + 1/4)     (1)
which is low-rank plus diagonal too, of higher rank. It is projected back onto rank K by the EM steps of
factor analysis, which decrease KL(N(0, S) | N(0, diag(psi) + A A^T)):
    G = (I + A^T Psi^{-1} A)^{-1},   J = G A^T Psi^{-1}                                                (2)
    A' = S J^T (G + J S J^T)^{-1}                                                                      (3)
    psi' = diag(S - A' J S)                                                                            (4)
S is only ever multiplied with thin matrices: time and memory are O(D (K + B)^2) per EM step.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["bam_low_rank_step", "eigen"]

EM_STEPS = 30
FLOOR = 1e-9  # smallest psi, relative to diag(S)


def eigen(M: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of symmetric matrices; NaN in one fit must not raise for the others."""
    l, W = torch.linalg.eigh(torch.nan_to_num(M))
    return l, W


def bam_low_rank_step(
    mu: Tensor, log_diagonal: Tensor, A: Tensor, z: Tensor, g: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step: the new mean (F, D), log diagonal (F, D) and columns (F, D, K)."""
    B = z.shape[-2]
    psi = log_diagonal.exp()
    zbar, gbar = z.mean(-2), g.mean(-2)
    a, b = (lam / B).sqrt().unsqueeze(-1), (lam / (1 + lam)).sqrt()
    Q = torch.cat([a * (g - gbar.unsqueeze(-2)), (b * gbar).unsqueeze(-2)], -2).mT  # (F, D, B+1)
    extra = torch.cat([a * (z - zbar.unsqueeze(-2)), (b * (mu - zbar)).unsqueeze(-2)], -2).mT
    R = torch.cat([A, extra], -1)  # (F, D, K+B+1)
    VQ = psi.unsqueeze(-1) * Q + R @ (R.mT @ Q)
    l, W = eigen(Q.mT @ VQ)
    Y = VQ @ (W / (0.5 + (l.clamp_min(0) + 0.25).sqrt()).unsqueeze(-2))  # (1)

    def times(M: Tensor) -> Tensor:
        return psi.unsqueeze(-1) * M + R @ (R.mT @ M) - Y @ (Y.mT @ M)

    diagonal = psi + R.square().sum(-1) - Y.square().sum(-1)
    new_psi, new_A = _project(diagonal.clamp_min(FLOOR * psi), times, psi, A)
    mean = (mu + lam * (times(gbar.unsqueeze(-1)).squeeze(-1) + zbar)) / (1 + lam)
    return mean, new_psi.log(), new_A


def _project(diagonal: Tensor, times, psi: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """EM steps (2)-(4) from (psi, A)."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for _ in range(EM_STEPS):
        scaled = A / psi.unsqueeze(-1)
        G = torch.linalg.inv_ex(eye + A.mT @ scaled).inverse
        Jt = scaled @ G  # J^T, (F, D, K)
        SJ = times(Jt)
        A = torch.linalg.solve_ex(G + Jt.mT @ SJ, SJ, left=False).result  # (3)
        psi = torch.maximum(diagonal - (A * SJ).sum(-1), FLOOR * diagonal)  # (4)
    return psi, A
