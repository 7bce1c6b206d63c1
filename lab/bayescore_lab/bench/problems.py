"""The problems on which the time to a given ELBO is compared, and the exact ELBO of any Gaussian on them.

For q = N(m, A A^T) and log densities that are polynomials a cubature rule is exact, so that no ELBO
depends on noise:
    ELBO(q) = sum_i w_i log Phi(m + A z_i) + entropy(q)                                       (1)
    quadratic log density    z = +- sqrt(D) e_j, w = 1/(2D)                 exact to degree 3  (2)
    banana (degree 4)        product of Gauss-Hermite rules with 5 nodes    exact to degree 9  (3)
The goal is the ELBO of the best full Gaussian less a tolerance. For a normalised Gaussian target the best is
0; on the banana it is found by maximising (1).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bayescore.families import FullGaussian
from bayescore.rng import generator
from bayescore.targets import Banana, Gaussian, Target

__all__ = ["Problem", "banana", "gaussian"]

STARTS = 4  # of the search for the best Gaussian on the banana


@dataclass(frozen=True)
class Problem:
    """A target, its cubature rule and its goal."""

    name: str
    target: Target
    nodes: Tensor  # (n, D)
    weights: Tensor  # (n,)
    tolerance: float  # nats
    budget: int  # steps after which a run is given up

    def elbo(self, family: FullGaussian) -> float:
        """(1), or minus infinity where it is not a number."""
        value = float(self._elbo(family))
        return value if math.isfinite(value) else -math.inf

    def _elbo(self, family: FullGaussian) -> Tensor:
        return self.weights @ self.target.log_prob(family.transform(self.nodes)) + family.entropy()

    @property
    def q0(self) -> FullGaussian:
        """N(0, I), from which every method starts."""
        return FullGaussian.init(self.target.dim)

    @cached_property
    def best(self) -> float:
        """The ELBO of the best full Gaussian."""
        if isinstance(self.target, Gaussian):
            return 0.0
        return max(self._climb(seed) for seed in range(STARTS))

    @property
    def goal(self) -> float:
        return self.best - self.tolerance

    def describe(self) -> dict[str, float | str]:
        """What a record keeps."""
        return {
            "name": self.name,
            "target": repr(self.target),
            "best_elbo": self.best,
            "tolerance": self.tolerance,
            "budget": self.budget,
        }

    def density(self) -> dict[str, object]:
        """The target as numbers in JSON types, for peers that write its density in another language."""
        if isinstance(self.target, Gaussian):
            q = self.target.density
            assert isinstance(q, FullGaussian)
            return {"kind": "gaussian", "mean": q.mean.tolist(), "precision_factor": q.factor.tolist()}
        assert isinstance(self.target, Banana)
        return {"kind": "banana", "width": self.target.width, "bend": self.target.bend}

    def _climb(self, seed: int) -> float:
        """The maximum of (1) over all Gaussians by L-BFGS, from a random start."""
        start = FullGaussian.init(self.target.dim, seed=seed)
        flat = start.flat().requires_grad_()
        search = torch.optim.LBFGS(
            [flat], max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            search.zero_grad()
            loss = -self._elbo(start.from_flat(flat))
            loss.backward()
            return loss

        search.step(closure)
        return self.elbo(start.from_flat(flat.detach()))


def banana(budget: int = 2000) -> Problem:
    """The default banana in two dimensions, to 0.05 nats."""
    target = Banana()
    z, w = np.polynomial.hermite_e.hermegauss(5)
    nodes = torch.tensor(list(itertools.product(z, repeat=target.dim)), dtype=torch.float64)
    weights = torch.tensor(list(itertools.product(w, repeat=target.dim)), dtype=torch.float64).prod(-1)  # (3)
    return Problem("banana, D=2", target, nodes, weights / weights.sum(), tolerance=0.05, budget=budget)


def gaussian(dim: int = 100, condition: float = 100.0, budget: int = 2000) -> Problem:
    """A rotated Gaussian, mean from N(0, I), log-spaced variances up to 1; to 0.05 nats per dimension."""
    mean = torch.randn(dim, generator=generator(0), dtype=torch.float64)
    target = Gaussian(mean, Gaussian.ill_conditioned(dim, condition).covariance)
    eye = math.sqrt(dim) * torch.eye(dim, dtype=torch.float64)
    nodes = torch.cat([eye, -eye])  # (2)
    weights = torch.full((2 * dim,), 1 / (2 * dim), dtype=torch.float64)
    name = f"Gaussian, D={dim}, condition {condition:g}"
    return Problem(name, target, nodes, weights, tolerance=0.05 * dim, budget=budget)
