"""Tools around the toy: records made by hand, the toy command as a process, what a file of records holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bayescore_lab.engine import Record

HERE = Path(__file__).parent


def make_record(run: str, state: str = "done", kl: float = 0.5) -> Record:
    status = {"state": state} | ({"ended": "ok"} if state == "done" else {"error": "it broke"})
    return Record(
        experiment="toy",
        run=run,
        method="Ours",
        seed=0,
        config={"steps": 3},
        metrics={"kl": kl},
        trace={"score_calls": [1, 2], "kl": [1.0, kl]},
        score_calls=2,
        seconds=0.1,
        status=status,
        commit="abc",
        versions={"python": "3"},
        machine={"cores": 2},
        started="2026-01-01T00:00:00+00:00",
    )


def start_toy(*words: object, **options: Any) -> subprocess.Popen[str]:
    """The toy command in a process group of its own, as a terminal would start it."""
    command = [sys.executable, str(HERE / "toy_command.py"), *map(str, words)]
    environment = os.environ | {"COLUMNS": "200"}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, env=environment, **(streams | options))


def finish(process: subprocess.Popen[str], timeout: float = 120) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=timeout)
    return process.returncode, output, errors


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records as plain JSON; fails on any line that is not."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def results(path: Path) -> dict[str, Any]:
    """What must not depend on kills: for each finished run, every field but time and place."""
    kept = ("experiment", "method", "seed", "config", "metrics", "trace", "score_calls", "status")
    found: dict[str, Any] = {}
    for record in read_lines(path):
        if record["status"]["state"] == "done":
            assert record["run"] not in found, "a run is recorded as finished twice"
            found[record["run"]] = {name: record[name] for name in kept}
    return found


def living(group: int) -> list[int]:
    """The processes of a process group that are not zombies."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it ended while we looked
            continue
        if int(process_group) == group and state != "Z":
            found.append(int(entry.parent.name))
    return found
