"""`bayescore bench sharded`: memory and time of a step on a network that several processes hold together."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from bayescore.models import mlp
from bayescore_lab.bench import sharded
from bayescore_lab.bench.choices import NETWORKS
from bayescore_lab.bench.commands import app
from bayescore_lab.bench.sharded import launch, sharded_part
from bayescore_lab.bench.sharded_worker import layers
from bayescore_lab.bench.step import TimeUp


def test_layers_are_the_members_of_the_outermost_rows() -> None:
    assert [type(layer) for layer in layers(mlp(784, (5, 5), 10))] == [nn.Linear] * 3
    body = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)) for _ in range(2)))
    found = layers(nn.ModuleDict({"stem": nn.Linear(2, 2), "body": body}))
    assert [id(layer) for layer in found] == [id(layer) for layer in body]


def part(monkeypatch: pytest.MonkeyPatch, processes: int, peak: int) -> Any:
    """A part of made-up measurements, in which ours takes 1.2 times AdamW's time and `peak` bytes."""
    asked: list[dict[str, Any]] = []

    def told(processes: int, deadline: float, environment: Any = None, **request: Any) -> dict[str, Any]:
        asked.append({**request, "returning": environment is not None})
        methods, rounds = request["methods"], request["rounds"]
        seconds = {name: [1.2 if name == "proximal" else 1.0] * rounds for name in methods}
        peaks = [1, peak if methods == ["proximal"] else 100]
        return {"weights": 7, "seconds": seconds, "phases": {name: {} for name in methods}, "peaks": peaks}

    monkeypatch.setattr(sharded, "launch", told)
    names = ("adamw", "proximal")
    found = sharded_part(NETWORKS["mlp-small"], 4, processes, names, 3, float("inf"), lambda _: None)
    assert [each["returning"] for each in asked] == [True, True, False]
    assert [each["rounds"] for each in asked] == [2, 2, 3]
    return found


@pytest.mark.parametrize(
    ("processes", "peak", "words"),
    [
        (2, 104, "1.04 x adamw (<= 1.05: met)"),
        (2, 106, "1.06 x adamw (<= 1.05: missed)"),
        (1, 104, "1.04 x adamw (<= 1: missed)"),
    ],
)
def test_memory_is_that_of_the_largest_process_beside_its_bar(
    monkeypatch: pytest.MonkeyPatch, processes: int, peak: int, words: str
) -> None:
    found = part(monkeypatch, processes, peak)
    assert [row.numbers["peak"] for row in found.rows] == [100, peak]
    assert any(words in note for note in found.notes)


def test_times_are_compared_within_rounds_beside_their_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    (ratio,) = part(monkeypatch, 2, 100).ratios
    assert ratio.values == pytest.approx([1.2] * 3)
    assert (ratio.over, ratio.under, ratio.bar, ratio.holds) == ("proximal", "adamw", 1.1, False)


def test_processes_that_fail_or_take_too_long_are_ended() -> None:
    request = {"net": "mlp-small", "batch": 2, "methods": ["sgd"], "rounds": 1, "skip": 0}
    with pytest.raises(TimeUp):
        launch(2, time.monotonic() + 0.5, **request)
    with pytest.raises(RuntimeError, match="no network called"):
        launch(1, float("inf"), **{**request, "net": "nonesuch"})


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_command_measures_and_writes_its_files(processes: int, tmp_path: Path) -> None:
    words = ["sharded", "--net", "mlp-small", "--batch", "4", "--processes", str(processes), "--repeats", "2"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (found,) = json.loads((tmp_path / "record.json").read_text())["parts"]
    assert [row["arm"] for row in found["rows"]] == ["adamw", "proximal"]
    assert all(len(row["seconds"]) == 2 and row["numbers"]["peak"] > 1e8 for row in found["rows"])
    assert "47,710 weights" in (tmp_path / "table.md").read_text()
