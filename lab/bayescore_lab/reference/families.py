"""Algorithm 1 written plainly: leaf tensors, `loss.backward()`, `torch.optim.Adam`.

The peer of the inner loop. It minimises
    loss = (1/S) sum_i alpha_t |g(theta_i) - g_t(theta_i)|^2 + |g(theta_i) - s_i|^2                (1)
over the same parameters as our families in the precision form: the means, and matrices R that equal the
Cholesky factor L of the precision off the diagonal and log L on it. The scores of q are
    Gaussian    g(x) = -L L^T (x - m)                                                             (2)
    mixture     g(x) = sum_k r_k(x) g_k(x),  r = softmax(log w + log N_k(x))                      (3)
and everything else is left to autograd. `whitened` measures (1) in the norm of Cov(q_t): the descent runs in
the coordinates z in which q_t = N(0, I), starts from m = 0, L = I and ends by composing the two,
    x = m + L^{-T} z,   s_z = L^{-1} s,   m <- m + L^{-T} m_z,   L <- L L_z                        (4)
The weight of the proximal term grows, alpha_t = t/T, and the step size falls along a cosine. Adam is torch's,
without the floor that the library's has. Nothing here is taken from the library's rules or methods.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.families.full import FullGaussian
from bayescore.families.mixture import GaussianMixture
from bayescore.rng import Streams
from bayescore.targets.base import Target

__all__ = ["plain_proximal"]


class _Plain(ABC):
    """Leaf tensors by the names of the family's parameters, a draw and a score."""

    def __init__(self, family: Family) -> None:
        leaves = family.in_form("precision").parameters()
        self.leaves = {name: value.clone().requires_grad_() for name, value in leaves.items()}

    def factor(self) -> Tensor:
        raw = self.leaves["raw"]
        return raw.tril(-1) + raw.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    @abstractmethod
    def draw(self, noise: Tensor) -> Tensor:
        """Points (S, D) from noise (S, noise_dim)."""

    @abstractmethod
    def score(self, x: Tensor) -> Tensor:
        """grad log q, (S, D) to (S, D)."""


class _PlainGaussian(_Plain):
    def draw(self, noise: Tensor) -> Tensor:
        return self.leaves["mean"] + torch.linalg.solve_triangular(
            self.factor(), noise, upper=False, left=False
        )

    def score(self, x: Tensor) -> Tensor:
        L = self.factor()
        return -((x - self.leaves["mean"]) @ L) @ L.T  # (2)

    def enter(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Points and scores in the coordinates in which q = N(0, I), to which the leaves then belong."""
        mean, L = self.leaves["mean"].clone(), self.factor()
        for leaf in self.leaves.values():
            leaf.zero_()
        self.outer = mean, L
        return (x - mean) @ L, torch.linalg.solve_triangular(L.T, s, upper=True, left=False)  # (4)

    def leave(self) -> None:
        """Back to the coordinates of the target."""
        mean, L = self.outer
        shift = torch.linalg.solve_triangular(L, self.leaves["mean"].unsqueeze(0), upper=False, left=False)
        L = L @ self.factor()
        self.leaves["mean"].copy_(mean + shift.squeeze(0))
        self.leaves["raw"].copy_(L.tril(-1) + L.diagonal().log().diag_embed())  # (4)


class _PlainMixture(_Plain):
    def draw(self, noise: Tensor) -> Tensor:
        steps = self.leaves["logits"].softmax(-1).cumsum(-1)[:-1]
        k = (torch.special.ndtr(noise[:, :1]) > steps).sum(-1)  # (S,)
        shift = torch.linalg.solve_triangular(self.factor()[k], noise[:, None, 1:], upper=False, left=False)
        return self.leaves["mean"][k] + shift.squeeze(-2)

    def score(self, x: Tensor) -> Tensor:
        L = self.factor()  # (K, D, D)
        u = (x - self.leaves["mean"].unsqueeze(-2)) @ L  # (K, S, D)
        log_det = self.leaves["raw"].diagonal(dim1=-2, dim2=-1).sum(-1)
        log_w = (self.leaves["logits"].log_softmax(-1) + log_det).unsqueeze(-1)
        r = (log_w - 0.5 * u.square().sum(-1)).softmax(0)  # (K, S)
        return -(r.unsqueeze(-1) * (u @ L.mT)).sum(0)  # (3)


def plain_proximal(
    target: Target,
    family: Family,
    *,
    steps: int,
    seed: int,
    draws: int = 1,
    inner_steps: int = 20,
    rate: float = 0.01,
    whitened: bool = False,
) -> dict[str, Tensor]:
    """The parameters that Algorithm 1 ends with, in the precision form; full Gaussians may be `whitened`."""
    if not isinstance(family, FullGaussian | GaussianMixture):
        raise TypeError(f"the plain algorithm knows full Gaussians and mixtures; got {type(family).__name__}")
    q = _PlainGaussian(family) if isinstance(family, FullGaussian) else _PlainMixture(family)
    standard = q if whitened and isinstance(q, _PlainGaussian) else None
    optimizer = torch.optim.Adam(q.leaves.values(), lr=rate)
    streams = Streams([seed], dtype=family.dtype, device=family.device)
    for t in range(steps):
        alpha = t / steps
        optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * t / steps))
        with torch.no_grad():
            theta = q.draw(streams.normal(draws, family.noise_dim)[0])
            s = target.score(theta)
            if standard:
                theta, s = standard.enter(theta, s)
            g_t = q.score(theta)
        for _ in range(inner_steps):
            optimizer.zero_grad()
            g = q.score(theta)
            loss = (alpha * (g - g_t).square() + (g - s).square()).sum(-1).mean()  # (1)
            loss.backward()
            optimizer.step()
        if standard:
            with torch.no_grad():
                standard.leave()
    return {name: value.detach() for name, value in q.leaves.items()}
