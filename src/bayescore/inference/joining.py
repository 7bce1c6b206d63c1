"""A start and the stages that followed it as one fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bayescore.inference.history import History
from bayescore.inference.result import Fit
from bayescore.initial.finding import Start
from bayescore.targets.counting import Counts

__all__ = ["join"]


def join(best: Fit, stages: Sequence[Fit], start: Start | None) -> Fit:
    """`best`, one of some stages, with the counts, records and time of all of them and of the start."""
    parts = [] if start is None else [start.counts]
    parts += [stage.counts for stage in stages]
    total = {name: sum(getattr(part, name) for part in parts) for name in Counts.__dataclass_fields__}
    step, calls = 0, 0 if start is None else start.counts.score_calls
    seconds = 0.0 if start is None else start.seconds
    history = History()
    for stage in stages:
        for row in stage.history:
            row["step"] += step
            row["score_calls"] += calls
            row["seconds"] += seconds
            history.add(**row)
        step += stage.state.step
        calls += stage.counts.score_calls
        seconds += stage.seconds
    notes, doubts = ((), ()) if start is None else (start.notes, start.doubts)
    return replace(best, history=history, counts=Counts(**total), seconds=seconds, notes=notes, doubts=doubts)
