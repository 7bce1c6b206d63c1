"""From records to artefacts: tables, figures, quantile traces and a summary with the verdicts.

Drawing only reads records, those of the requested grid. All files are small enough to be committed (no file
above 1 MB). The report is built from the summary and the figures.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bayescore.io import write_bytes
from bayescore.plotting.style import figure_style
from bayescore_lab.engine.declare import Claim
from bayescore_lab.engine.figures import Figure, png, svg, write_caption
from bayescore_lab.engine.files import read_bounded
from bayescore_lab.engine.plans import Plan
from bayescore_lab.engine.records import Record, Records, RecordStore, dumps, loads, prepare_folder
from bayescore_lab.engine.tables import Table
from bayescore_lab.engine.traces import QUANTILES, quantile_trace
from bayescore_lab.engine.verdicts import Judgement
from bayescore_lab.engine.wording import counted

__all__ = ["FILE_LIMIT", "CannotDraw", "Drawn", "NothingToDraw", "draw", "write_file"]

_log = logging.getLogger(__name__)

T = TypeVar("T", Table, Figure)

#: largest size of a committed file, in bytes
FILE_LIMIT = 1_000_000


#: the names of the files that may be removed when the next drawing does not make them
_DRAWN = re.compile(r"(table|figure)(-[^/\\\0]*)?\.(csv|md|png|svg)")


class NothingToDraw(ValueError):
    """There is no finished run of the grid."""


class CannotDraw(ValueError):
    """The records are readable, but the experiment's tables, figures or rules cannot be made from them."""


@dataclass(frozen=True)
class Drawn:
    """The tables and verdicts that were drawn, for the terminal, and the files."""

    folder: Path
    records: Records
    tables: Sequence[Table]
    judgements: Sequence[tuple[Claim, Judgement]]
    files: Sequence[str]


def draw(plan: Plan, out: Path) -> Drawn:
    """Write the artefacts of a plan from the records in `out`; raises NothingToDraw if no run is finished."""
    store = RecordStore(plan.folder(out))
    everything = store.read()
    records = plan.choose(everything)
    if not records:
        raise NothingToDraw(f"{plan.experiment.id} has no finished run to draw in {store.path}")
    folder = plan.artefacts(out)
    prepare_folder(folder)
    with _blaming(store.path):
        tables = [_with_gap(table, records) for table in plan.experiment.tables(records)]
        judgements = [(claim, _judged(claim, records)) for claim in plan.experiment.claims]
    files: dict[str, str | bytes] = {}
    for table in tables:
        files[f"{table.stem}.csv"] = table.csv()
        files[f"{table.stem}.md"] = table.markdown()
    with figure_style(), _blaming(store.path):
        figures = [_with_gap(figure, records) for figure in plan.experiment.figures(records)]
        for figure in figures:
            write_caption(figure)
            files[f"{figure.stem}.png"] = png(figure.drawing)
            files[f"{figure.stem}.svg"] = svg(figure.drawing)
    if len(files) != 2 * (len(tables) + len(figures)):
        raise ValueError(f"the tables or figures of {plan.experiment.id} share a name; give each its own")
    with _blaming(store.path):
        files["traces.json"] = _traces(plan, records)
    summary = _facts(plan, records, everything, [line for _, line, _ in store.damage]) | {
        "claims": [
            {"text": claim.text, "location": claim.location, "rule": claim.rule.words, "paper": claim.paper}
            | vars(judgement)
            for claim, judgement in judgements
        ],
        "paper": [vars(value) for value in plan.experiment.paper],
        "tables": [
            {"file": t.stem, "title": t.title, "note": t.note, "columns": t.columns, "cells": t.cells}
            for t in tables
        ],
        "figures": [{"file": f.stem, "title": f.title, "caption": f.caption} for f in figures],
        "files": sorted(files),
    }
    files["summary.json"] = dumps(summary, indent=1) + "\n"  # written last: it lists the others
    before = _drawn_before(folder)
    for name, content in files.items():
        write_file(folder / name, content)
    for name in before - files.keys():
        (folder / name).unlink(missing_ok=True)
    return Drawn(folder, records, tables, judgements, list(files))


def _judged(claim: Claim, records: Records) -> Judgement:
    found = claim.rule.judge(records)
    return replace(found, ours=claim.ours(records)) if claim.ours and found.verdict else found


def _with_gap(drawn: T, records: Records) -> T:
    """A table or figure whose note says how much of the grid is missing."""
    if not records.missing:
        return drawn
    whole = len(records) + len(records.missing)
    gap = f"Incomplete: {len(records):,} of {counted(whole, 'run')} of the grid."
    return replace(drawn, note=f"{drawn.note} {gap}".strip())


def _missing(records: Records) -> list[dict[str, Any]]:
    """The runs of the grid that are not finished: every method and config with its missing seeds."""
    found: dict[str, dict[str, Any]] = {}
    for record in records.missing:
        key = dumps([record.method, record.config])
        entry = found.setdefault(key, {"method": record.method, "config": record.config, "seeds": []})
        entry["seeds"].append(record.seed)
    return list(found.values())


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file atomically; an OSError says that the records are safe."""
    try:
        write_bytes(path, content.encode() if isinstance(content, str) else content)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise OSError(
            problem.errno,
            f"could not be written ({reason}); the records are safe, the same command draws again",
            str(path),
        ) from problem


def _facts(
    plan: Plan, records: Records, everything: Sequence[Record], corrupt: Iterable[int]
) -> dict[str, Any]:
    experiment = plan.experiment
    finished = {record.run for record in records}
    failed = {record.run for record in everything if record.run in plan.runs} - finished
    return {
        "experiment": experiment.id,
        "title": experiment.title,
        "location": experiment.location,
        "shows": experiment.shows,
        "command": plan.command,
        "profile": plan.profile,
        "settings": plan.settings,
        "minutes": experiment.profiles[plan.profile].minutes,
        "seeds": len(plan.seeds),
        "methods": plan.methods,
        "arms": list(records.arms),
        "runs": len(plan.runs),
        "finished": len(finished),
        "failures": len(failed),
        "missing": _missing(records),
        "corrupt_lines": list(corrupt),
        "score_calls": sum(record.score_calls for record in records),
        "seconds": round(sum(record.seconds for record in records), 3),
        "commit": _distinct(record.commit for record in records),
        "versions": _distinct(record.versions for record in records),
        "machine": _distinct(record.machine for record in records),
    }


def _traces(plan: Plan, records: Records) -> str:
    """Quantiles of every trace of every arm, on as many points as the limit of the file size allows."""
    text = ""
    for points in (200, 100, 50, 25):
        arms: dict[str, Any] = {}
        for arm, chosen in records.arms.items():
            names = dict.fromkeys(name for record in chosen for name in record.trace)
            names.pop(plan.experiment.axis, None)
            found = {name: quantile_trace(chosen, name, plan.experiment.axis, points) for name in names}
            arms[arm] = {
                name: {"n": trace.n, "x": _short(trace.x), "values": [_short(row) for row in trace.values]}
                for name, trace in found.items()
                if trace is not None
            }
        head = {"experiment": plan.experiment.id, "profile": plan.profile, "axis": plan.experiment.axis}
        text = dumps(head | {"quantiles": QUANTILES, "arms": arms}, separators=(",", ":")) + "\n"
        if len(text) < FILE_LIMIT:
            break
    return text


def _short(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _distinct(values: Any) -> list[Any]:
    seen: list[Any] = []
    for value in values:
        if value not in seen:
            seen.append(value)
    return seen


def _drawn_before(folder: Path) -> set[str]:
    """The files of the last drawing; nothing else in the folder is ever removed."""
    try:
        names = set(map(str, loads(read_bounded(folder / "summary.json"))["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if _DRAWN.fullmatch(name)}


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Records of the right kinds may still lack what an experiment reads of its own."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        _log.debug("drawing from %s failed", path, exc_info=True)
        raise CannotDraw(
            f"{path} cannot be drawn ({type(problem).__name__}: {problem}); a record there lacks what the "
            "experiment writes: move the file away and give the same command again"
        ) from problem
