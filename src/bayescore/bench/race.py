"""Part 3: wall-clock to the same ELBO, ours beside NumPyro and BlackJAX.

Every entry tries each of its settings on a few seeds, and gives up a run that takes twice as long as its best
setting so far. The setting that is fastest to the goal (without any, the one that came nearest) then takes
part in the rounds, with a new seed in each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

from bayescore.bench.contest import OURS, PEERS, Entry, Finish, Own, Peer, Setting, words
from bayescore.bench.own import run_own
from bayescore.bench.peers import CHUNK, PeerError, PeerProcess, missing
from bayescore.bench.problems import Problem
from bayescore.bench.rows import Part, Ratio, Row
from bayescore.bench.timing import Tell, about, one_thread, rounds

__all__ = ["race"]

Runner = Callable[[Problem, Setting, int, float], Finish]
PATIENCE = 20.0  # seconds after which any run is given up
TUNING_SEEDS = (1000, 1001, 1002)  # of the runs that choose a setting; the rounds take 0, 1, ...


@dataclass(frozen=True)
class Trial:
    """The runs of one setting, up to the first that missed the goal."""

    setting: Setting
    finishes: tuple[Finish, ...]


def race(
    repeats: int, tell: Tell, problems: Sequence[Problem], *, peers: bool = True, settings: int | None = None
) -> Part:
    """Run all entries on all problems; `settings` keeps only so many settings of each."""
    entries: list[Entry] = [*OURS, *(PEERS if peers else ())]
    if settings is not None:
        entries = [replace(entry, settings=entry.settings[:settings]) for entry in entries]
    rows: list[Row] = []
    ratios: list[Ratio] = []
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        able = any(isinstance(e, Peer) and missing(e) is None for e in entries)
        process = stack.enter_context(PeerProcess()) if able else None
        for problem in problems:
            found = _race_on(problem, entries, process, repeats, about(problem.name, tell))
            rows += found
            ratios += _ratios(found)
    return Part(
        name="same ELBO",
        title="Wall-clock to the same ELBO, compilation apart",
        pairs=False,
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
            f"the exact ELBO is checked outside the clock, for peers after every {CHUNK} jitted steps",
        ),
    )


def _race_on(
    problem: Problem, entries: Sequence[Entry], process: PeerProcess | None, repeats: int, tell: Tell
) -> list[Row]:
    turns: dict[str, Callable[[int], Finish]] = {}
    trials: dict[str, list[Trial]] = {}
    notes: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Peer) and (why := missing(entry)):
            notes[entry.name] = why
            continue
        run = _runner(entry, process)
        try:
            trials[entry.name] = tried = _try_settings(entry, run, problem, tell)
        except PeerError as failure:
            notes[entry.name] = str(failure)
            continue
        turns[entry.name] = partial(_turn, run, problem, min(tried, key=_rank).setting)
    finishes = rounds(turns, repeats, tell)
    return [
        Row(problem.name, entry.name, note=notes[entry.name])
        if entry.name in notes
        else _row(problem, entry.name, finishes[entry.name], trials[entry.name])
        for entry in entries
    ]


def _turn(run: Runner, problem: Problem, setting: Setting, seed: int) -> Finish:
    return run(problem, setting, seed, PATIENCE)


def _runner(entry: Entry, process: PeerProcess | None) -> Runner:
    if isinstance(entry, Own):
        return partial(run_own, entry)
    assert isinstance(entry, Peer)
    assert process is not None
    return partial(process.run, entry)


def _try_settings(entry: Entry, run: Runner, problem: Problem, tell: Tell) -> list[Trial]:
    run(problem, entry.settings[0], 0, 0.0)  # warm-up, ended at the first check
    trials: list[Trial] = []
    limit = PATIENCE
    for setting in entry.settings:
        tell(f"choosing a setting: {entry.name}, {words(setting)}")
        finishes: list[Finish] = []
        for seed in TUNING_SEEDS:
            finishes.append(run(problem, setting, seed, limit))
            if finishes[-1].seconds is None:
                break
        trials.append(Trial(setting, tuple(finishes)))
        reached, median = _rank(trials[-1])[:2]
        if reached == -len(TUNING_SEEDS):
            limit = min(limit, 2 * median)
    return trials


def _rank(trial: Trial) -> tuple[int, float, float]:
    """The more runs reached the goal the better, then the faster; without any, the nearer."""
    times = [f.seconds for f in trial.finishes if f.seconds is not None]
    median = statistics.median(times) if times else math.inf
    return -len(times), median, min(f.gap for f in trial.finishes)


def _row(problem: Problem, name: str, finishes: Sequence[Finish], trials: Sequence[Trial]) -> Row:
    failed = sum(f.seconds is None for f in finishes)
    text = f"goal not reached in {failed} of {len(finishes)} runs" if failed else ""
    return Row(
        problem=problem.name,
        arm=name,
        seconds=tuple(f.seconds for f in finishes),
        score_calls=tuple(f.score_calls for f in finishes),
        gaps=tuple(f.gap for f in finishes),
        setting=words(min(trials, key=_rank).setting),
        compile_seconds=finishes[0].compile_seconds,
        note=text,
        trials=tuple(asdict(trial) for trial in trials),
    )


def _ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Every row that always reached the goal over the fastest of ours on the same problem."""
    ours = {entry.name for entry in OURS}
    able = [(row.spread.median, row) for row in rows if row.spread is not None and row.arm in ours]
    if not able:
        return []
    fastest = min(able, key=lambda pair: pair[0])[1]
    return [Ratio.between(row, fastest) for row in rows if row.reached]
