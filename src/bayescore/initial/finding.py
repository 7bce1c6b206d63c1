"""The search for the start of a fit, with its calls, its time and what it found.

The target is checked (checks.py). The log density is climbed from q0's mean and from random points towards a
mode (ascent.py). Of q0 and the local Gaussians at all iterates, the one with the largest ELBO over common
noise is the start (gaussians.py), so that there is a start even if the density has no mode.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.families.spiked import SpikedGaussian
from bayescore.initial.ascent import Iterate, lbfgs, newton
from bayescore.initial.averaging import averaging_search
from bayescore.initial.checks import check_match, check_target, finite_points, propriety_objection
from bayescore.initial.gaussians import GaussianFamily, best_gaussian, largest_elbo, local_gaussians
from bayescore.rng import Streams, generator
from bayescore.targets.anchored import AnchoredPosterior
from bayescore.targets.base import Target
from bayescore.targets.counting import CountedDensity, CountingOracle, Counts
from bayescore.targets.propriety import coordinate_names

__all__ = ["Start", "can_search", "default_family", "find_start", "make_start", "noisy_start"]

FULL_DIM, SPIKED_DIM = 400, 20_000  # the largest dimension of a full and of a spiked Gaussian
LOW_RANK_DIM = 5000  # of a low-rank one, for noisy scores
RANK = 20  # of both
NEWTON_DIM = 400  # the largest dimension for Newton climbs, whose curvature comes from differences of scores
MAX_POINTS, MAX_NUMBERS = 4, 200  # the largest number of points to climb from, and of points times D
STILL_RISING = 0.02  # nats: a climb that gained more over the last five iterates has not converged


@dataclass(frozen=True)
class Start:
    """A start q0 for any method, as `bs.fit(target, start, method)`; its calls are counted with the fit's.

    `notes` say what the search found; `objections` are reasons not to trust any fit of this target.
    """

    family: Family
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    found_mode: bool = False
    notes: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()
    origin: Family | None = None  # q0, where the search began

    @property
    def searched(self) -> bool:
        """Whether a search found it; otherwise it is the user's q0 or the default family."""
        return self.counts.search_calls > 0


def make_start(target: Target, family: Family | None, *, seed: int, check: bool) -> Start:
    """Where a fit begins: the start that a search finds if the target can be searched, else q0 itself."""
    if family is None:
        family = default_family(target)
    else:
        check_match(target, family)
    return _search(target, family, seed, check) if can_search(target, family) else Start(family)


def noisy_start(target: Target, family: Family | None, *, seed: int, check: bool, budget: int) -> Start:
    """Where a fit with noisy scores begins: a search on averaged scores, of at most `budget` calls.

    Of its candidates and q0 the one with the largest ELBO is the start; the last one without a density. A
    posterior with an anchor knows its start.
    """
    q0 = default_family(target) if family is None else family
    check_match(target, q0)
    if not isinstance(q0, GaussianFamily):
        return Start(q0)
    if isinstance(target, AnchoredPosterior):
        mean, factor = target.gaussian
        found = local_gaussians(mean.unsqueeze(0), factor.unsqueeze(0), q0)[0]
        note = f"start: the Gaussian at the anchor ({target.passes} passes over the data)"
        assert target.posterior.batch_size is not None
        calls = target.evaluations // target.posterior.batch_size  # as many mini-batch scores cost the same
        return Start(found, Counts(score_calls=calls, search_calls=calls), notes=(note,), origin=q0)
    began = time.perf_counter()
    batch = q0.replace({name: value.unsqueeze(0) for name, value in q0.parameters().items()})
    check_calls = check_target(target, batch) if check else 0
    oracle = CountingOracle(target, Streams([seed], dtype=q0.dtype, device=q0.device))
    candidates = averaging_search(oracle, q0, budget)
    density, rng = CountedDensity(target), generator(seed, target.device, "search")
    best = largest_elbo(density, candidates, q0, rng) if target.has_density else candidates[-1]
    counts = Counts(
        score_calls=oracle.score_calls,
        density_evaluations=density.density_evaluations,
        check_calls=check_calls,
        search_calls=oracle.score_calls,
    )
    note = f"start: a search on averaged scores ({oracle.score_calls:,} score calls)"
    return Start(best, counts, time.perf_counter() - began, notes=(note,), origin=q0)


def find_start(target: Target, family: Family | None = None, *, seed: int = 0, check: bool = True) -> Start:
    """Search for a start.

    Arguments:
        target: with an exact density.
        family: a Gaussian, of the kind that the start shall have; the search begins at its mean. By default
            N(0, I) in the family that suits the dimension.
        seed: of the random points.
        check: check the target first, as `bs.fit` does.

        start = bs.find_start(target)
        fit = bs.fit(target, start, bs.methods.ADVI())
    """
    q0 = default_family(target) if family is None else family
    if not can_search(target, q0):
        needs = "a search climbs an exact density towards a Gaussian start"
        raise TypeError(f"{needs}; got {target!r} and {type(q0).__name__}; begin at a family of your choice")
    check_match(target, q0)
    return _search(target, q0, seed, check)


def default_family(target: Target, serves: Sequence[str] | None = None) -> GaussianFamily:
    """N(0, I) in the family that suits the dimension; narrower, N(0, 0.01 I), if scores are noisy.

    `serves` are the families of a method that the user names; by default there is no such limit.
    The noise is largest where the scores are largest, which is far from the mode.
    """
    scale = 0.1 if target.stochastic else 1.0
    dim, dtype, device = target.dim, target.dtype, target.device
    if dim <= FULL_DIM:
        return FullGaussian.init(dim, scale=scale, dtype=dtype, device=device)
    if dim <= SPIKED_DIM and not target.stochastic and (serves is None or SpikedGaussian.__name__ in serves):
        return SpikedGaussian.init(dim, RANK, scale=scale, dtype=dtype, device=device)
    if dim <= LOW_RANK_DIM:
        return LowRankGaussian.init(dim, RANK, scale=scale, dtype=dtype, device=device)
    return DiagonalGaussian.init(dim, scale=scale, dtype=dtype, device=device)


def can_search(target: Target, family: Family) -> bool:
    """Whether there is an exact density to climb, and the family is Gaussian."""
    return target.has_density and not target.stochastic and isinstance(family, GaussianFamily)


def _search(target: Target, q0: Family, seed: int, check: bool) -> Start:
    assert isinstance(q0, GaussianFamily)
    began = time.perf_counter()
    density, rng = CountedDensity(target), generator(seed, target.device, "search")
    count = max(1, min(MAX_POINTS, MAX_NUMBERS // target.dim))
    x = finite_points(density, q0.mean, count, rng)  # (S, D)
    check_calls = 0
    if check:
        near = DiagonalGaussian(x[:1], torch.full_like(x[:1], math.log(0.01)))
        check_calls = check_target(target, near)
    draws = q0.sample(20, rng)
    objection = propriety_objection(target, draws)
    check_calls += len(draws)
    if target.dim <= NEWTON_DIM:
        climber, iterates = "Newton", newton(density, x)
    else:
        climber, iterates = "L-BFGS", lbfgs(density, x, rng)
    best = best_gaussian(density, iterates, q0, rng)
    counts = Counts(
        score_calls=density.score_calls,
        density_evaluations=density.density_evaluations,
        check_calls=check_calls,
        search_calls=density.score_calls,
    )
    return Start(
        family=best,
        counts=counts,
        seconds=time.perf_counter() - began,
        found_mode=bool(iterates[-1].at_mode.any()),
        notes=(_search_note(target, iterates, climber, density.score_calls),),
        objections=() if objection is None else (objection,),
        origin=q0,
    )


def _search_note(target: Target, iterates: Sequence[Iterate], climber: str, score_calls: int) -> str:
    """One sentence: a mode, or where the climbs ended instead."""
    last = iterates[-1]
    points = "1 point" if len(last.x) == 1 else f"{len(last.x)} points"
    climbs = f"{climber} climbs from {points} ({score_calls:,} score calls)"
    if last.at_mode.any():
        return f"start: {climbs} found a mode"
    i = int(last.value.argmax())
    moved = int((last.x[i] - iterates[0].x[i]).abs().argmax())
    where = f"{coordinate_names(target)[moved]} = {float(last.x[i, moved]):.3g}"
    begin = "The fit begins at the local Gaussian of the best ELBO on the way"
    if climber == "L-BFGS":
        return f"start: {climbs} were still rising at the end, at {where}. {begin}"
    if float(last.value[i] - iterates[max(0, len(iterates) - 6)].value[i]) > STILL_RISING:
        why = _why_unbounded(target, iterates, i, moved)
        return (
            f"no mode: at the end of {climbs} the log density still rises, towards {where} on the "
            f"unconstrained scale; {why}. {begin}"
        )
    return f"no mode: {climbs} ended where the density is not smooth or has no peak. {begin}"


def _why_unbounded(target: Target, iterates: Sequence[Iterate], i: int, moved: int) -> str:
    """Why climb i still rises along the coordinate `moved`, and what to do about it.

    A population scale that falls narrows its own effects in proportion: their local standard deviations
    follow exp(coordinate) from one iterate to another. If some do, they are named.
    """
    first, last = iterates[len(iterates) // 2], iterates[-1]
    fall = float(last.x[i, moved] - first.x[i, moved])
    names = coordinate_names(target)
    if fall < -1:
        narrowed = (_local_sd(last, i) / _local_sd(first, i)).log()  # (D,)
        narrowed[moved] = 0.0
        follow = ((narrowed / fall - 1).abs() < 0.25).nonzero().flatten().tolist()
        sizes = Counter(names[j].partition("[")[0] for j in follow)
        effects = [name for name, size in sizes.items() if size > 1]  # their location follows too
        if effects:
            scale = names[moved]
            return (
                f"{scale} is the population sd of {', '.join(effects)}, and the density grows without bound "
                f"as it goes to zero; write the non-centred form, {effects[0]} = location + {scale} * eta "
                "with eta ~ normal(0, 1)"
            )
    return "centred hierarchical models do that, and missing priors"


def _local_sd(iterate: Iterate, i: int) -> Tensor:
    """The standard deviation of every coordinate given the others, (D,), of the local Gaussian of climb i."""
    factor = iterate.factor[i]
    if factor.dim() == 1:
        return factor
    return torch.linalg.inv(factor).square().sum(-2).rsqrt()
