"""The options of a run, one object for `fit`, `fit_many` and `resume`: what to record, show and check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from torch import Tensor

from bayescore.checks import check_count, nearest, unknown_name
from bayescore.families.base import Family
from bayescore.inference.result import Fit
from bayescore.inference.stopping import Plateau
from bayescore.inference.storage import MAX_COUNT
from bayescore.targets.base import Target

__all__ = ["EFFORTS", "Callback", "Effort", "FitKeywords", "Metric", "ResumeKeywords", "RunOptions"]

Effort = Literal["quick", "normal", "thorough"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
Metric = Callable[[Family, Target], Tensor]
Callback = Callable[[Fit], bool | None]


class ResumeKeywords(TypedDict, total=False):
    """The keyword arguments of `resume`, documented in `fit`."""

    metrics: Mapping[str, Metric] | None
    record_every: int | Sequence[int] | None
    stop: Plateau | None
    callbacks: Sequence[Callback]
    progress: bool | None


class FitKeywords(ResumeKeywords, total=False):
    """The keyword arguments that `fit` and `fit_many` share."""

    steps: int | None
    check: bool
    effort: Effort


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, with defaults and checked; None means that the run chooses."""

    steps: int | None = None
    metrics: Mapping[str, Metric] | None = None
    record_every: int | Sequence[int] | None = None
    stop: Plateau | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool | None = None
    check: bool = True
    effort: Effort = "normal"

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_count("steps", self.steps, most=MAX_COUNT)
        if self.record_every is not None and not isinstance(self.record_every, Sequence):
            check_count("record_every", self.record_every)
        if self.effort not in EFFORTS:
            raise unknown_name("effort", str(self.effort), EFFORTS)
        for name in self.metrics or ():
            if name in ("step", "score_calls", "seconds", "loss"):
                raise ValueError(f"a metric cannot be called {name!r}: the history has a column of that name")

    @classmethod
    def from_keywords(cls, function: str, kind: type, keywords: Mapping[str, Any]) -> RunOptions:
        """The options from keyword arguments of `function`, whose names are in the TypedDict `kind`."""
        for name in keywords:
            if name not in kind.__annotations__:
                guess = nearest(name, kind.__annotations__)
                hint = f"; did you mean {guess!r}?" if guess else ""
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        return cls(**{**keywords, "callbacks": tuple(keywords.get("callbacks", ()))})

    def record_steps(self, steps: int) -> frozenset[int]:
        """The steps after which a run of `steps` steps is recorded, always including the last."""
        every = max(1, steps // 50) if self.record_every is None else self.record_every
        some = every if isinstance(every, Sequence) else range(every, steps + 1, every)
        return frozenset(some) | {steps}
