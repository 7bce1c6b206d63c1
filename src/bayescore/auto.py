"""The default fit: find a start, choose a family, run a robust method, keep the best, and say what was done.

1. Family: a full Gaussian up to 200 dimensions, low-rank plus diagonal up to 5,000, diagonal beyond; or that
   of the q0 that the user gives.
2. Start: climbs from q0's mean and from random points towards a mode (search.py). Of q0 and the local
   Gaussians at all places on the way, the one with the largest ELBO over common noise is the start, so that a
   density without a mode gives one too.
3. BaM from there, with a batch that grows with the dimension, until the ELBO no longer moves.
4. Where q is not yet close to the target, proximal score matching from there: its fixed points are those of
   the ELBO. Where BaM failed, it begins at 2. The q with the largest ELBO over common noise is kept.
Noisy scores cannot be climbed: proximal score matching with clipped residuals begins at q0. Exact scores
without a density have no ELBO: BaM begins at q0, and proximal score matching does if BaM diverges. So it does
for mixtures and flows, with ADVI to fall back on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from bayescore.candidates import Normal, best_start, default_family, start_points
from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.history import History
from bayescore.loop import Callback, Loop, Metric, Options
from bayescore.methods import ADVI, BaM, Method, ProximalScore
from bayescore.metrics.divergence import ELBO
from bayescore.result import Counts, Fit, Outcome
from bayescore.rng import generator
from bayescore.search import Counted, Place, climb, newton
from bayescore.start import check_match, check_start
from bayescore.status import Plateau
from bayescore.targets.base import Target, as_batch
from bayescore.targets.propriety import improper_coordinates

__all__ = ["Wishes", "auto"]

NEWTON = 200  # the largest dimension in which the curvature is taken by differences of scores
POINTS = 200  # scores that one survey may take before it makes do with fewer starts
CLOSE = 0.5  # nats of spread of log Phi - log q below which q is left as it is
GAIN = 0.02  # nats that count as an improvement
JUDGES = 256  # draws over which stages are compared


@dataclass(frozen=True)
class Wishes:
    """What the user said about a run; None leaves it to the run."""

    steps: int | None = None
    metrics: Mapping[str, Metric] | None = None
    record_every: int | Sequence[int] | None = None
    stop: Plateau | None = None
    callbacks: tuple[Callback, ...] = ()
    progress: bool | None = None
    check: bool = True

    def options(self, steps: int, records: int = 50, check: bool | None = None) -> Options:
        """The options of a loop of so many steps, with about so many records; the last step is recorded."""
        every = max(1, steps // records) if self.record_every is None else self.record_every
        if isinstance(every, Sequence):
            due = frozenset(every)
        else:
            check_count("record_every", every)
            due = frozenset(range(every, steps + 1, every))
        check = self.check if check is None else check
        return Options(self.metrics, due | {steps}, self.stop, self.callbacks, self.progress, check)


def auto(target: Target, family: Family | None, seed: int, wishes: Wishes) -> Fit:
    """Fit `target` as above, beginning at `family` if it is given."""
    run = _Run(target, seed, wishes)
    q0 = family
    if q0 is None:
        # under noise a wide start is where the scores, and with them the noise, are largest
        q0 = default_family(target.dim, 0.1 if target.stochastic else 1.0, target.dtype, target.device)
        run.notes.append(f"family: {type(q0).__name__}, for {target.dim} dimensions")
    check_match(target, q0)
    if not isinstance(q0, Normal):
        return run.by_descent(q0, ProximalScore(), 1000, ADVI())
    if target.stochastic:
        return run.by_descent(q0, _noisy(q0, 0.03), 5000, _noisy(q0, 0.003))
    if not target.has_density:
        return run.by_descent(q0, BaM(_batch(q0)), 300, ProximalScore(samples=8))
    return run.searched(q0)


def _noisy(q0: Normal, rate: float) -> ProximalScore:
    if isinstance(q0, DiagonalGaussian):
        return ProximalScore(samples=4, clip=2.0, learning_rate=rate)
    return ProximalScore(inner_steps=2, clip=2.0, learning_rate=rate, metric="euclidean")


def _batch(q: Family) -> int:
    return max(64, min(q.dim, 256)) if isinstance(q, FullGaussian) else 64


class _Run:
    """One automatic fit on its way: the stages so far, and what is to be said about them."""

    def __init__(self, target: Target, seed: int, wishes: Wishes) -> None:
        self.target, self.seed, self.wishes = target, seed, wishes
        self.began = time.perf_counter()
        self.counted = Counted(target)
        self.judge = ELBO(JUDGES, seed=seed)
        self.check_calls = 0
        self.stages: list[Fit] = []
        self.notes: list[str] = []
        self.doubts: list[str] = []

    # -- the ways ----------------------------------------------------------------------------------

    def by_descent(self, q0: Family, first: Method, steps: int, second: Method) -> Fit:
        """One method from q0, and another where the first made nothing better."""
        done = self.stage(q0, first, self.wishes.steps or steps)
        if done.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED) or not self._failed(done, q0):
            return self.finish(done)
        self.notes.append(f"{type(first).__name__} made nothing better; {type(second).__name__} began anew")
        again = self.stage(q0, second, self.wishes.steps or steps)
        return self.finish(max((again, done), key=lambda fit: self.elbo(fit.family)))

    def searched(self, q0: Normal) -> Fit:
        """A search, BaM and, where it can help, proximal score matching."""
        steps = self.wishes.steps or 200
        method = BaM(_batch(q0), "decay")
        try:
            start = self.search(q0)
        except KeyboardInterrupt:
            return self.finish(self._loop(q0, method, steps, self.wishes.options(steps)).stop()[0])
        watched = self.wishes.metrics is None or "elbo" in self.wishes.metrics
        main = self.stage(start, method, steps, stop=Plateau("elbo", GAIN, 2) if watched else None)
        if main.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED):
            return self.finish(main)
        before, after = self.elbo(start), self.elbo(main.family)
        best = main
        polish = partial(ProximalScore, inner_steps=1, samples=32)
        if not after > before - GAIN:
            self.notes.append("BaM made the start worse; proximal score matching began there instead")
            best = self.stage(start, polish(learning_rate=0.02), steps)
            if not self.elbo(best.family) > before:
                self.notes.append("nothing improved on the start, which is the result")
                best = self._loop(start, method, steps, self.wishes.options(steps)).stop()[0]
                best = replace(best, outcome=Outcome.BUDGET, status="no method improved on the start")
        elif isinstance(q0, FullGaussian | DiagonalGaussian) and self._spread(main.family) > CLOSE:
            more = self.stage(main.family, polish(learning_rate=0.05), max(30, steps // 3))
            gain = self.elbo(more.family) - after
            kept = gain > GAIN
            words = (
                f"gained {gain:.2g} nats of ELBO and was kept" if kept else "gained nothing and was dropped"
            )
            self.notes.append(f"proximal score matching from there {words}")
            best = more if kept or more.outcome is Outcome.INTERRUPTED else main
        return self.finish(best)

    # -- the parts ---------------------------------------------------------------------------------

    def search(self, q0: Normal) -> Normal:
        """The start, with what was found out about the density."""
        rng = generator(self.seed, self.target.device, "search")
        dim = self.target.dim
        count = max(1, min(4, POINTS // dim))
        x = start_points(self.counted, q0.mean, count, rng)
        if self.wishes.check:
            near = DiagonalGaussian(x[:1], torch.full_like(x[:1], math.log(0.01)))
            self.check_calls += check_start(self.target, near)
        self._look_for_impropriety(q0)
        places = newton(self.counted, x) if dim <= NEWTON else climb(self.counted, x)
        start = best_start(self.counted, places, q0, rng)
        self._tell(places, len(x))
        return start

    def _look_for_impropriety(self, q0: Normal) -> None:
        draws = q0.sample(20, generator(self.seed, self.target.device, "propriety"))
        free = improper_coordinates(self.target, draws)
        self.check_calls += len(draws)
        if free:
            self.doubts.append(
                f"the log density is linear in {', '.join(free)}, so it cannot be normalised; "
                "give every parameter a prior"
            )

    def _tell(self, places: list[Place], count: int) -> None:
        """What the climbs found, in a sentence."""
        last, kind = places[-1], "Newton" if self.target.dim <= NEWTON else "L-BFGS"
        spent = f"{self.counted.score_calls:,} score calls"
        if last.at_mode.any():
            self.notes.append(f"start: {kind} climbs from {count} points found a mode ({spent})")
            return
        i = int(last.value.argmax())
        rise = float(last.value[i] - places[max(0, len(places) - 6)].value[i])
        names = getattr(self.target, "names", None) or [f"x[{k + 1}]" for k in range(self.target.dim)]
        moved = int((last.x[i] - places[0].x[i]).abs().argmax())
        if rise > GAIN:
            where = f"towards {names[moved]} = {float(last.x[i, moved]):.3g} on the unconstrained scale"
            self.notes.append(
                f"no mode: the log density still rises at the end of {kind} climbs from {count} points, "
                f"{where} ({spent}); densities of centred hierarchical models do that. The fit begins at the "
                "local Gaussian of the best ELBO on the way"
            )
        else:
            self.notes.append(
                f"no mode: {kind} climbs from {count} points ended where the density is not smooth or has no "
                f"peak ({spent}). The fit begins at the local Gaussian of the best ELBO on the way"
            )

    def _loop(self, q: Family, method: Method, steps: int, options: Options) -> Loop:
        method.check(q, self.target)
        batch = as_batch([self.target])
        return Loop.start(batch, type(q).stack([q]), method, steps, [self.seed], options, [self.target])

    def stage(self, q: Family, method: Method, steps: int, stop: Plateau | None = None) -> Fit:
        """One loop; its target is checked only if no search has done it."""
        check = self.wishes.check and not self.stages and not self.counted.score_calls
        options = self.wishes.options(steps, 20, check)
        options = replace(options, stop=self.wishes.stop or stop)
        done = self._loop(q, method, steps, options).run()[0]
        self.stages.append(done)
        self.notes.append(f"{type(method).__name__}: {done.score_calls:,} score calls; {done.status}")
        return done

    def elbo(self, q: Family) -> float:
        """The ELBO over common noise; -inf where there is none."""
        if not self.target.has_density:
            return -math.inf
        with torch.no_grad():
            value = float(self.judge(type(q).stack([q]), as_batch([self.target]))[0])
        self.counted.density_evaluations += JUDGES
        return value if math.isfinite(value) else -math.inf

    def _failed(self, done: Fit, q0: Family) -> bool:
        if done.outcome is Outcome.DIVERGED or not done.family.flat().isfinite().all():
            return True
        if self.target.has_density:
            return not self.elbo(done.family) > self.elbo(q0)
        return done.outcome is Outcome.WORSE

    def _spread(self, q: Family) -> float:
        x = q.sample(JUDGES, generator(self.seed, q.device, "judge"))
        return float((self.counted.value(x) - q.log_prob(x)).std())

    def finish(self, best: Fit) -> Fit:
        """`best`, with the counts, the time and the story of everything that was done."""
        stages = self.stages or [best]
        total = Counts(
            score_calls=self.counted.score_calls + sum(s.counts.score_calls for s in stages),
            hessian_products=sum(s.counts.hessian_products for s in stages),
            density_evaluations=self.counted.density_evaluations
            + sum(s.counts.density_evaluations for s in stages),
            check_calls=self.check_calls + sum(s.counts.check_calls for s in stages),
            skipped_steps=sum(s.counts.skipped_steps for s in stages),
            start_calls=self.counted.score_calls,
        )
        return replace(
            best,
            status=f"auto: {type(best.method).__name__} {best.status}",
            history=self._history(stages),
            counts=total,
            seconds=time.perf_counter() - self.began,
            notes=tuple(self.notes),
            doubts=tuple(self.doubts),
        )

    def _history(self, stages: Sequence[Fit]) -> History:
        """The records of all stages in a row, the score calls and seconds of the search in front."""
        joined = History()
        step, calls = 0.0, float(self.counted.score_calls)
        seconds = time.perf_counter() - self.began - sum(stage.seconds for stage in stages)
        for stage in stages:
            for row in stage.history:
                row["step"] += step
                row["score_calls"] += calls
                row["seconds"] += seconds
                joined.add(**row)
            step += stage.state.step
            calls += stage.counts.score_calls
            seconds += stage.seconds
        return joined
