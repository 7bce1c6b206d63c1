"""The loop: the only one, for every method and any number of independent fits.

F fits run as one batch with a leading dimension F, each with its own random stream, so that no fit depends on
which others share its batch. A step is pure, so a fit that must skip it (a score was not finite) or has ended
simply keeps its old state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.inference.history import History
from bayescore.inference.outcome import Outcome
from bayescore.inference.result import Fit
from bayescore.inference.stopping import Plateau, final_status
from bayescore.initial.checks import check_start
from bayescore.methods import Method, State
from bayescore.metrics.divergence import ELBO
from bayescore.progress import Progress
from bayescore.rng import Streams
from bayescore.targets.base import Target, as_batch
from bayescore.targets.counting import CountingOracle, Counts

__all__ = ["Callback", "Loop", "Metric", "Options"]

Metric = Callable[[Family, Target], Tensor]
Callback = Callable[[Fit], bool | None]
Pending = tuple[float, int, int]
MOST_SKIPS = 50  # steps in a row without a finite score that end a run


@dataclass(frozen=True)
class Options:
    metrics: Mapping[str, Metric] | None
    due: frozenset[int]  # steps to record
    stop: Plateau | None
    callbacks: tuple[Callback, ...]
    progress: bool | None
    check: bool


class Loop:
    """A batch of F runs on its way."""

    def __init__(
        self,
        target: Target,
        method: Method,
        state: State,
        seeds: Sequence[int],
        options: Options,
        members: list[Target],
    ) -> None:
        self.target, self.method, self.state = target, method, state
        self.options, self.members = options, members
        self.seeds, F = list(seeds), len(seeds)
        self.streams = Streams(self.seeds, dtype=state.family.dtype, device=state.family.device)
        self.oracle = CountingOracle(target, self.streams)
        for name in options.metrics or ():
            if name in ("step", "score_calls", "seconds", "loss"):
                raise ValueError(f"a metric cannot be called {name!r}: the history has a column of that name")
        default: dict[str, Metric] = {"elbo": ELBO()} if target.has_density else {}
        self.metrics = default if options.metrics is None else dict(options.metrics)
        self.histories = [History() for _ in range(F)]
        self.counts = [Counts() for _ in range(F)]
        # sum and number of the losses since the last record, and steps skipped in a row
        self.pending: list[Pending] = [(0.0, 0, 0)] * F
        self.ended: list[tuple[Outcome, str] | None] = [None] * F
        self.final: list[State | None] = [None] * F
        self.frozen: list[tuple[Tensor, Pending] | None] = [None] * F  # streams and pending
        self.earlier = self.seconds = 0.0

    @classmethod
    def start(
        cls,
        target: Target,
        family: Family,
        method: Method,
        steps: int,
        seeds: Sequence[int],
        options: Options,
        members: list[Target] | None = None,
    ) -> Loop:
        state = method.init(family.in_form(method.form), steps)
        loop = cls(target, method, state, seeds, options, members or [target])
        calls = check_start(target, family) if options.check else 0
        loop.counts = [Counts(check_calls=calls)] * len(seeds)
        loop._record(loop.state)
        return loop

    @classmethod
    def resumed(cls, fit: Fit, options: Options) -> Loop:
        assert fit.target is not None
        loop = cls(as_batch([fit.target]), fit.method, fit.state, [fit.seed], options, [fit.target])
        loop.streams.restore(fit.streams)
        loop.histories, loop.counts, loop.earlier = [fit.history.copy()], [fit.counts], fit.seconds
        loop.oracle.score_calls = fit.counts.score_calls
        loop.oracle.hessian_products = fit.counts.hessian_products
        loop.pending = [fit.pending]
        return loop

    def run(self) -> list[Fit]:
        began = time.perf_counter() - self.earlier
        before = self._mark()
        with Progress(self.state.horizon, self.state.step, self.options.progress) as bar, torch.no_grad():
            try:
                while self.state.step < self.state.horizon and not all(self.ended):
                    before = self._mark()
                    self.state = self._step(self.state)
                    if bar.shown:
                        bar.update(self.state.step, self._losses()[0], self.oracle.score_calls)
                    if self.state.step in self.options.due:
                        self.seconds = time.perf_counter() - began
                        self._record(self.state)
                        self._judge(self.state)
            except KeyboardInterrupt:
                self._roll_back(before)
                self.seconds = time.perf_counter() - began
                return self.stop()
        self.seconds = time.perf_counter() - began
        return [self._result(i) for i in range(len(self.seeds))]

    def stop(self) -> list[Fit]:
        """The fits as they stand, interrupted."""
        text = f"interrupted at step {self.state.step} of {self.state.horizon}; bs.resume(fit) continues it"
        self._end(self.state, range(len(self.seeds)), Outcome.INTERRUPTED, text)
        return [self._result(i) for i in range(len(self.seeds))]

    def _mark(self) -> tuple[Any, ...]:
        """Where the run stands, to be able to forget the iteration that comes."""
        counted = self.oracle.score_calls, self.oracle.hessian_products
        lists = list(self.counts), list(self.ended), list(self.final)
        rows = [len(history) for history in self.histories]
        return self.state, self.streams.rows(), counted, self.pending, lists, rows

    def _roll_back(self, mark: tuple[Any, ...]) -> None:
        """Forget an iteration that was interrupted, so that resuming repeats it."""
        self.state, streams, counted, self.pending, lists, rows = mark
        self.counts, self.ended, self.final = lists
        self.streams.restore(streams)
        self.oracle.score_calls, self.oracle.hessian_products = counted
        for history, length in zip(self.histories, rows, strict=True):
            history.cut(length)

    def _step(self, state: State) -> State:
        self.oracle.bad = None
        new, info = self.method.step(state, self.oracle, self.streams)
        pairs = zip(self.pending, info.loss.tolist(), strict=True)
        if self.oracle.bad is None:
            self.pending = [(total + loss, n + 1, 0) for (total, n, _), loss in pairs]
            return new
        bad = self.oracle.bad.tolist()
        self.pending = [
            (total, n, skips + 1) if skip else (total + loss, n + 1, 0)
            for skip, ((total, n, skips), loss) in zip(bad, pairs, strict=True)
        ]
        kept = new.except_where(self.oracle.bad, state)
        for i, skip in enumerate(bad):
            if skip and self.ended[i] is None:
                self.counts[i] = replace(self.counts[i], skipped_steps=self.counts[i].skipped_steps + 1)
            if self.pending[i][2] >= MOST_SKIPS:
                began = new.step - MOST_SKIPS
                text = f"diverged at step {began}: no finite score in the {MOST_SKIPS} steps since"
                self._end(kept, [i], Outcome.DIVERGED, text)
        return kept

    def _record(self, state: State) -> None:
        values = {name: self._evaluate(name, state) for name in self.metrics}
        spent = sum(m.draws for m in self.metrics.values() if isinstance(m, ELBO))
        losses = self._losses()
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
                    loss=losses[i],
                    **{name: float(value[i]) for name, value in values.items()},
                )
        self.pending = [(0.0, 0, skips) for _, _, skips in self.pending]

    def _evaluate(self, name: str, state: State) -> Tensor:
        value = self.metrics[name](state.family, self.target)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"metric {name!r} must return a tensor, one number per fit; got {type(value).__name__}"
            )
        if value.shape != (len(self.seeds),):
            want = (len(self.seeds),)
            raise ValueError(f"metric {name!r} must return the shape {want}; got {tuple(value.shape)}")
        return value.detach().double().cpu()

    def _losses(self) -> list[float]:
        """The mean loss since the last record, NaN where there is none."""
        return [total / n if n else math.nan for total, n, _ in self.pending]

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
            elif self._asked_to_stop(i, state):
                self._end(state, [i], Outcome.STOPPED, f"stopped by a callback at step {state.step}")

    def _asked_to_stop(self, i: int, state: State) -> bool:
        """Whether a callback says so; all of them are called."""
        answers = [callback(self._result(i, state)) for callback in self.options.callbacks]
        return any(answers)

    def _end(self, state: State, which: Sequence[int], outcome: Outcome, text: str) -> None:
        for i in which:
            if self.ended[i] is None:
                self.ended[i], self.final[i] = (outcome, text), state.member(i)
                self.frozen[i] = self._pace(i)
                self.counts[i] = replace(
                    self.counts[i],
                    score_calls=self.oracle.score_calls,
                    hessian_products=self.oracle.hessian_products,
                )

    def _pace(self, i: int) -> tuple[Tensor, Pending]:
        """Where the random stream and the running loss of fit i stand."""
        return self.streams.state()[i : i + 1].clone(), self.pending[i]

    def _result(self, i: int, state: State | None = None) -> Fit:
        final = self.final[i]
        member = final if final is not None else (state if state is not None else self.state).member(i)
        ended = self.ended[i] or final_status(self.histories[i], member.step, member.horizon)
        streams, pending = self.frozen[i] or self._pace(i)
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
            streams=streams,
            pending=pending,
        )
