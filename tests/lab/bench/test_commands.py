"""`bayescore bench fit`, and the files it writes."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bayescore_lab.bench import commands
from bayescore_lab.bench.commands import app
from bayescore_lab.bench.entries import OURS
from bayescore_lab.bench.figures import draw_parts
from bayescore_lab.bench.results import record
from bayescore_lab.bench.tables import COLUMNS, part_table, write_results
from bayescore_lab.engine.wording import short_time


def strictly(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_quick_run_prints_three_tables_and_writes_valid_records(tmp_path):
    out, tables, plot = (tmp_path / f"bench{suffix}" for suffix in (".json", ".md", ".png"))
    words = ["fit", "--quick", "--no-peers", "--repeats", "2", "--plot", str(plot)]
    words += ["--out", str(out), "--out", str(tables)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for text in ("inner loop:", "batch:", "same ELBO:", "WhitenedDescent", "ProximalDescent", ">= 5", "<= 4"):
        assert text in result.output
    found = json.loads(out.read_text(), parse_constant=strictly)
    assert {"benchmark", "config", "commit", "versions", "machine", "parts"} <= found.keys()
    assert found["config"] == {"repeats": 2, "peers": False, "quick": True}
    assert {"bayescore", "torch"} <= found["versions"].keys()
    assert [part["name"] for part in found["parts"]] == ["inner loop", "batch", "same ELBO"]
    inner, batch, goal = found["parts"]
    for part in (inner, batch):
        assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 for row in part["rows"])
        assert all(len(ratio["values"]) == 2 for ratio in part["ratios"])
    assert [ratio["bar"] for ratio in inner["ratios"] + batch["ratios"]] == [5.0, None, 4.0, 4.0]
    assert {row["arm"] for row in goal["rows"]} == {entry.name for entry in OURS}
    assert all(len(row["seconds"]) == 2 and row["trials"] for row in goal["rows"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    text = tables.read_text()
    assert found["commit"] in text
    assert [line for line in text.splitlines() if line.startswith("**")] == [
        f"**{part['name']}: {part['title']}**" for part in found["parts"]
    ]


def test_an_interrupt_keeps_what_was_measured(monkeypatch, tmp_path, paired):
    def measure(*arguments):
        yield paired
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_measure_fits", measure)
    out = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["fit", "--out", str(out)])
    assert result.exit_code == 130
    assert [part["name"] for part in json.loads(out.read_text())["parts"]] == ["pairs"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--out", "records.txt", "records are written to .json or .csv or .md"),
        ("--plot", "plot.pdf", ".png files"),
    ],
)
def test_a_file_that_could_not_be_written_is_refused_before_anything_runs(option, value, message):
    result = CliRunner().invoke(app, ["fit", option, value], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert message in result.output
    assert value in result.output


def test_csv_has_one_line_per_repeat_and_leaves_empty_what_was_not_measured(tmp_path, paired, to_goal):
    path = tmp_path / "bench.csv"
    write_results(path, record("fit", {}, [paired, to_goal]), [paired, to_goal])
    lines = list(csv.DictReader(io.StringIO(path.read_text())))
    assert tuple(lines[0]) == COLUMNS
    assert [line["seconds"] for line in lines if line["arm"] == "theirs"] == ["6.0", "8.0", "7.0"]
    lost = [line for line in lines if line["arm"] == "lost"]
    assert [(line["seconds"], line["score_calls"], line["gap"]) for line in lost] == [
        ("", "99", ""),
        ("0.1", "", "0.5"),
    ]
    (absent,) = (line for line in lines if line["arm"] == "absent")
    assert (absent["repeat"], absent["note"]) == ("", "not installed: pip install './lab[peers]'")


def shown(part) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(part_table(part).terminal())
    return console.export_text()


def test_table_of_pairs_shows_the_ratio_its_range_and_its_bar(paired):
    text = shown(paired)
    assert "7 [6, 8]" in text
    assert ">= 5: met" in text
    assert "<= 7: met" in text
    assert "7 s [6 s, 8 s]" in text
    assert "a note" in text


def test_table_of_times_to_a_goal_is_sorted_and_says_who_did_not_arrive(to_goal):
    lines = shown(to_goal).splitlines()
    order = [name for line in lines for name in ("early", "late", "lost", "absent") if name in line]
    assert order == ["early", "late", "lost", "absent"]
    (lost,) = (line for line in lines if "lost" in line)
    assert "missed in 1 of 2 runs" in lost
    (early,) = (line for line in lines if "early" in line)
    assert "1.5 ms [1 ms, 2 ms]" in early
    assert "3 s" in early


def test_markdown_says_what_the_terminal_shows(tmp_path, paired, to_goal):
    path = tmp_path / "bench.md"
    write_results(path, record("fit", {}, [paired, to_goal]), [paired, to_goal])
    text = path.read_text()
    for words in ("7 [6, 8]", ">= 5: met", "missed in 1 of 2 runs", "1.5 ms [1 ms, 2 ms]", "a note"):
        assert words in text


def test_picture_is_drawn_with_missing_arms_too(tmp_path, paired, to_goal):
    path = tmp_path / "bench.png"
    draw_parts(path, [paired, to_goal], frozenset({"early"}))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00045, "0.45 ms"), (0.012, "12 ms"), (1.26, "1.3 s"), (130.0, "130 s")]
)
def test_durations_are_short(seconds, text):
    assert short_time(seconds) == text
