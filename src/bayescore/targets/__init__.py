"""Targets: the densities a fit approximates."""

from __future__ import annotations

from collections.abc import Callable

from bayescore.checks import check_count, unknown_name
from bayescore.targets.anchored import AnchoredPosterior
from bayescore.targets.base import Target
from bayescore.targets.constraints import Interval, Lower, Ordered, Positive, Real, Simplex, Upper
from bayescore.targets.functions import LogDensity, ScoreFunction
from bayescore.targets.gaussians import Gaussian, GaussianMixture
from bayescore.targets.minibatch import MiniBatchPosterior
from bayescore.targets.model import ConstrainedModel, TorchModel
from bayescore.targets.noisy import NoisyScore
from bayescore.targets.posterior_db import PosteriorDB, posteriordb
from bayescore.targets.propriety import improper_coordinates
from bayescore.targets.shapes import Banana, Funnel, SinhArcsinh
from bayescore.targets.stan import Stan

__all__ = [
    "NAMED",
    "AnchoredPosterior",
    "Banana",
    "ConstrainedModel",
    "Funnel",
    "Gaussian",
    "GaussianMixture",
    "Interval",
    "LogDensity",
    "Lower",
    "MiniBatchPosterior",
    "NoisyScore",
    "Ordered",
    "Positive",
    "PosteriorDB",
    "Real",
    "ScoreFunction",
    "Simplex",
    "SinhArcsinh",
    "Stan",
    "Target",
    "TorchModel",
    "Upper",
    "by_name",
    "improper_coordinates",
    "posteriordb",
]

#: ready-made targets by name: (a description of one line, a function that makes it from dim and seed)
NAMED: dict[str, tuple[str, Callable[[int | None, int], Target]]] = {
    "gaussian": (
        "Gaussian from the paper's random generator (3 dimensions unless --dim says)",
        lambda dim, seed: Gaussian.random(dim or 3, seed=seed),
    ),
    "mixture": (
        "mixture of 5 Gaussians from the paper's random generator (3)",
        lambda dim, seed: GaussianMixture.random(dim or 3, 5, seed=seed),
    ),
    "separated": (
        "mixture of 5 well-separated Gaussians (3)",
        lambda dim, seed: GaussianMixture.separated(dim or 3, 5, seed=seed),
    ),
    "ill-conditioned": (
        "rotated Gaussian with condition number 1e4 (100)",
        lambda dim, seed: Gaussian.ill_conditioned(dim or 100, 1e4, seed=seed),
    ),
    "banana": ("Gaussian bent along a parabola (2)", lambda dim, seed: Banana(dim or 2)),  # noqa: ARG005
    "funnel": ("Neal's funnel (3)", lambda dim, seed: Funnel(dim or 3)),  # noqa: ARG005
    "skewed": ("sinh-arcsinh normal with skewed coordinates (3)", lambda dim, seed: SinhArcsinh(dim or 3)),  # noqa: ARG005
}


def by_name(name: str, dim: int | None = None, seed: int = 0) -> Target:
    """The ready-made target of that name; the error for an unknown name suggests the nearest."""
    if name not in NAMED:
        raise unknown_name("target", name, NAMED)
    if dim is not None:
        check_count("dim", dim)
    return NAMED[name][1](dim, seed)
