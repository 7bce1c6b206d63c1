"""Sec. 5.2: "GSM and BaM simply fail" at the scale of an MLP. Which network does each method run in 8 GB?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
    Criterion,
    Experiment,
    Figure,
    Judgement,
    Profile,
    Records,
    Run,
    RunOutcome,
    Table,
)
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, REPRODUCED
from bayescore_lab.engine.workers import ask_once

LARGEST = [1000, 1000, 1000]  # the paper's network
LADDER: list[list[int]] = [[1], [2], [4], [8], [16], [32], [64], [1000], LARGEST]
FULL = {"family": "full"}
ARMS: dict[str, dict[str, Any]] = {
    "GSM, full": {"method": "gsm", "options": {}, **FULL},
    "BaM, full": {"method": "bam", "options": {}, **FULL},
    "Fisher, full": {"method": "fisher", "options": {}, **FULL},
    "Score, full": {"method": "score", "options": {}, **FULL},
    "ADVI, full": {"method": "advi", "options": {}, **FULL},
    "Ours, full": {"method": "proximal", "options": {}, **FULL},
    "BaM, low rank 20": {"method": "bam", "options": {}, "family": "low-rank"},
    "ADVI, low rank 20": {"method": "advi", "options": {}, "family": "low-rank"},
    "BaM, diagonal": {"method": "bam", "options": {}, "family": "diagonal"},
    "Fisher, diagonal": {"method": "fisher", "options": {}, "family": "diagonal"},
    "Score, diagonal": {"method": "score", "options": {}, "family": "diagonal"},
    "ADVI, diagonal": {"method": "advi", "options": {}, "family": "diagonal"},
    "Ours, diagonal": {"method": "proximal", "options": {"solver": "exact"}, "family": "diagonal"},
}
SETTINGS: dict[str, Any] = {"ladder": LADDER, "steps": 2, "gigabytes": 8.0}
TITLE = "The largest perceptron that runs in 8 GB"


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    chosen = {**SETTINGS, **settings}
    shared = {key: chosen[key] for key in ("steps", "gigabytes")}
    return [
        Run(name, seed, {**ARMS[name], "hidden": hidden, **shared}, cost=float(sum(hidden)))
        for name in methods
        for hidden in chosen["ladder"]
        for seed in seeds
    ]


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """Every run in a process of its own, which may not hold more than the limit."""
    for run in todo:
        done = ask_once("bayescore_lab.experiments.networks.scale_worker", run.config)
        if done.code == 1:  # a mistake in the program, not the end of the memory
            raise RuntimeError(f"the process of {run.method} failed: {done.errors[-300:]}")
        if done.answer is None:
            words = f"the process ended with code {done.code}: {done.errors[-200:]}"
            found: dict[str, Any] = {"ran": False, "reason": words, "seconds": 0.0}
        else:
            found = dict(done.answer)
        seconds = found.pop("seconds")
        ended = "ok" if found["ran"] else "did not run"
        yield RunOutcome(run, found, int(run.config["steps"]), ended=ended, seconds=seconds)


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for arm, chosen in records.arms.items():
        ran = [r for r in chosen if r.metrics["ran"]]
        failed = [r for r in chosen if not r.metrics["ran"]]
        best = max(ran, key=lambda r: r.metrics["parameters"], default=None)
        first = min(failed, key=lambda r: r.metrics.get("parameters", 0), default=None)
        rows.append(
            [
                arm,
                best.metrics["parameters"] if best else None,
                best.metrics["peak_gb"] if best else None,
                best.seconds / best.config["steps"] if best else None,
                first.metrics.get("parameters") if first else None,
                _words(first.metrics["reason"]) if first else "the largest of the ladder runs",
            ]
        )
    columns = ["arm", "most weights", "peak GB", "seconds per step", "fails at", "why"]
    note = "Two steps of each method in float32 with at most 8 GB; the largest network is the paper's."
    return [Table(TITLE, columns, rows, note=note)]


def _words(reason: str) -> str:
    """The allocator's message in words; any other is one already."""
    found = re.search(r"tried to allocate (\d+) bytes", reason)
    return f"out of memory, asking for {int(found[1]) / 1e9:.2g} GB more" if found else reason


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _fails(arms: Sequence[str]) -> Criterion:
    words = f"Reproduced if none of {', '.join(arms)} runs the network with 2,797,010 weights in 8 GB."

    def judge(records: Records) -> Judgement:
        found = [r for r in records if r.method in arms and r.config["hidden"] == LARGEST]
        if len({r.method for r in found}) < len(arms):
            return Judgement(None, "These records do not have the largest network for all of them.")
        able = sorted({r.method for r in found if r.metrics["ran"]})
        sentence = f"It runs with {', '.join(able)}." if able else "It runs with none of them."
        verdict = NOT_REPRODUCED if able else REPRODUCED
        return Judgement(verdict, sentence, ours=f"{len(arms) - len(able)} of {len(arms)} fail")

    return Criterion(words, judge)


EXPERIMENT = Experiment(
    id="scale-limits",
    title="How large a network each method can take",
    location="Sec. 5.2",
    shows="The largest perceptron that two steps of each method run in 8 GB, and why the next one does not.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(seeds=1, minutes=3, settings={"ladder": [[1], [4]]}),
        "paper": Profile(seeds=1, minutes=25, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=(
        Claim(
            "GSM and BaM fail at the scale of the MLP.",
            "Sec. 5.2",
            _fails(("GSM, full", "BaM, full")),
        ),
        Claim(
            "The diagonal and low-rank forms of BaM fail at the scale of the MLP too.",
            "not in the paper",
            _fails(("BaM, diagonal", "BaM, low rank 20")),
        ),
    ),
)
