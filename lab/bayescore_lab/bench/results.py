"""What a benchmark measured: rows, ratios between them, the parts they belong to, and their record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bayescore_lab.engine.provenance import commit, machine, versions
from bayescore_lab.engine.records import encode
from bayescore_lab.engine.statistics import Interval, median_range

__all__ = ["Part", "Ratio", "Row", "record"]

PEER_PACKAGES = (
    "bayesian-torch",
    "blackjax",
    "ivon-opt",
    "jax",
    "jaxlib",
    "numpyro",
    "optax",
    "posteriors",
    "torchopt",
    "torchvision",
)


@dataclass(frozen=True)
class Row:
    """One arm on one problem, with all its repeats.

    `seconds` holds None for a repeat that did not reach its goal, and is empty where nothing ran; `note` then
    says why.
    """

    problem: str
    arm: str
    seconds: tuple[float | None, ...] = ()
    score_calls: tuple[int | None, ...] = ()
    gaps: tuple[float, ...] = ()  # nats of ELBO below the best Gaussian, at the end
    setting: str = ""
    compile_seconds: float | None = None
    note: str = ""
    trials: tuple[dict[str, Any], ...] = ()  # the runs that chose the setting
    phases: dict[str, tuple[float, ...]] = field(default_factory=dict)  # seconds by what they were spent on
    numbers: dict[str, float] = field(default_factory=dict)  # measured once: bytes, counts, further seconds

    @property
    def reached(self) -> bool:
        """Whether every repeat ended at its goal."""
        return bool(self.seconds) and None not in self.seconds

    @property
    def spread(self) -> Interval | None:
        """Median and range of the repeats; None unless all of them reached the goal."""
        values = [s for s in self.seconds if s is not None]
        return median_range(values) if self.reached else None


@dataclass(frozen=True)
class Ratio:
    """The seconds of one arm over those of another, round by round, and the bar set for it."""

    problem: str
    over: str
    under: str
    values: tuple[float, ...]
    bar: float | None = None
    at_least: bool = True  # whether the bar is a least or a largest value

    @classmethod
    def between(cls, over: Row, under: Row, bar: float | None = None, at_least: bool = True) -> Ratio:
        """The ratio of two rows of one problem that were measured in the same rounds."""
        pairs = zip(over.seconds, under.seconds, strict=True)
        values = tuple(a / b for a, b in pairs if a is not None and b is not None)
        return cls(over.problem, over.arm, under.arm, values, bar, at_least)

    @property
    def spread(self) -> Interval:
        return median_range(self.values)

    @property
    def holds(self) -> bool | None:
        """Whether the median keeps to the bar; None where there is no bar."""
        if self.bar is None:
            return None
        return self.spread.estimate >= self.bar if self.at_least else self.spread.estimate <= self.bar


@dataclass(frozen=True)
class Part:
    """One question, its rows and ratios.

    kind: in "pairs" every ratio belongs to two rows; in "goal" the rows of a problem run to the same goal; in
        a "profile" they are methods that do the same work; in a "curve" the problems are sizes.
    """

    name: str
    title: str
    kind: Literal["pairs", "goal", "profile", "curve"]
    config: dict[str, Any]
    rows: tuple[Row, ...]
    ratios: tuple[Ratio, ...] = ()
    notes: tuple[str, ...] = ()


def record(benchmark: str, config: dict[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
    """Everything that was measured, with the code, the libraries and the machine, in JSON types."""
    found = {
        "benchmark": benchmark,
        "config": config,
        "commit": commit(),
        "versions": versions(PEER_PACKAGES),
        "machine": machine(),
        "parts": [_part(part) for part in parts],
    }
    plain: dict[str, Any] = encode(found, nonfinite="null")
    return plain


def _part(part: Part) -> dict[str, Any]:
    ratios = [
        {**asdict(ratio), "median": ratio.spread.estimate, "holds": ratio.holds}
        for ratio in part.ratios
        if ratio.values
    ]
    return {**asdict(part), "ratios": ratios}
