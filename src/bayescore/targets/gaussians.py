"""Gaussian and Gaussian-mixture targets, with the paper's random generator (Appendix C).

    means ~ N(0, 1);  weights = softmax(1 + b), b ~ N(0, 0.3^2);
    covariances I + a X X^T, X_ij ~ N(0, 1), a ~ N(0, 0.3^2), redrawn until positive definite.

The paper writes N(0, 0.3) without saying whether 0.3 is a variance; here it is the standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from bayescore.checks import check_count, check_memory
from bayescore.families.full import FullGaussian
from bayescore.families.mixture import GaussianMixture as MixtureFamily
from bayescore.rng import Streams, generator
from bayescore.targets.base import Target

__all__ = ["Gaussian", "GaussianMixture", "Known", "random_covariance"]


def _check_size(dim: int, least: int = 1, matrices: int = 1) -> None:
    """Refuse a covariance that does not fit in memory; constructing it takes about six times its size."""
    check_count("dim", dim, least)
    what = f"{matrices} covariance matrices" if matrices > 1 else "a covariance matrix"
    need = (5 + matrices) * 8 * dim * dim
    check_memory(f"{what} in {dim} dimensions", need, torch.device("cpu"), "take fewer dimensions")


def random_covariance(dim: int, rng: torch.Generator, spread: float = 0.3) -> Tensor:
    """I + a X X^T as in Appendix C, (D, D)."""
    while True:
        a = spread * torch.randn((), generator=rng, dtype=torch.float64)
        x = torch.randn(dim, dim, generator=rng, dtype=torch.float64)
        covariance = torch.eye(dim, dtype=torch.float64) + a * x @ x.T
        if not torch.linalg.cholesky_ex(covariance).info:
            return covariance


class Known(Target):
    """A target whose density is a family of this library, with exact draws and moments."""

    normalised = True

    def __init__(self, density: FullGaussian | MixtureFamily) -> None:
        self.density = density
        self.dim, self.dtype, self.device = density.dim, density.dtype, density.device

    @property
    def batch_shape(self) -> torch.Size:
        return self.density.batch_shape

    @property
    def mean(self) -> Tensor:
        """The mean, (*batch, D)."""
        return self.density.mean

    @property
    def covariance(self) -> Tensor:
        """The covariance, (*batch, D, D)."""
        return self.density.covariance

    def log_prob(self, x: Tensor) -> Tensor:
        return self._density_at(x).log_prob(x)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:  # noqa: ARG002
        return self._density_at(x).score(x)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        density = self._density_at(x)
        return density.log_prob(x), density.score(x)

    def _density_at(self, x: Tensor) -> FullGaussian | MixtureFamily:
        """The density, repeated along F if a single target is evaluated at points (F, S, D) of F fits.

        Otherwise torch would fold F and S into the rows of one matrix product, which some processors round
        differently from the batched product that a stack of the same targets computes.
        """
        if x.dim() != 3 or self.batch_shape:
            return self.density
        return self.density.replace(
            {name: value.expand(len(x), *value.shape) for name, value in self.density.parameters().items()}
        )

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        return self.density.sample(n, seed)

    def __getitem__(self, index: int) -> Self:
        return self._with(self.density[index])

    def _with(self, density: FullGaussian | MixtureFamily) -> Self:
        new = object.__new__(type(self))
        Known.__init__(new, density)
        return new

    @classmethod
    def stack(cls, members: Sequence[Self]) -> Self:
        if any(type(m) is not type(members[0]) for m in members):
            raise TypeError("targets of one batch must be of one kind")
        densities = [m.density for m in members]
        return members[0]._with(type(densities[0]).stack(densities))  # type: ignore[arg-type]


class Gaussian(Known):
    """N(mean, covariance), normalised.

    Arguments:
        mean: (D,).
        covariance: (D, D), symmetric positive definite.
    """

    name = "gaussian"

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        # Stored as its precision factor: the score is then two products, without a triangular solve.
        super().__init__(FullGaussian.from_moments(mean, covariance).in_form("precision"))

    @classmethod
    def random(cls, dim: int = 3, *, seed: int = 0) -> Self:
        """One draw from the paper's generator."""
        _check_size(dim)
        rng = generator(seed, purpose="target")
        return cls(torch.randn(dim, generator=rng, dtype=torch.float64), random_covariance(dim, rng))

    @classmethod
    def ill_conditioned(cls, dim: int, condition: float, *, seed: int = 0) -> Self:
        """A zero-mean Gaussian, randomly rotated, with log-spaced variances of ratio `condition`."""
        _check_size(dim, 2)
        if not condition >= 1:
            raise ValueError(f"condition must be at least 1; got {condition}")
        rng = generator(seed, purpose="target")
        rotation, _ = torch.linalg.qr(torch.randn(dim, dim, generator=rng, dtype=torch.float64))
        variances = torch.logspace(0, -1, dim, base=float(condition), dtype=torch.float64)
        covariance = (rotation * variances) @ rotation.T
        return cls(torch.zeros(dim, dtype=torch.float64), 0.5 * (covariance + covariance.T))


class GaussianMixture(Known):
    """sum_k w_k N(m_k, V_k), normalised.

    Arguments:
        weights: (K,), positive; divided by their sum.
        means: (K, D).
        covariances: (K, D, D).
    """

    name = "mixture"

    def __init__(self, weights: Tensor, means: Tensor, covariances: Tensor) -> None:
        if not (weights > 0).all():
            raise ValueError(f"weights must be positive; the smallest is {weights.min():.3g}")
        components = FullGaussian.from_moments(means, covariances).in_form("precision")
        super().__init__(MixtureFamily((weights / weights.sum(-1, keepdim=True)).log(), components))

    @property
    def weights(self) -> Tensor:
        """w, (*batch, K)."""
        assert isinstance(self.density, MixtureFamily)
        return self.density.weights

    @classmethod
    def random(cls, dim: int = 3, components: int = 5, *, spread: float = 1.0, seed: int = 0) -> Self:
        """One draw from the paper's generator; `spread` > 1 (such as 3) separates the modes."""
        check_count("components", components)
        _check_size(dim, matrices=components)
        rng = generator(seed, purpose="target")
        means = spread * torch.randn(components, dim, generator=rng, dtype=torch.float64)
        covariances = torch.stack([random_covariance(dim, rng) for _ in range(components)])
        logits = 1 + 0.3 * torch.randn(components, generator=rng, dtype=torch.float64)
        return cls(logits.softmax(-1), means, covariances)

    @classmethod
    def separated(cls, dim: int = 3, components: int = 5, *, seed: int = 0) -> Self:
        """The paper's generator with the means drawn from N(0, 3^2)."""
        return cls.random(dim, components, spread=3.0, seed=seed)
