"""The loop of `bs.fit`: it steps any method, for any number of fits.

F fits run as one batch with a leading dimension F, each with its own random stream, so that no fit depends on
which others share its batch. A step is pure: a fit that has ended, or must skip a step because a score was
not finite, keeps its old state. (Networks are trained by optimizers, which step in place: nn/loop.py.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.inference.history import History
from bayescore.inference.options import Metric, RunOptions
from bayescore.inference.result import Fit, Outcome, Pending
from bayescore.inference.stopping import final_status
from bayescore.initial.checks import check_target
from bayescore.methods import Method, State
from bayescore.metrics.divergence import ELBO
from bayescore.progress import Progress
from bayescore.rng import Streams
from bayescore.targets.base import Target, as_batch
from bayescore.targets.counting import CountingOracle, Counts

__all__ = ["Loop"]

MAX_SKIPS = 50  # steps in a row without a finite score after which a run ends


@dataclass(frozen=True)
class _End:
    """How and where one fit of the batch ended; the others may go on."""

    outcome: Outcome
    status: str
    state: State  # of this fit, with F = 1
    streams: Tensor  # (1, bytes)
    pending: Pending


class Loop:
    """The loop of F fits that run as one batch.

    Arguments:
        target: the targets as one batch, or one target for all fits.
        members: the F targets one by one.
        method: the method that is stepped.
        state: the state from which it continues.
        seeds: of the F random streams.
        options: of the run.
    """

    def __init__(
        self,
        target: Target,
        members: Sequence[Target],
        method: Method,
        state: State,
        seeds: Sequence[int],
        options: RunOptions,
    ) -> None:
        self.target, self.members, self.method, self.state = target, members, method, state
        self.seeds, self.options, F = list(seeds), options, len(seeds)
        self.record_steps = options.record_steps(state.horizon)
        self.streams = Streams(self.seeds, dtype=state.family.dtype, device=state.family.device)
        self.oracle = CountingOracle(target, self.streams)
        default: dict[str, Metric] = {"elbo": ELBO()} if target.has_density else {}
        self.metrics = default if options.metrics is None else dict(options.metrics)
        self.histories = [History() for _ in range(F)]
        self.counts = [Counts() for _ in range(F)]
        self.pending = [Pending() for _ in range(F)]
        self.ends: list[_End | None] = [None] * F
        self.earlier_seconds = self.seconds = 0.0

    @classmethod
    def from_families(
        cls,
        target: Target,
        members: Sequence[Target],
        family: Family,
        method: Method,
        steps: int,
        seeds: Sequence[int],
        options: RunOptions,
    ) -> Loop:
        """The loop that begins at a batch of families (F,)."""
        state = method.init(family.in_form(method.form), steps)
        return cls(target, members, method, state, seeds, options)

    @classmethod
    def from_fit(cls, fit: Fit, options: RunOptions) -> Loop:
        """The loop that continues where a fit ended."""
        assert fit.target is not None
        loop = cls(as_batch([fit.target]), [fit.target], fit.method, fit.state, [fit.seed], options)
        loop.streams.restore(fit.streams)
        loop.histories, loop.counts, loop.earlier_seconds = [fit.history.copy()], [fit.counts], fit.seconds
        loop.oracle.score_calls = fit.counts.score_calls
        loop.oracle.hessian_products = fit.counts.hessian_products
        loop.pending = [fit.pending]
        return loop

    def run(self) -> list[Fit]:
        """Check the target, take all steps, and return the fits; Ctrl-C returns the fits so far."""
        if not len(self.histories[0]):  # otherwise it continues a fit
            if self.options.check:
                calls = check_target(self.target, self.state.family)
                self.counts = [Counts(check_calls=calls) for _ in self.seeds]
            self._record()
        began = time.perf_counter() - self.earlier_seconds
        before = self._snapshot()
        with Progress(self.state.horizon, self.state.step, self.options.progress) as bar, torch.no_grad():
            try:
                while self.state.step < self.state.horizon and not all(self.ends):
                    before = self._snapshot()
                    self._step()
                    if bar.shown:
                        bar.update(self.state.step, self._losses()[0], self.oracle.score_calls)
                    if self.state.step in self.record_steps:
                        self.seconds = time.perf_counter() - began
                        self._record()
                        self._end_early()
            except KeyboardInterrupt:
                self._roll_back(before)
                self._end(range(len(self.seeds)), Outcome.INTERRUPTED, self._interrupted())
        self.seconds = time.perf_counter() - began
        return [self._fit(i) for i in range(len(self.seeds))]

    def not_run(self, outcome: Outcome = Outcome.INTERRUPTED, status: str | None = None) -> list[Fit]:
        """The fits without any step, with one record."""
        self._record()
        self._end(range(len(self.seeds)), outcome, self._interrupted() if status is None else status)
        return [self._fit(i) for i in range(len(self.seeds))]

    def _interrupted(self) -> str:
        return f"interrupted at step {self.state.step} of {self.state.horizon}; bs.resume(fit) continues it"

    def _snapshot(self) -> tuple[Any, ...]:
        """Everything that an iteration changes, as it was before."""
        counted = self.oracle.score_calls, self.oracle.hessian_products
        rows = [len(history) for history in self.histories]
        return (
            self.state,
            self.streams.rows(),
            counted,
            self.pending,
            list(self.counts),
            list(self.ends),
            rows,
        )

    def _roll_back(self, snapshot: tuple[Any, ...]) -> None:
        """Undo an iteration that was interrupted, so that resuming repeats it."""
        self.state, streams, counted, self.pending, self.counts, self.ends, rows = snapshot
        self.streams.restore(streams)
        self.oracle.score_calls, self.oracle.hessian_products = counted
        for history, length in zip(self.histories, rows, strict=True):
            history.truncate(length)

    def _step(self) -> None:
        """One step of the method; the fits for which a score was not finite skip it."""
        before, self.oracle.failed = self.state, None
        self.state, info = self.method.step(before, self.oracle, self.streams)
        if self.oracle.failed is None:
            self.pending = [
                Pending(p.loss_sum + loss, p.losses + 1)
                for p, loss in zip(self.pending, info.loss.tolist(), strict=True)
            ]
            return
        failed = self.oracle.failed.tolist()
        self.state = self.state.except_where(self.oracle.failed, before)
        self.pending = [
            p._replace(skipped=p.skipped + 1) if skip else Pending(p.loss_sum + loss, p.losses + 1)
            for p, loss, skip in zip(self.pending, info.loss.tolist(), failed, strict=True)
        ]
        for i, skip in enumerate(failed):
            if skip and self.ends[i] is None:
                self.counts[i] = replace(self.counts[i], skipped_steps=self.counts[i].skipped_steps + 1)
            if self.pending[i].skipped >= MAX_SKIPS:
                since = self.state.step - MAX_SKIPS
                text = f"diverged at step {since}: no finite score in the {MAX_SKIPS} steps since"
                self._end([i], Outcome.DIVERGED, text)

    def _record(self) -> None:
        """Add a row to the history of every fit that has not ended."""
        values = {name: self._evaluate(name) for name in self.metrics}
        evaluations = sum(m.draws for m in self.metrics.values() if isinstance(m, ELBO))
        losses = self._losses()
        for i, history in enumerate(self.histories):
            if self.ends[i] is None:
                self._count(i, evaluations)
                history.add(
                    step=self.state.step,
                    score_calls=self.oracle.score_calls,
                    seconds=self.seconds,
                    loss=losses[i],
                    **{name: float(value[i]) for name, value in values.items()},
                )
        self.pending = [Pending(skipped=p.skipped) for p in self.pending]

    def _evaluate(self, name: str) -> Tensor:
        value = self.metrics[name](self.state.family, self.target)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"metric {name!r} must return a tensor, one number per fit; got {type(value).__name__}"
            )
        if value.shape != (len(self.seeds),):
            want = (len(self.seeds),)
            raise ValueError(f"metric {name!r} must return the shape {want}; got {tuple(value.shape)}")
        return value.detach().double().cpu()

    def _losses(self) -> list[float]:
        """The mean loss of each fit since the last record, NaN where there is none."""
        return [p.loss_sum / p.losses if p.losses else math.nan for p in self.pending]

    def _end_early(self) -> None:
        """End the fits that diverged, reached a plateau, or were stopped by a callback."""
        step, stop = self.state.step, self.options.stop
        finite = self.state.family.flat().isfinite().all(-1).cpu()
        for i, history in enumerate(self.histories):
            if self.ends[i] is not None:
                continue
            if not finite[i]:
                text = f"diverged at step {step}: the parameters are no longer finite"
                self._end([i], Outcome.DIVERGED, text)
            elif stop is not None and (reached := stop.reached(history)):
                self._end([i], Outcome.CONVERGED, f"converged at step {step}: {reached}")
            elif self._asked_to_stop(i):
                self._end([i], Outcome.STOPPED, f"stopped by a callback at step {step}")

    def _asked_to_stop(self, i: int) -> bool:
        """Whether a callback asks for the end of fit i; all callbacks are called."""
        answers = [callback(self._fit(i)) for callback in self.options.callbacks]
        return any(answers)

    def _end(self, which: Iterable[int], outcome: Outcome, status: str) -> None:
        for i in which:
            if self.ends[i] is None:
                self.ends[i] = self._end_here(i, outcome, status)
                self._count(i)

    def _end_here(self, i: int, outcome: Outcome, status: str) -> _End:
        streams = self.streams.state()[i : i + 1].clone()
        return _End(outcome, status, self.state.member(i), streams, self.pending[i])

    def _count(self, i: int, density_evaluations: int = 0) -> None:
        """Copy the oracle's counts, and add density evaluations that it does not count."""
        self.counts[i] = replace(
            self.counts[i],
            score_calls=self.oracle.score_calls,
            hessian_products=self.oracle.hessian_products,
            density_evaluations=self.counts[i].density_evaluations + density_evaluations,
        )

    def _fit(self, i: int) -> Fit:
        """Fit i as it ended, or its current state if it has not."""
        end = self.ends[i]
        if end is None:
            step, horizon = self.state.step, self.state.horizon
            if step < horizon:
                end = self._end_here(i, Outcome.RUNNING, f"running, at step {step} of {horizon}")
            else:
                end = self._end_here(i, *final_status(self.histories[i], horizon))
        return Fit(
            family=end.state.family[0],
            method=self.method,
            target=self.members[i],
            outcome=end.outcome,
            status=end.status,
            history=self.histories[i].copy(),
            counts=self.counts[i],
            seconds=self.seconds,
            seed=self.seeds[i],
            state=end.state,
            streams=end.streams,
            pending=end.pending,
        )
