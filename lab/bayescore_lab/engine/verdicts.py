"""Verdicts on claims: three words, computed from confidence intervals.

A rule says in words what it will do before it sees data (`bayescore_lab.engine.rules` makes them). Its
verdict is one of three words; where the records lack an arm that the rule compares, there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from bayescore_lab.engine.record import Records
from bayescore_lab.engine.statistics import Interval

__all__ = [
    "NOT_REPRODUCED",
    "PARTLY",
    "REPRODUCED",
    "Judgement",
    "Rule",
    "Verdict",
    "all_of",
    "judge_interval",
]

Verdict = Literal["reproduced", "partly", "not reproduced here"]

REPRODUCED: Verdict = "reproduced"
PARTLY: Verdict = "partly"
NOT_REPRODUCED: Verdict = "not reproduced here"


@dataclass(frozen=True)
class Judgement:
    """A verdict (None: the data for one are missing), the sentence with its numbers, and the numbers."""

    verdict: Verdict | None
    sentence: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """How a claim is judged: in words, and as a function of the records."""

    words: str
    judge: Callable[[Records], Judgement]


def judge_interval(interval: Interval, low: float, high: float) -> Verdict:
    """Reproduced where the interval lies inside [low, high], not where it lies outside, else partly."""
    if low <= interval.low and interval.high <= high:
        return REPRODUCED
    if interval.high < low or interval.low > high:
        return NOT_REPRODUCED
    return PARTLY


def all_of(*rules: Rule) -> Rule:
    """Several rules for one claim: where they agree their verdict, else partly."""
    words = (
        "Reproduced if each of these is, not reproduced here if each is not, partly otherwise. "
        + " ".join(f"({i}) {rule.words}" for i, rule in enumerate(rules, 1))
    )

    def judge(records: Records) -> Judgement:
        parts = [rule.judge(records) for rule in rules]
        verdicts = {part.verdict for part in parts}
        sentence = " ".join(
            f"({i}) {part.verdict or 'no verdict'}: {part.sentence}" for i, part in enumerate(parts, 1)
        )
        numbers = {str(i): part.numbers for i, part in enumerate(parts, 1)}
        if None in verdicts:
            return Judgement(None, sentence, numbers)
        return Judgement(parts[0].verdict if len(verdicts) == 1 else PARTLY, sentence, numbers)

    return Rule(words, judge)
