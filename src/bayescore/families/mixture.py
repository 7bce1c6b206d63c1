"""Mixture of Gaussians with full or diagonal components.

    q(x) = sum_k w_k N_k(x),  w = softmax(logits)                                           (1)
    r_k(x) = w_k N_k(x) / q(x)                                    responsibilities          (2)
    g(x) = sum_k r_k(x) g_k(x),  g_k the score of component k                               (3)

Pullback of e: with c_k = r_k (e . g_k - e . g), whose sum over k is 0,
    logits_k: sum_s c_k                                                                     (4)
    component k: gradient of sum_s (r_k e) . g_k + c_k log N_k with r_k, c_k held fixed     (5)
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from bayescore.checks import check_count, check_memory, check_shape
from bayescore.families.base import Family, Parameters, Pullback
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.factor import lower_triangle
from bayescore.families.full import FullGaussian
from bayescore.families.matching import Matching
from bayescore.families.mixture_matching import MixtureMatching
from bayescore.rng import generator

__all__ = ["GaussianMixture"]


class GaussianMixture(Family):
    """sum_k w_k N(m_k, V_k).

    Arguments:
        logits: (K,), or (F, K) for a batch; the weights are their softmax.
        components: a FullGaussian or DiagonalGaussian whose batch is (K,), or (F, K).
    """

    name = "mixture"
    closed_form = True
    reparametrised = False

    def __init__(self, logits: Tensor, components: FullGaussian | DiagonalGaussian) -> None:
        if not isinstance(components, FullGaussian | DiagonalGaussian):
            raise TypeError(f"components must be Gaussian families; got {type(components).__name__}")
        check_shape("logits", logits, ("K",))
        if components.batch_shape != logits.shape:
            raise ValueError(
                f"logits {tuple(logits.shape)} and components with batch "
                f"{tuple(components.batch_shape)} disagree"
            )
        self.logits, self.components, self.dim = logits, components, components.dim

    @classmethod
    def init(
        cls,
        dim: int,
        components: int,
        *,
        diagonal: bool = False,
        scale: float = 1.0,
        spread: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Equal weights, means from N(0, spread^2 I), covariances scale^2 I."""
        check_count("dim", dim)
        check_count("components", components)
        if scale <= 0 or spread < 0:
            raise ValueError(f"scale must be positive and spread not negative; got {scale} and {spread}")
        rng = generator(seed, device, "family")
        means = spread * torch.randn(components, dim, generator=rng, dtype=dtype, device=device)
        logits = torch.zeros(components, dtype=dtype, device=device)
        if diagonal:
            return cls(logits, DiagonalGaussian(means, torch.full_like(means, math.log(scale))))
        need = 3 * components * dim * dim * torch.finfo(dtype).bits // 8
        check_memory(
            f"a mixture of full Gaussians in {dim} dimensions", need, means.device, "use diagonal=True"
        )
        factor = scale * torch.eye(dim, dtype=dtype, device=device)
        return cls(logits, FullGaussian(means, factor.repeat(components, 1, 1)))

    def parameters(self) -> Parameters:
        return {"logits": self.logits, **self.components.parameters()}

    def replace(self, parameters: Parameters) -> Self:
        new = object.__new__(type(self))
        new.logits, new.components, new.dim = (
            parameters["logits"],
            self.components.replace(parameters),
            self.dim,
        )
        return new

    def config(self) -> dict[str, Any]:
        return {"components": self.components.name, **self.components.config()}

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:
        kind = DiagonalGaussian if config["components"] == DiagonalGaussian.name else FullGaussian
        return cls(parameters["logits"], kind.rebuild(config, parameters))

    @property
    def batch_shape(self) -> torch.Size:
        return self.logits.shape[:-1]

    @property
    def weights(self) -> Tensor:
        """w, (*batch, K)."""
        return self.logits.softmax(-1)

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, (*batch, D)."""
        return (self.weights.unsqueeze(-1) * self.components.mean).sum(-2)

    @property
    def covariance(self) -> Tensor:
        """The covariance of the mixture, (*batch, D, D)."""
        d = self.components.mean - self.mean.unsqueeze(-2)
        second = self.components.covariance + d.unsqueeze(-1) * d.unsqueeze(-2)
        return (self.weights[..., None, None] * second).sum(-3)

    def in_form(self, form: str) -> Self:
        return type(self)(self.logits, self.components.in_form(form))

    @property
    def noise_dim(self) -> int:
        return self.dim + 1  # the first number chooses the component

    def transform(self, noise: Tensor) -> Tensor:
        chosen = torch.special.ndtr(noise[..., :1])  # (*batch, S, 1)
        bounds = self.weights.cumsum(-1)[..., None, :-1]  # (*batch, 1, K-1)
        index = (chosen > bounds).sum(-1)  # (*batch, S)
        draws = self.components.transform(noise[..., 1:].unsqueeze(-3))  # (*batch, K, S, D)
        return (
            draws.movedim(-3, -1)
            .gather(-1, index[..., None, None].expand(*index.shape, self.dim, 1))
            .squeeze(-1)
        )

    def log_prob(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.log_prob(x.unsqueeze(0)).squeeze(-1)
        log_n = self.components.log_prob(x.unsqueeze(-3))  # (*batch, K, S)
        return (self.logits.log_softmax(-1).unsqueeze(-1) + log_n).logsumexp(-2)  # (1)

    def responsibilities(self, x: Tensor) -> Tensor:
        """r_k(x), (*batch, K, S)."""
        log_n = self.components.log_prob(x.unsqueeze(-3))
        return (self.logits.log_softmax(-1).unsqueeze(-1) + log_n).softmax(-2)  # (2)

    def score(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.score(x.unsqueeze(0)).squeeze(0)
        g_k = self.components.score(x.unsqueeze(-3))  # (*batch, K, S, D)
        return (self.responsibilities(x).unsqueeze(-1) * g_k).sum(-3)  # (3)

    def score_and_pullback(self, x: Tensor) -> tuple[Tensor, Pullback]:
        u, g_k, pull = self.components.jet(x.unsqueeze(-3))
        log_r = torch.sub(self._log_constants().unsqueeze(-1), u.square().sum(-1), alpha=0.5)
        r = log_r.softmax(-2)  # (*batch, K, S)
        g = (r.unsqueeze(-1) * g_k).sum(-3)

        def pullback(e: Tensor) -> Parameters:
            e_k = e.unsqueeze(-3)
            c = r * (e_k * (g_k - g.unsqueeze(-3))).sum(-1)
            return {"logits": c.sum(-1), **pull(r.unsqueeze(-1) * e_k, c)}  # (4), (5)

        return g, pullback

    def matching(self, x: Tensor) -> Matching:
        inner = self.components
        if not isinstance(inner, FullGaussian) or inner.form == "covariance":
            return super().matching(x)
        return MixtureMatching(self.logits, inner.mean, inner.raw, x, lower_triangle(inner.raw))

    def _log_constants(self) -> Tensor:
        """log w_k + log N_k + |u|^2/2 up to a constant common to all components, (*batch, K)."""
        return self.logits.log_softmax(-1) - self.components.entropy()

    def _describe(self) -> str:
        kind = "diagonal" if isinstance(self.components, DiagonalGaussian) else "full"
        form = f", form={self.components.form!r}" if isinstance(self.components, FullGaussian) else ""
        return f"dim={self.dim}, components={self.logits.shape[-1]}, {kind}{form}"
