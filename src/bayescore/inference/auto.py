"""The default fit: find a start, choose a family, run a robust method, keep the best, and say what was done.

1. Family: a full Gaussian up to 400 dimensions, low-rank plus diagonal up to 5,000, diagonal beyond; or that
   of the q0 that the user gives.
2. Start: found by a search (begin.py).
3. BaM from there, with a batch that grows with the dimension, until the ELBO no longer moves.
4. Where q is not yet close to the target, proximal score matching from there: its fixed points are those of
   the ELBO. Where BaM failed, it begins at 2. The q with the largest ELBO over common noise is kept.
Noisy scores cannot be climbed: proximal score matching, with residuals that are limited, begins at q0. Exact
scores without a density have no ELBO: BaM begins at q0, and proximal score matching does if BaM diverges. So
it does for mixtures and flows, with ADVI to fall back on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.inference.joining import join
from bayescore.inference.loop import Callback, Loop, Metric, Options
from bayescore.inference.outcome import Outcome
from bayescore.inference.result import Fit
from bayescore.inference.stopping import Plateau
from bayescore.initial.checks import check_match
from bayescore.initial.finding import Start, find_start, standard
from bayescore.initial.gaussians import Normal
from bayescore.initial.remarks import escaped
from bayescore.methods import ADVI, BaM, Method, ProximalDescent, WhitenedDescent
from bayescore.metrics.divergence import ELBO
from bayescore.rng import generator
from bayescore.targets.base import Target, as_batch

__all__ = ["Wishes", "auto"]

POLISH_LR, CAREFUL_LR = 0.05, 0.02  # of the descent after BaM, and where BaM made things worse
CLOSE = 0.15  # nats of spread of log Phi - log q below which q is left as it is
GAIN = 0.02  # nats that count as an improvement
PACE = 10  # steps of BaM between two looks at the ELBO
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
    q0 = standard(target) if family is None else family
    if family is None:
        run.notes.append(f"family: {type(q0).__name__}, for {target.dim} dimensions")
    check_match(target, q0)
    if not isinstance(q0, Normal):
        return run.by_descent(q0, ProximalDescent(), 1000, ADVI())
    if target.stochastic:
        return run.by_descent(q0, _noisy(q0, 0.1), 5000, _noisy(q0, 0.01))
    if not target.has_density:
        return run.by_descent(q0, BaM(_batch(q0)), 300, _exact(q0))
    return run.searched(q0)


def _noisy(q0: Normal, lr: float) -> Method:
    """Descent for noisy scores."""
    if isinstance(q0, LowRankGaussian):
        return ProximalDescent(inner_steps=2, clip=2.0, lr=0.3 * lr)
    return WhitenedDescent(lr=lr)


def _exact(q0: Normal) -> Method:
    """Descent for exact scores without a density."""
    return ProximalDescent(draws=8) if isinstance(q0, LowRankGaussian) else WhitenedDescent(draws=8)


def _polish(q: Family, lr: float) -> Method:
    """Descent from a q that is nearly right."""
    if isinstance(q, LowRankGaussian):
        return ProximalDescent(inner_steps=1, draws=32, lr=lr)
    return WhitenedDescent(inner_steps=1, draws=32, lr=lr, optimizer="adam")


def _batch(q: Family) -> int:
    return max(64, min(q.dim, 256)) if isinstance(q, FullGaussian) else 64


class _Run:
    """One automatic fit on its way: the stages so far, and what is to be said about them."""

    def __init__(self, target: Target, seed: int, wishes: Wishes) -> None:
        self.target, self.seed, self.wishes = target, seed, wishes
        self.start: Start | None = None
        self.judge, self.judged = ELBO(JUDGES, seed=seed), 0
        self.stages: list[Fit] = []
        self.notes: list[str] = []

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
            self.start = find_start(self.target, q0, seed=self.seed, check=self.wishes.check)
        except KeyboardInterrupt:
            return self.finish(self._loop(q0, method, steps, self.wishes.options(steps)).stop()[0])
        start = self.start.family
        watched = self.wishes.metrics is None or "elbo" in self.wishes.metrics
        stop = Plateau("elbo", GAIN, 2) if watched else None
        main = self.stage(start, method, steps, records=max(1, steps // PACE), stop=stop)
        if main.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED):
            return self.finish(main)
        before, after = self.elbo(start), self.elbo(main.family)
        best = main
        if not after > before - GAIN:
            best = self._from_the_start(start, before, method, steps)
        elif isinstance(q0, FullGaussian | DiagonalGaussian) and self._spread(main.family) > CLOSE:
            best = self._polished(main, after, max(30, steps // 3))
        if best.outcome is Outcome.WORSE:  # by its own records, but not by the judge
            rise = f"the ELBO rose by {self.elbo(best.family) - before:.3g} nats from the start"
            best = replace(best, outcome=Outcome.BUDGET, status=f"used its {best.state.step} steps; {rise}")
        return self.finish(best)

    def _from_the_start(self, start: Family, before: float, method: Method, steps: int) -> Fit:
        """Small steps where large ones made the start worse, and the start itself where they do so too."""
        self.notes.append("BaM made the start worse; proximal score matching began there instead")
        again = self.stage(start, _polish(start, CAREFUL_LR), min(steps, 200))
        if self.elbo(again.family) > before:
            return again
        self.notes.append("nothing improved on the start, which is the result")
        same = self._loop(start, method, steps, self.wishes.options(steps)).stop()[0]
        return replace(same, outcome=Outcome.BUDGET, status="no method improved on the start")

    def _polished(self, main: Fit, before: float, steps: int) -> Fit:
        more = self.stage(main.family, _polish(main.family, POLISH_LR), steps)
        gain = self.elbo(more.family) - before
        words = (
            f"gained {gain:.2g} nats of ELBO and was kept" if gain > 0 else "gained nothing and was dropped"
        )
        self.notes.append(f"proximal score matching from there {words}")
        return more if gain > 0 or more.outcome is Outcome.INTERRUPTED else main

    # -- the parts ---------------------------------------------------------------------------------

    def _loop(self, q: Family, method: Method, steps: int, options: Options) -> Loop:
        method.check(q, self.target)
        batch = as_batch([self.target])
        return Loop.start(batch, type(q).stack([q]), method, steps, [self.seed], options, [self.target])

    def stage(
        self, q: Family, method: Method, steps: int, records: int = 12, stop: Plateau | None = None
    ) -> Fit:
        """One loop; its target is checked only if no search has done it."""
        check = self.wishes.check and not self.stages and self.start is None
        options = replace(self.wishes.options(steps, records, check), stop=self.wishes.stop or stop)
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
        self.judged += JUDGES
        return value if math.isfinite(value) else -math.inf

    def _failed(self, done: Fit, q0: Family) -> bool:
        if done.outcome is Outcome.DIVERGED or not done.family.flat().isfinite().all():
            return True
        if self.target.has_density:
            return not self.elbo(done.family) > self.elbo(q0)
        return done.outcome is Outcome.WORSE

    def _spread(self, q: Family) -> float:
        x = self._draws(q)
        self.judged += JUDGES
        with torch.no_grad():
            return float((self.target.log_prob(x) - q.log_prob(x)).std())

    def _draws(self, q: Family) -> Tensor:
        return q.sample(JUDGES, generator(self.seed, q.device, "judge"))

    def finish(self, best: Fit) -> Fit:
        """`best`, with the counts, the time and the story of everything that was done."""
        done = join(best, self.stages or [best], self.start)
        doubts = done.doubts
        if self.start is not None and not self.start.mode and not doubts:
            reason = escaped(self.target, self._draws(best.family))
            doubts = () if reason is None else (reason,)
        family = self.notes[:1] if self.notes and self.notes[0].startswith("family") else []
        return replace(
            done,
            status=f"auto: {type(best.method).__name__} {best.status}",
            counts=replace(done.counts, density_evaluations=done.counts.density_evaluations + self.judged),
            notes=(*family, *done.notes, *self.notes[len(family) :]),
            doubts=doubts,
        )
