"""The loop: the only one, for every method and any number of independent fits.

F fits run as one batch with a leading dimension F, each with its own random stream, so that no fit depends on
which others share its batch. A step is pure, so a fit that must skip it (a score was not finite) or has ended
simply keeps its old state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.history import History
from bayescore.methods import Method, State
from bayescore.metrics.divergence import ELBO
from bayescore.oracle import CountingOracle
from bayescore.progress import Progress
from bayescore.result import Counts, Fit, Outcome
from bayescore.rng import Streams
from bayescore.start import check_start
from bayescore.status import Plateau, final_status
from bayescore.targets.base import Target, as_batch

__all__ = ["Callback", "Loop", "Metric", "Options"]

Metric = Callable[[Family, Target], Tensor]
Callback = Callable[[Fit], bool | None]
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
        self.target, self.method, self.state, self.options, self.members = (
            target,
            method,
            state,
            options,
            members,
        )
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
        options: Options,
        members: list[Target] | None = None,
    ) -> Loop:
        loop = cls(
            target,
            method,
            method.init(family.in_form(method.form), steps),
            seeds,
            options,
            members or [target],
        )
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
        loop.oracle.score_calls, loop.oracle.hessian_products = (
            fit.counts.score_calls,
            fit.counts.hessian_products,
        )
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
                    if state.step in self.options.due:
                        self.seconds = self.earlier + time.perf_counter() - began
                        self._record(state)
                        self._judge(state)
                    self.state = state
            except KeyboardInterrupt:
                text = (
                    f"interrupted at step {self.state.step} of {state.horizon}; bs.resume(fit) continues it"
                )
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
            text = (
                f"diverged at step {new.step - MOST_SKIPS}: no finite score in the {MOST_SKIPS} steps since"
            )
            self._end(kept, [i], Outcome.DIVERGED, text)
        return kept

    def _record(self, state: State) -> None:
        values = {
            name: metric(state.family, self.target).double().cpu() for name, metric in self.metrics.items()
        }
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
            elif self._asked_to_stop(i, state):
                self._end(state, [i], Outcome.STOPPED, f"stopped by a callback at step {state.step}")

    def _asked_to_stop(self, i: int, state: State) -> bool:
        """Whether a callback says so; all of them are called."""
        answers = [callback(self._result(i, state)) for callback in self.options.callbacks]
        return any(answers)

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
