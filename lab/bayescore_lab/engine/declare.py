"""What an experiment declares: a grid of runs, how to execute them, and what the paper says about them.

A run is named by (experiment, method, seed, config); everything that can change its result belongs in one of
them. Runs of one `group` are handed to `execute` together, so that many small fits can run as one; the
result of a run must not depend on the others in its group, but for the rounding of its last digits.

A module of `bayescore_lab/experiments/<area>/` that defines `EXPERIMENT = Experiment(...)`, or `EXPERIMENTS`
for several, is found automatically.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bayescore_lab.engine.records import Record, Records, by_method, encode

if TYPE_CHECKING:
    from bayescore_lab.engine.figures import Figure
    from bayescore_lab.engine.tables import Table
    from bayescore_lab.engine.verdicts import Criterion

__all__ = [
    "Claim",
    "Execute",
    "Experiment",
    "Imported",
    "PaperValue",
    "Profile",
    "Run",
    "RunOutcome",
    "find_experiments",
]


@dataclass(frozen=True)
class Profile:
    """One size of an experiment: its seeds, the minutes it takes on two cores, and its settings."""

    seeds: int
    minutes: float
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One cell of the grid: one method with one seed and one config.

    An empty `group` means that the run is executed alone. `cost` is the expected time in any unit; groups
    that cost most start first. Where a grid takes so long that it will be drawn before it is finished, `turn`
    says what comes first: no group starts before those of a lower turn, the least of its runs'.
    """

    method: str
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    cost: float = 1.0
    turn: int = 0


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run.

    `trace` holds lists of equal length, one of which is the experiment's axis (usually "score_calls").
    `ended` says how the run ended, if not normally ("diverged"): a numerical breakdown is a result, an
    exception is a failure. `seconds` is the run's share of the time of its group; by default the time since
    the last outcome.
    """

    run: Run
    metrics: Mapping[str, Any]
    score_calls: int
    trace: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ended: str = "ok"
    seconds: float | None = None


#: a function from the runs of one group to their outcomes
Execute = Callable[[Sequence[Run]], Iterable[RunOutcome]]


@dataclass(frozen=True)
class Imported:
    """A function by its location, "package.module:function", imported when it is first called.

    The code that executes runs needs torch; a declaration does not, and is listed without it.
    """

    place: str

    def __call__(self, runs: Sequence[Run]) -> Iterable[RunOutcome]:
        module, _, name = self.place.partition(":")
        outcomes: Iterable[RunOutcome] = getattr(importlib.import_module(module), name)(runs)
        return outcomes


@dataclass(frozen=True)
class PaperValue:
    """A number printed in the paper: for which arm, of which metric, and where."""

    arm: str
    metric: str
    value: float
    location: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and the rule that judges it from the records.

    `paper` is the number that the paper gives for it, as a reader would write it into a cell; most
    sentences have none. `ours` puts our number beside it where the rule's own words would not.
    """

    text: str
    location: str
    rule: Criterion
    paper: str = ""
    ours: Callable[[Records], str] | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper, and everything needed to reproduce it.

    `runs(settings, seeds, methods)` lists the grid of a profile; `execute(runs)` yields one `RunOutcome` per
    run and must be a function that can be imported, or `Imported`, because other processes call it. `tables`
    and `figures` only read records. `arm` names the line or row of a record, `axis` the entry of a trace
    that others are drawn against.
    """

    id: str
    title: str
    location: str
    shows: str
    methods: Sequence[str]
    profiles: Mapping[str, Profile]
    runs: Callable[[Mapping[str, Any], Sequence[int], Sequence[str]], Sequence[Run]]
    execute: Execute
    tables: Callable[[Records], Sequence[Table]]
    figures: Callable[[Records], Sequence[Figure]]
    paper: Sequence[PaperValue] = ()
    claims: Sequence[Claim] = ()
    arm: Callable[[Record], str] = by_method
    axis: str = "score_calls"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.id) or self.id == "list":
            raise ValueError(
                f"an experiment's id is made of small letters, digits and single hyphens, and is not 'list'; "
                f"got {self.id!r}"
            )
        missing = {"quick", "paper"} - set(self.profiles)
        if missing:
            raise ValueError(
                f"experiment {self.id!r} lacks the profile {' and '.join(sorted(missing))}; "
                f"it has {', '.join(self.profiles) or 'none'}"
            )
        for name, profile in self.profiles.items():
            if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
                raise ValueError(
                    f"a profile's name is made of small letters, digits and hyphens; got {name!r}"
                )
            if profile.seeds < 1:
                raise ValueError(
                    f"profile {name!r} of {self.id!r} needs at least one seed; got {profile.seeds}"
                )
            encode(profile.settings, f"the settings of profile {name!r} of {self.id!r}")
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise ValueError(
                f"experiment {self.id!r} needs methods with distinct names; got {list(self.methods)}"
            )


def find_experiments(package: str = "bayescore_lab.experiments") -> dict[str, Experiment]:
    """Every experiment declared below `package`, by id, sorted."""
    found: dict[str, Experiment] = {}
    home: dict[str, str] = {}
    for module in _modules(package):
        for experiment in _declared(module):
            if found.get(experiment.id) is experiment:  # a module may import another's declaration
                continue
            if experiment.id in found:
                raise ValueError(
                    f"two experiments are called {experiment.id!r}: "
                    f"in {home[experiment.id]} and in {module.__name__}"
                )
            found[experiment.id] = experiment
            home[experiment.id] = module.__name__
    return dict(sorted(found.items()))


def _modules(package: str) -> Iterator[ModuleType]:
    for area in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if area.ispkg:
            yield (folder := importlib.import_module(area.name))
            for entry in pkgutil.iter_modules(folder.__path__, f"{area.name}."):
                if _may_declare(entry.name):
                    yield importlib.import_module(entry.name)


def _may_declare(module: str) -> bool:
    """Whether the source of a module declares an experiment; modules that need torch do not."""
    spec = importlib.util.find_spec(module)
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(module)
    return source is None or re.search(r"^EXPERIMENTS?\b", source, re.MULTILINE) is not None


def _declared(module: ModuleType) -> list[Experiment]:
    declared = [*getattr(module, "EXPERIMENTS", ())]
    if hasattr(module, "EXPERIMENT"):
        declared.append(module.EXPERIMENT)
    for experiment in declared:
        if not isinstance(experiment, Experiment):
            raise TypeError(
                f"{module.__name__} declares a {type(experiment).__name__}; expected an Experiment"
            )
    return declared
