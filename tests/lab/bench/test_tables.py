"""The records under results/ still give the tables and the lines of CSV that lie beside them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bayescore_lab.bench.results import Part, Ratio, Row
from bayescore_lab.bench.tables import write_results

RESULTS = Path(__file__).parents[3] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("bench-*/**/record.json"))


def as_part(found: dict[str, Any]) -> Part:
    """A part of a record; what was not finite was written as null."""
    kind = found.get("kind", "race" if found["name"] == "same ELBO" else "pairs")
    rows = [dict(row) for row in found["rows"]]
    for row in rows:
        row["gaps"] = [math.inf if gap is None else gap for gap in row["gaps"]]
    ratios = [{k: v for k, v in ratio.items() if k not in ("median", "holds")} for ratio in found["ratios"]]
    return Part(
        found["name"],
        found["title"],
        "goal" if kind == "race" else kind,  # its name in these records
        found["config"],
        tuple(Row(**row) for row in rows),
        tuple(Ratio(**ratio) for ratio in ratios),
        tuple(found["notes"]),
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_a_committed_record_gives_the_committed_files(folder, tmp_path):
    found = json.loads((folder / "record.json").read_text())
    parts = [as_part(part) for part in found["parts"]]
    for name in ("table.md", "rows.csv"):
        if (folder / name).exists():
            write_results(tmp_path / name, found, parts)
            assert (tmp_path / name).read_text() == (folder / name).read_text()


def test_there_are_committed_records():
    assert len(FOLDERS) >= 10
