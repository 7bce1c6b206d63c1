"""Part 3: wall-clock time to the same ELBO, ours next to NumPyro and BlackJAX.

The setting of every entry is chosen from its grid, by trials on a few seeds: the setting with which most runs
reach the goal; of several such settings the fastest; and if none reaches it, the one that comes nearest. A
run that takes twice as long as the best setting so far is given up. Then all entries take turns, with a new
seed in every round, and the seconds until the ELBO first reaches the goal are measured. The clock stops while
an ELBO is evaluated.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.families.full import FullGaussian
from bayescore.inference.fitting import fit
from bayescore.inference.result import Fit
from bayescore.targets.base import Target
from bayescore_lab.bench.entries import (
    OURS,
    PEERS,
    Entry,
    OurMethod,
    PeerMethod,
    RunResult,
    Setting,
    setting_text,
)
from bayescore_lab.bench.peers import CHUNK, PeerError, PeerProcess, missing
from bayescore_lab.bench.problems import Problem
from bayescore_lab.bench.results import Part, Ratio, Row
from bayescore_lab.bench.timing import Notify, one_thread, prefixed, rounds

__all__ = ["SEEDS", "choose_setting", "run_ours", "same_elbo_part"]

#: problem, setting, seed and the seconds after which to give up, to the end of the run
Runner = Callable[[Problem, Setting, int, float], RunResult]
PATIENCE = 20.0  # seconds after which any run is given up
SEEDS = (1000, 1001, 1002)  # the rounds of the comparison take 0, 1, ...


def same_elbo_part(
    repeats: int,
    notify: Notify,
    problems: Sequence[Problem],
    *,
    peers: bool = True,
    settings: int | None = None,
) -> Part:
    """Run all entries on all problems; `settings` keeps only so many settings of each."""
    entries: list[Entry] = [*OURS, *(PEERS if peers else ())]
    if settings is not None:
        entries = [replace(entry, settings=entry.settings[:settings]) for entry in entries]
    rows: list[Row] = []
    ratios: list[Ratio] = []
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        able = any(isinstance(e, PeerMethod) and missing(e) is None for e in entries)
        process = stack.enter_context(PeerProcess()) if able else None
        for problem in problems:
            found = _on_problem(problem, entries, process, repeats, prefixed(problem.name, notify))
            rows += found
            ratios += _ratios(found)
    return Part(
        name="same ELBO",
        title="Wall-clock to the same ELBO, compilation apart",
        kind="goal",
        config={
            "problems": [p.describe() for p in problems],
            "settings": {e.name: [dict(s) for s in e.settings] for e in entries},
            "peer_chunk": CHUNK,
            "give_up_seconds": PATIENCE,
            "dtype": "float64",
            "threads": 1,
        },
        rows=tuple(rows),
        ratios=tuple(ratios),
        notes=(
            "all start from N(0, I) (a pathfinder from a draw of it), at the fastest setting of their grid;",
            f"the exact ELBO is checked outside the clock, for peers after every {CHUNK} jitted steps;",
            "NumPyro's guide is AutoMultivariateNormal; of several paths the one with the best ELBO counts",
        ),
    )


def _on_problem(
    problem: Problem, entries: Sequence[Entry], process: PeerProcess | None, repeats: int, notify: Notify
) -> list[Row]:
    runners: dict[str, Runner] = {}
    chosen: dict[str, tuple[Setting, list[Trial]]] = {}
    notes: dict[str, str] = {}
    for entry in entries:
        try:
            runners[entry.name] = run = _runner(entry, process)
            chosen[entry.name] = choose_setting(entry, run, problem, notify)
        except PeerError as why:
            notes[entry.name] = str(why)

    def turn(name: str, seed: int) -> RunResult:
        return runners[name](problem, chosen[name][0], seed, PATIENCE)

    results = rounds({name: partial(turn, name) for name in chosen}, repeats, notify)
    rows: list[Row] = []
    for entry in entries:
        if entry.name in notes:
            rows.append(Row(problem.name, entry.name, note=notes[entry.name]))
            continue
        setting, trials = chosen[entry.name]
        ended = results[entry.name]
        if isinstance(entry, PeerMethod) and process is not None:
            ended = [_counted(process, entry, problem, setting, i, f) for i, f in enumerate(ended)]
        rows.append(_row(problem, entry.name, setting, ended, trials))
    return rows


def _runner(entry: Entry, process: PeerProcess | None) -> Runner:
    """How an entry runs; PeerError where it cannot."""
    if isinstance(entry, OurMethod):
        return partial(run_ours, entry)
    assert isinstance(entry, PeerMethod)
    if why := missing(entry):
        raise PeerError(why)
    assert process is not None
    return partial(process.run, entry)


def _counted(
    process: PeerProcess, entry: PeerMethod, problem: Problem, setting: Setting, seed: int, result: RunResult
) -> RunResult:
    """The same with its score calls, which a one-shot method does not report itself."""
    if result.score_calls is not None:
        return result
    return replace(result, score_calls=process.count(entry, problem, setting, seed))


def _row(
    problem: Problem, name: str, setting: Setting, results: Sequence[RunResult], trials: Sequence[Trial]
) -> Row:
    missed = sum(f.seconds is None for f in results)
    return Row(
        problem=problem.name,
        arm=name,
        seconds=tuple(f.seconds for f in results),
        score_calls=tuple(f.score_calls for f in results),
        gaps=tuple(f.gap for f in results),
        setting=setting_text(setting),
        compile_seconds=results[0].compile_seconds,
        note=f"missed in {missed} of {len(results)} runs" if missed else "",
        trials=tuple(asdict(trial) for trial in trials),
    )


def _ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Every row that always reached the goal over the fastest of ours on the same problem."""
    ours = {entry.name for entry in OURS}
    able = [(row.spread.estimate, row) for row in rows if row.spread is not None and row.arm in ours]
    if not able:
        return []
    fastest = min(able, key=lambda pair: pair[0])[1]
    return [Ratio.between(row, fastest) for row in rows if row.reached]


@dataclass(frozen=True)
class Trial:
    """The runs of one setting, up to the first that missed the goal."""

    setting: Setting
    results: tuple[RunResult, ...]

    @property
    def rank(self) -> tuple[int, float, float]:
        """Smaller is better: runs at the goal, their median time, the gap."""
        times = [f.seconds for f in self.results if f.seconds is not None]
        median = statistics.median(times) if times else math.inf
        return -len(times), median, min(f.gap for f in self.results)


def choose_setting(
    entry: Entry, run: Runner, problem: Problem, notify: Notify
) -> tuple[Setting, list[Trial]]:
    """The best setting of an entry, and all that were tried."""
    run(problem, entry.settings[0], 0, 0.0)  # warm-up, ended at the first check
    trials: list[Trial] = []
    limit = PATIENCE
    for setting in entry.settings:
        notify(f"choosing a setting: {entry.name}, {setting_text(setting)}")
        results: list[RunResult] = []
        while len(results) < len(SEEDS) and (not results or results[-1].seconds is not None):
            results.append(run(problem, setting, SEEDS[len(results)], limit))
        trials.append(Trial(setting, tuple(results)))
        reached, median, _ = trials[-1].rank
        if -reached == len(SEEDS):
            limit = min(limit, 2 * median)
    return min(trials, key=lambda trial: trial.rank).setting, trials


class _Clock:
    """A metric that stops the clock and a callback that starts it again, or ends the fit at the goal."""

    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem, self.goal, self.limit = problem, problem.goal, limit
        self.seconds, self.elbo, self.checks = 0.0, -math.inf, 0
        self.running_since = time.perf_counter()

    def metric(self, family: Family, target: Target) -> Tensor:  # noqa: ARG002
        self.seconds += time.perf_counter() - self.running_since
        q = family[0]
        assert isinstance(q, FullGaussian)
        self.elbo = self.problem.elbo(q)
        self.checks += 1
        if self.checks == 1:  # the record of the start, after which no callback is called
            self.running_since = time.perf_counter()
        return torch.tensor([self.elbo])

    def callback(self, fit: Fit) -> bool:  # noqa: ARG002
        self.running_since = time.perf_counter()
        return self.elbo >= self.goal or self.seconds > self.limit


def run_ours(entry: OurMethod, problem: Problem, setting: Setting, seed: int, limit: float) -> RunResult:
    """Fit until the goal is reached, the budget is used, or `limit` seconds are over."""
    clock = _Clock(problem, limit)
    result = fit(
        problem.target,
        problem.q0,
        entry.make(setting),
        steps=problem.budget,
        seed=seed,
        metrics={"elbo": clock.metric},
        record_every=entry.check_every,
        callbacks=[clock.callback],
        progress=False,
        check=False,
    )
    return RunResult(
        seconds=clock.seconds if clock.elbo >= clock.goal else None,
        score_calls=result.score_calls,
        steps=result.state.step,
        gap=problem.best - clock.elbo,
    )
