"""Where a fit begins: a search for a start, with its calls, its time and what it found.

Climbs go from q0's mean and from random points towards a mode (search.py). Of q0 and the local Gaussians at
all places on the way, the one with the largest ELBO over common noise is the start, so that a density without
a mode has one too.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.initial.ascent import climb, newton
from bayescore.initial.checks import check_match, check_start
from bayescore.initial.gaussians import Normal, best_start, default_family, start_points
from bayescore.initial.remarks import improper, told
from bayescore.rng import generator
from bayescore.targets.base import Target
from bayescore.targets.counting import Counted, Counts

__all__ = ["Start", "can_search", "find_start", "standard"]

NEWTON = 400  # the largest dimension in which the curvature is taken by differences of scores
POINTS = 200  # D times the number of starts, at most


@dataclass(frozen=True)
class Start:
    """A start q0 for any method, as `bs.fit(target, start, method)`; its calls are counted with the fit's."""

    family: Family
    counts: Counts
    seconds: float
    mode: bool
    notes: tuple[str, ...]
    doubts: tuple[str, ...]


def standard(target: Target) -> Normal:
    """N(0, I) in the family that suits the dimension; under noise a narrow one.

    A wide start is where the scores, and with them the noise, are largest.
    """
    scale = 0.1 if target.stochastic else 1.0
    return default_family(target.dim, scale, target.dtype, target.device)


def can_search(target: Target, family: Family) -> bool:
    """Whether there is a density to climb and a local Gaussian to begin from."""
    return target.has_density and not target.stochastic and isinstance(family, Normal)


def find_start(target: Target, family: Family | None = None, *, seed: int = 0, check: bool = True) -> Start:
    """Search for a start.

    Arguments:
        target: with an exact density.
        family: a Gaussian: its kind is that of the start, its mean is where the search begins; N(0, I) in the
            family that suits the dimension if it is not given.
        seed: of the random points.
        check: check the target first, as `bs.fit` does.

        start = bs.find_start(target)
        fit = bs.fit(target, start, bs.methods.ProximalScore())
    """
    q0 = standard(target) if family is None else family
    if not isinstance(q0, Normal) or not can_search(target, q0):
        needs = "a search climbs an exact density towards a Gaussian start"
        raise TypeError(f"{needs}; got {target!r} and {type(q0).__name__}; begin at a family of your choice")
    check_match(target, q0)
    began, counted, rng = time.perf_counter(), Counted(target), generator(seed, target.device, "search")
    x = start_points(counted, q0.mean, max(1, min(4, POINTS // target.dim)), rng)
    checked = 0
    if check:
        near = DiagonalGaussian(x[:1], torch.full_like(x[:1], math.log(0.01)))
        checked = check_start(target, near)
    draws = q0.sample(20, rng)
    doubt = improper(target, draws)
    small = target.dim <= NEWTON
    places = newton(counted, x) if small else climb(counted, x, rng)
    best = best_start(counted, places, q0, rng)
    counts = Counts(
        score_calls=counted.score_calls,
        density_evaluations=counted.density_evaluations,
        check_calls=checked + len(draws),
        start_calls=counted.score_calls,
    )
    return Start(
        family=best,
        counts=counts,
        seconds=time.perf_counter() - began,
        mode=bool(places[-1].at_mode.any()),
        notes=(told(target, places, "Newton" if small else "L-BFGS", counted.score_calls),),
        doubts=() if doubt is None else (doubt,),
    )
