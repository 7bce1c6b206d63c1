"""The loop: fit a family to a target by a method.

One loop serves every method and any number of independent fits: F fits run as one batch with a leading dimension
F, each with its own random stream, so that no fit depends on which others share its batch. A step is pure, so a
fit that must skip it (a score was not finite) or has ended simply keeps its old state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.history import History
from bayescore.methods import Method, ProximalScore, State
from bayescore.metrics.divergence import ELBO
from bayescore.oracle import CountingOracle
from bayescore.progress import Progress
from bayescore.result import Counts, Fit, Outcome
from bayescore.rng import Streams
from bayescore.start import check_match, check_start
from bayescore.status import Plateau, final_status
from bayescore.targets.base import Target

__all__ = ["Plateau", "fit", "fit_many", "resume"]

T = TypeVar("T")
Metric = Callable[[Family, Target], Tensor]
Callback = Callable[[Fit], bool | None]
MOST_SKIPS = 50  # steps in a row without a finite score that end a run


def fit(
    target: Target,
    family: Family,
    method: Method | None = None,
    *,
    steps: int = 1000,
    seed: int = 0,
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    check: bool = True,
) -> Fit:
    """Fit `family` to `target`.

    Arguments:
        target: what to approximate.
        family: where to start, q0; it is not changed.
        method: how; ProximalScore() by default.
        steps: the number of iterations T, which schedules refer to.
        seed: of all randomness of this run.
        metrics: what to record, by name, each (family, target) to a number per fit; by default the ELBO over 64
            fixed draws where the target has a density. `loss`, score calls and seconds are always recorded.
        record_every: steps between records; about 50 records by default.
        stop: end early when a recorded quantity no longer improves.
        callbacks: called with the fit so far at every record; a true answer ends the run.
        progress: show a progress bar; by default if standard error is a terminal.
        check: check the target at the start (its calls are in `fit.counts.check_calls`).

    Returns:
        the fit. Ctrl-C returns the fit so far, and `bs.resume` continues it.

    >>> import bayescore as bs
    >>> target = bs.targets.Gaussian.random(dim=3, seed=0)
    >>> fit = bs.fit(target, bs.families.FullGaussian.init(3), bs.methods.BaM(), steps=50)
    >>> fit.khat.value < 0.5
    True
    """
    return fit_many(
        target,
        family,
        method,
        steps=steps,
        seeds=[seed],
        metrics=metrics,
        record_every=record_every,
        stop=stop,
        callbacks=callbacks,
        progress=progress,
        check=check,
    )[0]


def fit_many(
    target: Target | Sequence[Target],
    family: Family | Sequence[Family],
    method: Method | None = None,
    *,
    steps: int = 1000,
    seeds: Sequence[int],
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    check: bool = True,
) -> list[Fit]:
    """Run one fit per seed, as one batch where target and family can be batched, else one after the other.

    `target` and `family` are one for all, or one per seed. Everything else is as in `fit`. A fit's result is the
    same whichever others run beside it.
    """
    method = ProximalScore() if method is None else method
    _check_kinds(target, family, method)
    check_count("steps", steps)
    every = max(1, steps // 50) if record_every is None else record_every
    check_count("record_every", every)
    check_count("the number of seeds", len(seeds))
    targets = _spread("targets", target, len(seeds))
    families = _spread("families", family, len(seeds))
    for t, q in zip(targets, families, strict=True):
        check_match(t, q)
        method.check(q, t)
    options = _Options(metrics, every, stop, tuple(callbacks), progress, check)
    try:
        batch_family = type(families[0]).stack(families)
        batch_target = _stack(targets)
    except (TypeError, ValueError):
        if len(seeds) == 1:
            raise
        singles = zip(targets, families, seeds, strict=True)
        return [_Loop.start(t, type(q).stack([q]), method, steps, [s], options).run()[0] for t, q, s in singles]
    method.check(batch_family, batch_target)
    return _Loop.start(batch_target, batch_family, method, steps, seeds, options, targets).run()


def resume(
    fit: Fit,
    *,
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Fit:
    """Continue an interrupted, stopped or loaded fit to its planned number of steps.

    With the same options the result is bitwise that of the run that was never interrupted.
    """
    if fit.target is None:
        raise ValueError("a fit is resumed with its target; load it with Fit.load(path, target)")
    every = max(1, fit.state.horizon // 50) if record_every is None else record_every
    check_count("record_every", every)
    return _Loop.resumed(fit, _Options(metrics, every, stop, tuple(callbacks), progress, False)).run()[0]


def _check_kinds(target: object, family: object, method: object) -> None:
    for name, value, kind in (("target", target, Target), ("family", family, Family), ("method", method, Method)):
        members = value if isinstance(value, Sequence) else [value]
        for member in members:
            if isinstance(member, type):
                raise TypeError(f"{name} must be an object, not the class {member.__name__}; call it to make one")
            if not isinstance(member, kind):
                raise TypeError(f"{name} must be a bayescore {kind.__name__}; got {type(member).__name__}")


def _spread(name: str, value: T | Sequence[T], n: int) -> list[T]:
    """One value per fit."""
    if not isinstance(value, Sequence):
        batch = getattr(value, "batch_shape", ())
        if batch:
            raise ValueError(f"{name} must be single; got a batch of {batch[0]} (give a list instead)")
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{n} seeds need {n} {name}; got {len(value)}")
    return list(value)


def _stack(targets: list[Target]) -> Target:
    if all(t is targets[0] for t in targets) and type(targets[0]).stack.__func__ is Target.stack.__func__:  # type: ignore[attr-defined]
        return targets[0]
    return type(targets[0]).stack(targets)


@dataclass(frozen=True)
class _Options:
    metrics: Mapping[str, Metric] | None
    every: int
    stop: Plateau | None
    callbacks: tuple[Callback, ...]
    progress: bool | None
    check: bool


class _Loop:
    """A batch of F runs on its way."""

    def __init__(
        self, target: Target, method: Method, state: State, seeds: Sequence[int], options: _Options, members: list[Target]
    ) -> None:
        self.target, self.method, self.state, self.options, self.members = target, method, state, options, members
        self.seeds, F = list(seeds), len(seeds)
        self.streams = Streams(self.seeds, dtype=state.family.dtype, device=state.family.device)
        self.oracle = CountingOracle(target, self.streams)
        default: dict[str, Metric] = {"elbo": ELBO()} if target.has_density else {}
        self.metrics = default if options.metrics is None else dict(options.metrics)
        self.histories = [History() for _ in range(F)]
        self.counts = [Counts() for _ in range(F)]
        self.skips = torch.zeros(F, dtype=torch.long)  # in a row
        self.pending = torch.zeros(F, dtype=torch.float64), 0  # losses since the last record
        self.ended: list[tuple[Outcome, str] | None] = [None] * F
        self.final: list[State | None] = [None] * F
        self.earlier = 0.0

    @classmethod
    def start(
        cls,
        target: Target,
        family: Family,
        method: Method,
        steps: int,
        seeds: Sequence[int],
        options: _Options,
        members: list[Target] | None = None,
    ) -> _Loop:
        loop = cls(target, method, method.init(family.in_form(method.form), steps), seeds, options, members or [target])
        calls = check_start(target, family) if options.check else 0
        loop.counts = [Counts(check_calls=calls)] * len(seeds)
        loop._record(loop.state)
        return loop

    @classmethod
    def resumed(cls, fit: Fit, options: _Options) -> _Loop:
        assert fit.target is not None
        loop = cls(_stack([fit.target]), fit.method, fit.state, [fit.seed], options, [fit.target])
        loop.streams.restore(fit.streams)
        loop.histories, loop.counts, loop.earlier = [fit.history.copy()], [fit.counts], fit.seconds
        loop.oracle.score_calls, loop.oracle.hessian_products = fit.counts.score_calls, fit.counts.hessian_products
        loop.pending = torch.tensor([fit.pending[0]], dtype=torch.float64), fit.pending[1]
        return loop

    def run(self) -> list[Fit]:
        began = time.perf_counter()
        state = self.state
        with Progress(state.horizon, state.step, self.options.progress) as bar, torch.no_grad():
            try:
                while state.step < state.horizon and not all(self.ended):
                    state = self._step(state)
                    total, n = self.pending
                    if bar.shown and n:
                        bar.update(state.step, float(total[0]) / n, self.oracle.score_calls)
                    if state.step % self.options.every == 0 or state.step == state.horizon:
                        self.seconds = self.earlier + time.perf_counter() - began
                        self._record(state)
                        self._judge(state)
                    self.state = state
            except KeyboardInterrupt:
                text = f"interrupted at step {self.state.step} of {state.horizon}; bs.resume(fit) continues it"
                self._end(self.state, range(len(self.seeds)), Outcome.INTERRUPTED, text)
        self.seconds = self.earlier + time.perf_counter() - began
        return [self._result(i) for i in range(len(self.seeds))]

    seconds = 0.0

    def _step(self, state: State) -> State:
        self.oracle.bad = None
        new, info = self.method.step(state, self.oracle, self.streams)
        total, n = self.pending
        bad = self.oracle.bad
        if bad is None:
            self.skips.zero_()
            self.pending = total + info.loss.double().cpu(), n + 1
            return new
        bad = bad.cpu()
        self.pending = total + torch.where(bad, total / max(n, 1), info.loss.double().cpu()), n + 1
        self.skips = torch.where(bad, self.skips + 1, 0)
        for i in bad.nonzero().flatten().tolist():
            if self.ended[i] is None:
                self.counts[i] = replace(self.counts[i], skipped_steps=self.counts[i].skipped_steps + 1)
        kept = _choose(bad.to(state.family.device), state, new)
        for i in (self.skips >= MOST_SKIPS).nonzero().flatten().tolist():
            text = f"diverged at step {new.step - MOST_SKIPS}: no finite score in the {MOST_SKIPS} steps since"
            self._end(kept, [i], Outcome.DIVERGED, text)
        return kept

    def _record(self, state: State) -> None:
        values = {name: metric(state.family, self.target).double().cpu() for name, metric in self.metrics.items()}
        spent = sum(m.draws for m in self.metrics.values() if isinstance(m, ELBO))
        total, n = self.pending
        for i, history in enumerate(self.histories):
            if self.ended[i] is None:
                self.counts[i] = replace(
                    self.counts[i],
                    score_calls=self.oracle.score_calls,
                    hessian_products=self.oracle.hessian_products,
                    density_evaluations=self.counts[i].density_evaluations + spent,
                )
                history.add(
                    step=state.step,
                    score_calls=self.oracle.score_calls,
                    seconds=self.seconds,
                    loss=float(total[i]) / n if n else float("nan"),
                    **{name: float(value[i]) for name, value in values.items()},
                )
        self.pending = torch.zeros_like(total), 0

    def _judge(self, state: State) -> None:
        """End the fits that diverged, reached a plateau, or were stopped by a callback."""
        finite = state.family.flat().isfinite().all(-1).cpu()
        for i, history in enumerate(self.histories):
            if self.ended[i] is not None:
                continue
            if not finite[i]:
                text = f"diverged at step {state.step}: the parameters are no longer finite"
                self._end(state, [i], Outcome.DIVERGED, text)
            elif self.options.stop is not None and (reached := self.options.stop.reached(history)):
                self._end(state, [i], Outcome.CONVERGED, f"converged at step {state.step}: {reached}")
            elif any([callback(self._result(i, state)) for callback in self.options.callbacks]):
                self._end(state, [i], Outcome.STOPPED, f"stopped by a callback at step {state.step}")

    def _end(self, state: State, which: Sequence[int], outcome: Outcome, text: str) -> None:
        for i in which:
            if self.ended[i] is None:
                self.ended[i], self.final[i] = (outcome, text), _member(state, i)
                self.counts[i] = replace(
                    self.counts[i],
                    score_calls=self.oracle.score_calls,
                    hessian_products=self.oracle.hessian_products,
                )

    def _result(self, i: int, state: State | None = None) -> Fit:
        final = self.final[i]
        member = final if final is not None else _member(state if state is not None else self.state, i)
        ended = self.ended[i] or final_status(self.histories[i], member.step, member.horizon)
        total, n = self.pending
        return Fit(
            family=member.family[0],
            method=self.method,
            target=self.members[i] if len(self.members) > 1 else self.members[0],
            outcome=ended[0],
            status=ended[1],
            history=self.histories[i].copy(),
            counts=self.counts[i],
            seconds=self.seconds,
            seed=self.seeds[i],
            state=member,
            streams=self.streams.state()[i : i + 1],
            pending=(float(total[i]), n),
        )


def _member(state: State, i: int) -> State:
    """The state of fit i, as a batch of one."""
    return state.with_tensors({k: v[i : i + 1].clone() for k, v in state.tensors().items()})


def _choose(keep: Tensor, old: State, new: State) -> State:
    """The old state where `keep` (F,), else the new one."""
    before, after = old.tensors(), new.tensors()
    mask = {k: keep.reshape(-1, *[1] * (v.dim() - 1)) for k, v in after.items()}
    return new.with_tensors({k: torch.where(mask[k], before[k], v) for k, v in after.items()})
