"""Part 3: wall-clock to the same ELBO, ours beside NumPyro and BlackJAX.

Every entry chooses a setting from its grid (tuning.py). Then all take turns, with a new seed in every round,
and the seconds until the ELBO first is at the goal count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial

from bayescore_lab.bench.contest import OURS, PEERS, Entry, Finish, Own, Peer, Setting, words
from bayescore_lab.bench.own import run_own
from bayescore_lab.bench.peers import CHUNK, PeerError, PeerProcess, missing
from bayescore_lab.bench.problems import Problem
from bayescore_lab.bench.rows import Part, Ratio, Row
from bayescore_lab.bench.timing import Tell, about, one_thread, rounds
from bayescore_lab.bench.tuning import PATIENCE, Runner, Trial, choose

__all__ = ["race"]


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
        kind="race",
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


def _race_on(
    problem: Problem, entries: Sequence[Entry], process: PeerProcess | None, repeats: int, tell: Tell
) -> list[Row]:
    runners: dict[str, Runner] = {}
    chosen: dict[str, tuple[Setting, list[Trial]]] = {}
    notes: dict[str, str] = {}
    for entry in entries:
        try:
            runners[entry.name] = run = _runner(entry, process)
            chosen[entry.name] = choose(entry, run, problem, tell)
        except PeerError as why:
            notes[entry.name] = str(why)

    def turn(name: str, seed: int) -> Finish:
        return runners[name](problem, chosen[name][0], seed, PATIENCE)

    finishes = rounds({name: partial(turn, name) for name in chosen}, repeats, tell)
    rows: list[Row] = []
    for entry in entries:
        if entry.name in notes:
            rows.append(Row(problem.name, entry.name, note=notes[entry.name]))
            continue
        setting, trials = chosen[entry.name]
        ended = finishes[entry.name]
        if isinstance(entry, Peer) and process is not None:
            ended = [_counted(process, entry, problem, setting, i, f) for i, f in enumerate(ended)]
        rows.append(_row(problem, entry.name, setting, ended, trials))
    return rows


def _runner(entry: Entry, process: PeerProcess | None) -> Runner:
    """How an entry runs; PeerError where it cannot."""
    if isinstance(entry, Own):
        return partial(run_own, entry)
    assert isinstance(entry, Peer)
    if why := missing(entry):
        raise PeerError(why)
    assert process is not None
    return partial(process.run, entry)


def _counted(
    process: PeerProcess, entry: Peer, problem: Problem, setting: Setting, seed: int, finish: Finish
) -> Finish:
    """The same with its score calls, which a one-shot method does not tell by itself."""
    if finish.score_calls is not None:
        return finish
    return replace(finish, score_calls=process.count(entry, problem, setting, seed))


def _row(
    problem: Problem, name: str, setting: Setting, finishes: Sequence[Finish], trials: Sequence[Trial]
) -> Row:
    missed = sum(f.seconds is None for f in finishes)
    return Row(
        problem=problem.name,
        arm=name,
        seconds=tuple(f.seconds for f in finishes),
        score_calls=tuple(f.score_calls for f in finishes),
        gaps=tuple(f.gap for f in finishes),
        setting=words(setting),
        compile_seconds=finishes[0].compile_seconds,
        note=f"missed in {missed} of {len(finishes)} runs" if missed else "",
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
