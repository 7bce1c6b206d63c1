"""The grid that a command requests: an experiment, a profile, some seeds and some methods."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayescore.checks import unknown_name
from bayescore_lab.engine.declare import Experiment, Run
from bayescore_lab.engine.provenance import usable_cores
from bayescore_lab.engine.records import Record, Records, encode, run_id

__all__ = ["Plan", "check_jobs", "listed", "pick", "plan"]

_SEEDS = 10_000  # a grid of more is a slip of the finger: it would fill the memory before the first run
_JOBS_PER_CORE = 8


@dataclass(frozen=True)
class Plan:
    """The runs of one experiment by their id, in the order in which the experiment lists them."""

    experiment: Experiment
    profile: str
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    runs: Mapping[str, Run]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the profile."""
        return self.experiment.profiles[self.profile].settings

    @property
    def command(self) -> str:
        """The command line that requests this grid."""
        words = ["bayescore reproduce", self.experiment.id, "--profile", self.profile]
        if len(self.seeds) != self.experiment.profiles[self.profile].seeds:
            words += ["--seeds", str(len(self.seeds))]
        if self.methods != tuple(self.experiment.methods):
            words += ["--methods", shlex.quote(", ".join(self.methods))]
        return " ".join(words)

    def folder(self, out: Path) -> Path:
        """Where the records are."""
        return out / self.experiment.id

    def artefacts(self, out: Path) -> Path:
        """Where tables and figures go; a smaller grid never overwrites those of the whole `paper` profile."""
        whole = len(self.seeds) >= self.experiment.profiles[self.profile].seeds
        part = "" if whole and self.methods == tuple(self.experiment.methods) else "-part"
        name = f"{self.profile}{part}"
        return self.folder(out) if name == "paper" else self.folder(out) / name

    def choose(self, records: Iterable[Record]) -> Records:
        """The first finished record of each run of this grid; records of any other grid are left out."""
        first: dict[str, Record] = {}
        for record in records:
            if record.done and record.run in self.runs:
                first.setdefault(record.run, record)
        missing = (self._blank(run) for run in self.runs if run not in first)
        return Records((first[run] for run in self.runs if run in first), self.experiment.arm, missing)

    def _blank(self, key: str) -> Record:
        """The record of a run that is not finished: what was asked for."""
        run = self.runs[key]
        none: dict[str, Any] = {}
        return Record(
            self.experiment.id, key, run.method, run.seed, dict(run.config), none, none, 0, 0.0, none, "",
            none, none, "",
        )  # fmt: skip


def plan(
    experiment: Experiment,
    profile: str = "quick",
    seeds: int | None = None,
    methods: Sequence[str] | None = None,
) -> Plan:
    """The grid of a profile, by default with its own number of seeds and all methods."""
    _check_name(f"profile of {experiment.id}", profile, experiment.profiles)
    count = experiment.profiles[profile].seeds if seeds is None else seeds
    if not 1 <= count <= _SEEDS:
        raise ValueError(f"the number of seeds must be from 1 to {_SEEDS:,}; got {count}")
    for method in methods or ():
        _check_name(f"method of {experiment.id}", method, experiment.methods)
    # in the order of the declaration, whatever the order on the command line
    wanted = tuple(m for m in experiment.methods if methods is None or m in methods)
    numbers = tuple(range(count))
    runs: dict[str, Run] = {}
    for run in experiment.runs(experiment.profiles[profile].settings, numbers, wanted):
        encode(run.config, f"the config of {experiment.id}, {run.method}, seed {run.seed}")
        key = run_id(experiment.id, run.method, run.seed, run.config)
        if key in runs:
            raise ValueError(
                f"{experiment.id} lists the run of {run.method} with seed {run.seed} twice; "
                "what makes the two differ belongs in their config"
            )
        runs[key] = run
    if not runs:
        raise ValueError(
            f"{experiment.id} has no runs for profile {profile!r} and methods {', '.join(wanted)}"
        )
    return Plan(experiment, profile, numbers, wanted, runs)


def check_jobs(jobs: int) -> None:
    """Raise ValueError unless this machine can be expected to hold so many processes."""
    most = _JOBS_PER_CORE * usable_cores()
    if not 1 <= jobs <= most:
        raise ValueError(
            f"the number of jobs must be from 1 to {most}, {_JOBS_PER_CORE} for each core; got {jobs}"
        )


def pick(experiments: Mapping[str, Experiment], name: str) -> Experiment:
    """The experiment with this id; an error suggests the nearest one."""
    _check_name("experiment", name, experiments)
    return experiments[name]


def listed(words: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list; a name may contain commas, and the longest match counts.

    >>> listed("Ours, exact, ADVI", ["Ours", "Ours, exact", "ADVI"])
    ['Ours, exact', 'ADVI']
    """
    parts, found = [part.strip() for part in words.split(",")], []
    while parts:
        ends = [n for n in range(len(parts), 0, -1) if ", ".join(parts[:n]) in known]
        end = ends[0] if ends else 1
        found.append(", ".join(parts[:end]))
        del parts[:end]
    return found


def _check_name(kind: str, word: str, choices: Iterable[str]) -> None:
    """Raise unless `word` is one of the choices; the error suggests the nearest."""
    if word not in (known := list(choices)):
        raise unknown_name(kind, word, known)
