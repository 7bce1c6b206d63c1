"""A benchmark as one file: JSON with everything, CSV with one line per repeat, or its tables in Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from bayescore_lab.bench.rows import Part
from bayescore_lab.bench.tables import part_markdown
from bayescore_lab.engine.files import write_file
from bayescore_lab.engine.provenance import commit, machine, versions

__all__ = ["COLUMNS", "SUFFIXES", "record", "write_records"]

SUFFIXES = (".json", ".csv", ".md")
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
COLUMNS = (
    "part",
    "problem",
    "arm",
    "setting",
    "repeat",
    "seconds",
    "score_calls",
    "gap",
    "compile_seconds",
    "note",
)


def record(benchmark: str, config: dict[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
    """Everything that was measured, with the code, the libraries and the machine, in JSON types."""
    found = {
        "benchmark": benchmark,
        "config": config,
        "commit": commit(),
        "versions": {**versions(), **_peer_versions()},
        "machine": machine(),
        "parts": [_part(part) for part in parts],
    }
    return _plain(found)


def write_records(path: Path, found: dict[str, Any], parts: Sequence[Part]) -> None:
    """Write a record and the parts it was made of, whole or not at all, as the ending of the file says."""
    if path.suffix == ".md":
        text = "\n".join([_origin(found), *(part_markdown(part) for part in parts)])
    else:
        text = json.dumps(found, indent=1) + "\n" if path.suffix == ".json" else _csv(found)
    write_file(path, text)


def _origin(found: dict[str, Any]) -> str:
    """Where the numbers come from, in a sentence."""
    machine = found["machine"]
    libraries = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"`bayescore bench {found['benchmark']}` at commit {found['commit']} on {machine['processor']} "
        f"({machine['cores']} cores): {libraries}.\n"
    )


def _part(part: Part) -> dict[str, Any]:
    ratios = [
        {**asdict(ratio), "median": ratio.spread.median, "holds": ratio.holds}
        for ratio in part.ratios
        if ratio.values
    ]
    return {**asdict(part), "ratios": ratios}


def _peer_versions() -> dict[str, str]:
    found = {}
    for name in PEER_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _plain(value: Any) -> Any:
    """JSON types only; a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _csv(found: dict[str, Any]) -> str:
    text = io.StringIO()
    rows = [row for part in found["parts"] for row in part["rows"]]
    more = dict.fromkeys(key for row in rows for key in (*row["phases"], *row["numbers"]))
    writer = csv.DictWriter(text, (*COLUMNS, *more), lineterminator="\n")
    writer.writeheader()
    for part in found["parts"]:
        for row in part["rows"]:
            shared = {"part": part["name"], **{k: row[k] for k in COLUMNS if k in row and k != "seconds"}}
            shared |= row["numbers"]
            shared.pop("score_calls")
            for i in range(max(1, len(row["seconds"]))):
                lists = {"seconds": row["seconds"], "score_calls": row["score_calls"], "gap": row["gaps"]}
                lists |= row["phases"]
                each = {name: values[i] for name, values in lists.items() if i < len(values)}
                writer.writerow({**shared, "repeat": i if row["seconds"] else "", **each})
    return text.getvalue()
