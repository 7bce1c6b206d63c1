"""Part 3: wall-clock to the same ELBO, ours beside NumPyro and BlackJAX.

Every entry runs each of its settings once, and gives one up that takes twice as long as its best so far. The
fastest to the goal (else the one that came nearest) then takes part in the rounds, with a new seed in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial

from bayescore.bench.contest import OURS, PEERS, Entry, Finish, Own, Peer, Setting, words
from bayescore.bench.own import run_own
from bayescore.bench.peers import CHUNK, PeerProcess, missing
from bayescore.bench.problems import Problem
from bayescore.bench.rows import Part, Ratio, Row
from bayescore.bench.timing import Tell, one_thread, rounds

__all__ = ["race"]

Runner = Callable[[Problem, Setting, int, float], Finish]
PATIENCE = 20.0  # seconds after which any run is given up
TUNING_SEED = 1000  # of the runs that choose a setting; the rounds take 0, 1, ...


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
            found = _race_on(
                problem, entries, process, repeats, lambda text, p=problem: tell(f"{p.name}, {text}")
            )
            rows += found
            ratios += _ratios(found)
    return Part(
        name="same ELBO",
        title="Wall-clock to the same ELBO, compilation apart",
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
            "all start from N(0, I) (a pathfinder from a draw of it) and run at the fastest setting of their grid; "
            f"the exact ELBO is checked outside the clock, for peers after every {CHUNK} steps of one jitted scan",
        ),
    )


def _race_on(
    problem: Problem, entries: Sequence[Entry], process: PeerProcess | None, repeats: int, tell: Tell
) -> list[Row]:
    runners: dict[str, Runner] = {}
    trials: dict[str, list[tuple[Setting, Finish]]] = {}
    for entry in entries:
        if not (isinstance(entry, Peer) and missing(entry)):
            runners[entry.name] = run = _runner(entry, process)
            trials[entry.name] = _try_settings(entry, run, problem, tell)
    best = {name: min(tried, key=lambda trial: _rank(trial[1]))[0] for name, tried in trials.items()}
    turns = {
        name: lambda i, run=run, setting=best[name]: run(problem, setting, i, PATIENCE)
        for name, run in runners.items()
    }
    finishes = rounds(turns, repeats, tell)
    return [
        _row(problem, entry.name, best[entry.name], finishes[entry.name], trials[entry.name])
        if entry.name in runners
        else Row(problem.name, entry.name, note=missing(entry) or "")
        for entry in entries
    ]


def _runner(entry: Entry, process: PeerProcess | None) -> Runner:
    if isinstance(entry, Own):
        return partial(run_own, entry)
    assert isinstance(entry, Peer)
    assert process is not None
    return partial(process.run, entry)


def _try_settings(entry: Entry, run: Runner, problem: Problem, tell: Tell) -> list[tuple[Setting, Finish]]:
    run(problem, entry.settings[0], 0, 0.0)  # warm-up, ended at the first check
    tried: list[tuple[Setting, Finish]] = []
    limit = PATIENCE
    for setting in entry.settings:
        tell(f"choosing a setting: {entry.name}, {words(setting)}")
        finish = run(problem, setting, TUNING_SEED, limit)
        tried.append((setting, finish))
        if finish.seconds is not None:
            limit = min(limit, 2 * finish.seconds)
    return tried


def _rank(finish: Finish) -> tuple[float, float]:
    """The faster to the goal the better; without it, the nearer."""
    return (math.inf, finish.gap) if finish.seconds is None else (finish.seconds, finish.gap)


def _row(
    problem: Problem,
    name: str,
    setting: Setting,
    finishes: Sequence[Finish],
    trials: Sequence[tuple[Setting, Finish]],
) -> Row:
    failed = sum(f.seconds is None for f in finishes)
    text = f"goal not reached in {failed} of {len(finishes)} runs" if failed else ""
    return Row(
        problem=problem.name,
        arm=name,
        seconds=tuple(f.seconds for f in finishes),
        score_calls=tuple(f.score_calls for f in finishes),
        gaps=tuple(f.gap for f in finishes),
        setting=words(setting),
        compile_seconds=finishes[0].compile_seconds,
        note=text,
        trials=tuple({"setting": dict(tried), **asdict(finish)} for tried, finish in trials),
    )


def _ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Every row that always reached the goal over the fastest of ours on the same problem."""
    ours = {entry.name for entry in OURS}
    able = [(row.spread.median, row) for row in rows if row.spread is not None and row.arm in ours]
    if not able:
        return []
    fastest = min(able, key=lambda pair: pair[0])[1]
    return [Ratio.between(row, fastest) for row in rows if row.reached]
