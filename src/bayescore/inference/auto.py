"""The automatic fit: choose a family, find a start, run a robust method, keep the best q, note what was done.

1. Family: a full Gaussian up to 400 dimensions, a spiked one (a diagonal and 20 directions of their own
   variance) up to 20,000, diagonal beyond; or the family of the q0 that the user gives.
2. Start: found by a search (initial/finding.py).
3. BaM from the start, with more draws in higher dimensions, until the ELBO no longer changes; for a spiked
   Gaussian CurvatureMatching instead. If that failed, proximal score matching from the start.
4. Other routes, if the search found no mode or q is far from the target: the same from the broad q0 where the
   search began, which no local peak and no density that grows without bound attracts; with effort="thorough"
   also from dispersed ones. The q with the largest ELBO over common noise is kept. CurvatureMatching goes on
   from there, with as many steps again, if its ELBO still rose at the end.
5. If q is not yet close to the target, proximal score matching from there: its fixed points are those of the
   ELBO. It is kept if the ELBO rises.
6. If the diagnosis then does not say that q itself is good, ADVI fits a coupling flow that begins as q
   (families/coupling.py), with gradients that vanish where the flow agrees with the target. It is kept if the
   ELBO over fresh draws is larger by two standard errors. A family that the user gives stays what it is.

Noisy scores are searched by averages (initial/averaging.py). There is no search if there is no density, or
for mixtures and flows. One method then begins at the start, and if it fails another one does:
    noisy scores              proximal score matching with bounded residuals; the same with smaller steps
    scores without a density  BaM; proximal score matching
    mixtures and flows        proximal score matching; ADVI
If there is a density beside the noisy scores, it judges: as in 4, the same method from where the search began
may give another start, and as in 5, without bounds on residuals, which move the fixed point if these are
skewed, proximal score matching has the last calls.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.families.coupling import CouplingFlow
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.families.spiked import SpikedGaussian
from bayescore.inference.loop import Loop
from bayescore.inference.options import RunOptions
from bayescore.inference.result import Fit, Outcome, join_stages
from bayescore.inference.stopping import Plateau
from bayescore.initial.finding import Start, default_family, make_start, noisy_start
from bayescore.initial.gaussians import GaussianFamily
from bayescore.methods import ADVI, BaM, CurvatureMatching, Method, ProximalDescent, WhitenedDescent
from bayescore.metrics.divergence import ELBO
from bayescore.metrics.estimate import Estimate
from bayescore.rng import generator
from bayescore.targets.base import Target, as_batch
from bayescore.targets.counting import Counts
from bayescore.targets.propriety import REMEDY, coordinate_names

__all__ = ["auto_fit", "interrupted"]

POLISH_LR, CAREFUL_LR = 0.05, 0.02  # of the descent after BaM, and of the descent if BaM made the start worse
CLOSE_SPREAD = 0.15  # nats: if log Phi - log q has a smaller standard deviation, q needs no second stage
MIN_GAIN = 0.02  # nats of ELBO that count as an improvement
STEPS_PER_RECORD = 10  # of BaM
FAR_SPREAD = 2.0  # nats: with a larger standard deviation of log Phi - log q another route is tried
CURVATURE_STEPS = 80  # of CurvatureMatching, 66 score calls each
BROAD_STEPS = 120  # of BaM from a broad q0
RISING = 1.0  # nats of ELBO in the last quarter of CurvatureMatching's steps that ask for more steps
DISPERSED = 3  # routes from dispersed q0, with effort="thorough"
WARP_SPREAD = 0.5  # nats: with a smaller standard deviation of log Phi - log q no flow is asked for
#: draws and steps of ADVI for the coupling flow
WARP = {"normal": (128, 150), "thorough": (256, 400)}
HELD_OUT_DRAWS = 2000  # over which the Gaussian and the flow are compared
NOISY_STEPS = 4500  # with the search and a second run of a third, 10,000 score calls
NOISY_DRAWS, NOISY_LR = 4, 0.01  # of that run, if it polishes
#: the most score calls of the search under noise
SEARCH_CALLS = {"quick": 1000, "normal": 4000, "thorough": 12_000}
COMPARISON_DRAWS = 256  # over which the ELBOs of stages are compared
FAR_AWAY = 1e6  # a larger coordinate of q means that it followed a density without a mode


def auto_fit(target: Target, family: Family | None, seed: int, options: RunOptions) -> Fit:
    """Fit `target` as described above, with q0 = `family` if it is given."""
    try:
        if target.stochastic:
            budget = min(SEARCH_CALLS[options.effort], options.steps or NOISY_STEPS)
            start = noisy_start(target, family, seed=seed, check=options.check, budget=budget)
        else:
            start = make_start(target, family, seed=seed, check=options.check)
    except KeyboardInterrupt:
        return interrupted(target, family, seed, options)
    run = _AutomaticFit(target, start, seed, options, family_given=family is not None)
    if not start.searched:
        return run.from_q0()
    return run.from_noisy_search() if target.stochastic else run.from_search()


def interrupted(target: Target, family: Family | None, seed: int, options: RunOptions) -> Fit:
    """The fit that Ctrl-C interrupted before its first step; `bs.resume` runs its method from q0."""
    q0 = default_family(target) if family is None else family
    return _AutomaticFit(target, Start(q0), seed, options, family_given=family is not None).not_run()


def _plan(target: Target, q0: Family) -> tuple[Method, Method, int]:
    """The first method, the fallback if it fails, and the number of steps."""
    if not isinstance(q0, GaussianFamily):
        return ProximalDescent(), ADVI(), 1000
    if target.stochastic:
        return _for_noise(q0, 0.1), _for_noise(q0, 0.01), NOISY_STEPS
    if isinstance(q0, SpikedGaussian):
        return CurvatureMatching(), ADVI(draws=16, lr=CAREFUL_LR), CURVATURE_STEPS
    draws = max(64, min(q0.dim, 256)) if isinstance(q0, FullGaussian) else 64
    if target.has_density:  # it can be searched
        return BaM(draws, "decay"), _polish(q0, 32, CAREFUL_LR), 200
    return BaM(draws), _for_scores(q0), 300


def _for_noise(q0: GaussianFamily, lr: float) -> Method:
    """Descent for noisy scores: its steps are bounded, however large a score is."""
    if isinstance(q0, LowRankGaussian):
        return ProximalDescent(inner_steps=2, clip=2.0, lr=0.3 * lr)
    return WhitenedDescent(lr=lr)


def _for_scores(q0: GaussianFamily) -> Method:
    """Descent for exact scores without a density."""
    return ProximalDescent(draws=8) if isinstance(q0, LowRankGaussian) else WhitenedDescent(draws=8)


def _polish(q: Family, draws: int, lr: float) -> Method:
    """Descent from a q that is already close to the target."""
    if isinstance(q, LowRankGaussian):
        return ProximalDescent(inner_steps=1, draws=draws, lr=lr)
    return WhitenedDescent(inner_steps=1, draws=draws, lr=lr, optimizer="adam")


class _AutomaticFit:
    """One automatic fit: its start, the stages run so far, and the notes on them."""

    def __init__(
        self, target: Target, start: Start, seed: int, options: RunOptions, *, family_given: bool
    ) -> None:
        self.target, self.start, self.seed, self.options = target, start, seed, options
        self.family_given = family_given
        chosen = f"family: {type(start.family).__name__}, for {target.dim} dimensions"
        self.family_notes = () if family_given else (chosen,)
        self.method, self.fallback, steps = _plan(target, start.family)
        self.steps = options.steps or steps
        self.compare, self.comparison_draws = ELBO(COMPARISON_DRAWS, seed=seed), 0
        self.stages: list[Fit] = []
        self.notes: list[str] = []

    # -- routes ------------------------------------------------------------------------------------

    def from_search(self) -> Fit:
        """BaM from the start that the search found and, if it can help, proximal score matching."""
        q0 = self.start.family
        recorded = self.options.metrics is None or "elbo" in self.options.metrics
        stop = Plateau("elbo", MIN_GAIN, 2) if recorded else None
        main = self._stage(q0, self.method, self.steps, max(1, self.steps // STEPS_PER_RECORD), stop)
        if main.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED):
            return self._finish(main)
        before = self._elbo(q0)
        best = main if self._elbo(main.family) > before - MIN_GAIN else self._restarted(q0, before)
        best = self._continued(self._other_routes(best))
        if best.outcome is Outcome.INTERRUPTED:
            return self._finish(best)
        if isinstance(best.method, BaM) and self._spread(best.family) > CLOSE_SPREAD:
            best = self._polished(best, 32, POLISH_LR, max(30, self.steps // 3))
        best = self._warped(best)
        if best.outcome is Outcome.WORSE:
            # The outcome rests on few records over 64 draws; over common noise the ELBO rose.
            rise = f"the ELBO rose by {self._elbo(best.family) - before:.3g} nats from the start"
            status = f"used its {best.state.step} steps; {rise}"
            return self._finish(best, Outcome.BUDGET, status)
        return self._finish(best)

    def _other_routes(self, best: Fit) -> Fit:
        """The best of `best` and of BaM from the broad q0, and from dispersed ones if effort is thorough."""
        origin, effort = self.start.origin, self.options.effort
        assert isinstance(origin, GaussianFamily)
        if self.start.objections or (self.start.found_mode and effort == "quick"):
            return best
        if self.start.found_mode and self._spread(best.family) < FAR_SPREAD and effort != "thorough":
            return best
        broad = {"the broad q0": origin}
        for i in range(DISPERSED if effort == "thorough" else 0):
            rng = generator(self.seed, origin.device, f"dispersed {i}")
            shift = torch.randn(origin.dim, generator=rng, dtype=origin.dtype, device=origin.device)
            parameters = origin.parameters()
            broad[f"dispersed q0 {i + 1}"] = origin.replace({**parameters, "mean": origin.mean + shift})
        reached = self._elbo(best.family)
        for where, q in broad.items():
            other = self._stage(q, self.method, min(self.steps, BROAD_STEPS))
            gain = self._elbo(other.family) - reached
            if gain > MIN_GAIN or other.outcome is Outcome.INTERRUPTED:
                best, reached = other, reached + gain
                words = f"is better by {gain:.3g} nats of ELBO and was kept"
            else:
                words = "is no better and was dropped"
            self.notes.append(f"{type(self.method).__name__} from {where} {words}")
            if other.outcome is Outcome.INTERRUPTED:
                break
        return best

    def _continued(self, best: Fit) -> Fit:
        """CurvatureMatching once more from where it is, with full steps, if its ELBO still rose."""
        if not isinstance(best.method, CurvatureMatching) or best.outcome is not Outcome.BUDGET:
            return best
        values = best.history["elbo"] if "elbo" in best.history else torch.zeros(1)
        rising = float(values[-1] - values[3 * len(values) // 4 - 1]) > RISING
        if self.options.effort == "quick" or not rising:
            return best
        more = self._stage(best.family, self.method, self.steps)
        gain = self._elbo(more.family) - self._elbo(best.family)
        words = f"gained {gain:.3g} nats of ELBO and were kept" if gain > 0 else "gained nothing"
        self.notes.append(f"as many steps again {words}")
        return more if gain > 0 or more.outcome is Outcome.INTERRUPTED else best

    def _restarted(self, q0: Family, before: float) -> Fit:
        """Small steps from the start, which BaM made worse; the start itself if they make it worse too."""
        first, second = type(self.method).__name__, type(self.fallback).__name__
        self.notes.append(f"{first} made the start worse; {second} began there instead")
        again = self._stage(q0, self.fallback, min(self.steps, 200))
        if self._elbo(again.family) > before:
            return again
        return self._unchanged(q0)

    def _unchanged(self, q0: Family) -> Fit:
        """q0 itself, which the methods that were tried have made worse."""
        self.notes.append("nothing improved on the start, which stays")
        loop = self._loop(q0, self.method, self.steps, self.options)
        return loop.not_run(Outcome.BUDGET, "no method improved on the start")[0]

    def _polished(self, best: Fit, draws: int, lr: float, steps: int) -> Fit:
        """Proximal score matching from `best`, without bounds on residuals, if it gains anything."""
        q = best.family
        if not isinstance(q, FullGaussian | DiagonalGaussian):
            return best
        more = self._stage(q, _polish(q, draws, lr), steps)
        gain = self._elbo(more.family) - self._elbo(q)
        words = (
            f"gained {gain:.2g} nats of ELBO and was kept" if gain > 0 else "gained nothing and was dropped"
        )
        self.notes.append(f"proximal score matching from there {words}")
        return more if gain > 0 or more.outcome is Outcome.INTERRUPTED else best

    def _warped(self, best: Fit) -> Fit:
        """A coupling flow around the Gaussian `best`, if the diagnosis asks for more than a Gaussian."""
        q, effort = best.family, self.options.effort
        if self.family_given or effort == "quick" or self.start.objections or self._ran_off(q):
            return best
        if not isinstance(q, FullGaussian) or q.dim < 2 or best.outcome is Outcome.INTERRUPTED:
            return best
        if not self._spread(q) > WARP_SPREAD:
            return best
        found = best.weighed
        assert found is not None
        self.comparison_draws += len(found.log_ratios)
        if not found.finite or found.good:
            return best
        draws, steps = WARP[effort]
        method = ADVI(draws=draws, stick=True)
        flow = self._stage(CouplingFlow.around(q, seed=self.seed), method, min(self.steps, steps))
        before, after = self._held_out(q), self._held_out(flow.family)
        gain, error = after.value - before.value, math.hypot(before.error, after.error)
        kept = gain > 2 * error
        self.notes.append(
            f"a coupling flow around it changed the ELBO by {gain:+.3g} ± {error:.2g} nats, from "
            f"{before.value:.6g} to {after.value:.6g}, and was {'kept' if kept else 'dropped'}"
        )
        return flow if kept or flow.outcome is Outcome.INTERRUPTED else best

    def _held_out(self, q: Family) -> Estimate:
        """The ELBO over fresh draws; -inf where it is not finite."""
        x = q.sample(HELD_OUT_DRAWS, generator(self.seed, q.device, "held out"))
        self.comparison_draws += HELD_OUT_DRAWS
        with torch.no_grad():
            ratios = self.target.log_prob(x) - q.log_prob(x)
        if not bool(ratios.isfinite().all()):
            return Estimate(-math.inf, 0.0)
        return Estimate(float(ratios.mean()), float(ratios.std()) / math.sqrt(len(ratios)))

    def from_noisy_search(self) -> Fit:
        """Under noise: one method from the start, and the rest of the calls to polish, if there is a density.

        If q is far from the target at the start, a third of the steps is made from where the search began,
        which no neck of a density attracts; the others go on from the better of the two.
        """
        q0, steps = self.start.family, self.steps
        polishable = isinstance(q0, FullGaussian | DiagonalGaussian)
        if not self.target.has_density or not polishable or self.options.effort == "quick":
            return self.from_q0()
        if not self._spread(q0) <= WARP_SPREAD:  # it may be NaN
            assert self.start.origin is not None
            broad = self._stage(self.start.origin, self.method, steps // 3)
            if broad.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED):
                return self._finish(broad)
            gain, steps = self._elbo(broad.family) - self._elbo(q0), steps - steps // 3
            words = "is no better and was dropped"
            if gain > MIN_GAIN:
                q0 = broad.family
                words = f"is better by {gain:.3g} nats of ELBO and was kept"
            self.notes.append(f"{type(self.method).__name__} from where the search began {words}")
        done = self._stage(q0, self.method, steps)
        if done.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED):
            return self._finish(done)
        if self._failed(done, q0):
            done = self._unchanged(q0)
        polish = max(1, self.steps // 3 // NOISY_DRAWS)
        return self._finish(self._polished(done, NOISY_DRAWS, NOISY_LR, polish))

    def from_q0(self) -> Fit:
        """One method from q0, and the fallback from q0 if the first improved nothing."""
        q0 = self.start.family
        done = self._stage(q0, self.method, self.steps)
        if done.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED) or not self._failed(done, q0):
            return self._finish(done)
        first, second = type(self.method).__name__, type(self.fallback).__name__
        self.notes.append(f"{first} made nothing better; {second} began anew")
        again = self._stage(q0, self.fallback, self.steps // 3 if self.start.searched else self.steps)
        best = max((again, done), key=lambda fit: self._elbo(fit.family))
        if self.start.searched and self._failed(best, q0):
            best = self._unchanged(q0)
        return self._finish(best)

    def _failed(self, done: Fit, q0: Family) -> bool:
        """Whether a run diverged or ended no better than q0."""
        if done.outcome is Outcome.DIVERGED or not done.family.flat().isfinite().all():
            return True
        if self.target.has_density:
            return not self._elbo(done.family) > self._elbo(q0)
        return done.outcome is Outcome.WORSE

    def not_run(self) -> Fit:
        """q0 unchanged, before the first step of the method that would have run."""
        loop = self._loop(self.start.family, self.method, self.steps, self.options)
        return self._finish(loop.not_run()[0])

    # -- what the routes share ---------------------------------------------------------------------

    def _loop(self, q: Family, method: Method, steps: int, options: RunOptions) -> Loop:
        method.check(q, self.target)
        batch, family = as_batch([self.target]), type(q).stack([q])
        return Loop.from_families(batch, [self.target], family, method, steps, [self.seed], options)

    def _stage(
        self, q: Family, method: Method, steps: int, records: int = 12, stop: Plateau | None = None
    ) -> Fit:
        """Run a method from q, with about `records` records; only the first stage checks the target."""
        every = self.options.record_every
        options = replace(
            self.options,
            record_every=max(1, steps // records) if every is None else every,
            stop=self.options.stop or stop,
            check=self.options.check and not self.start.searched and not self.stages,
        )
        done = self._loop(q, method, steps, options).run()[0]
        self.stages.append(done)
        self.notes.append(f"{type(method).__name__}: {done.score_calls:,} score calls; {done.status}")
        return done

    def _elbo(self, q: Family) -> float:
        """The ELBO over common noise; -inf where it is not finite or there is no density."""
        if not self.target.has_density:
            return -math.inf
        with torch.no_grad():
            value = float(self.compare(type(q).stack([q]), as_batch([self.target]))[0])
        self.comparison_draws += COMPARISON_DRAWS
        return value if math.isfinite(value) else -math.inf

    def _spread(self, q: Family) -> float:
        """The standard deviation of log Phi - log q over draws of q."""
        x = self._draws(q)
        self.comparison_draws += COMPARISON_DRAWS
        with torch.no_grad():
            return float((self.target.log_prob(x) - q.log_prob(x)).std())

    def _draws(self, q: Family) -> Tensor:
        return q.sample(COMPARISON_DRAWS, generator(self.seed, q.device, "judge"))

    def _finish(self, best: Fit, outcome: Outcome | None = None, status: str | None = None) -> Fit:
        """`best`, with the counts, records and time of all stages, its notes, and how the whole run ended.

        Outcome and status are those of `best` unless others are given.
        """
        done = join_stages(best, self.stages or [best], self.start)
        objections = self.start.objections
        if self.start.searched and not objections:
            objections = self._ran_off(best.family)
        whole = replace(
            done,
            outcome=best.outcome if outcome is None else outcome,
            status=f"auto: {type(best.method).__name__} {best.status if status is None else status}",
            counts=done.counts + Counts(density_evaluations=self.comparison_draws),
            notes=(*self.family_notes, *self.start.notes, *self.notes),
            _objections=objections,
        )
        whole.take_diagnosis(best)
        return whole

    def _ran_off(self, q: Family) -> tuple[str, ...]:
        """The objection to a q that moved away without bound, or spread to where the density is flat."""
        draws = self._draws(q)
        reach = draws.abs().amax(0)
        if float(reach.max()) < FAR_AWAY:
            return ()
        where = f"{float(reach.max()):.1e} along {coordinate_names(self.target)[int(reach.argmax())]}"
        if not self.start.found_mode:
            why = "the density has no mode and probably cannot be normalised"
            return (f"q ran off to {where}: {why}; {REMEDY}",)
        self.comparison_draws += COMPARISON_DRAWS
        with torch.no_grad():
            values = self.target.log_prob(draws)
        if bool((values != values[0]).any()):
            return ()
        return (
            f"q spread to {where}, where the log density is the same everywhere ({float(values[0]):.3g}), so "
            "it cannot be normalised; is the function a density instead of its logarithm?",
        )
