"""The commands as a user types them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
import typer
from toy_command import app
from toy_tools import finish, read_lines, start_toy
from typer.testing import CliRunner

from bayescore import io as files_module
from bayescore_lab import commands
from bayescore_lab.engine import find_experiments
from bayescore_lab.engine import records as records_module


@pytest.fixture
def command(in_process, tmp_path, monkeypatch):
    """Run the toy command in this process; the output folder is `results` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "300"})


def test_reproduce_runs_draws_and_judges_in_a_process_of_its_own(tmp_path):
    code, output, errors = finish(start_toy("reproduce", "toy", "--jobs", 2, "--out", tmp_path))
    assert code == 0, errors
    assert "toy: profile quick, 24 runs, 8 seeds, about 0.1 minutes from scratch on two cores" in errors
    assert "24 of 24 runs done" in errors
    assert "0.012" in output
    assert "Paper: Table 3." in " ".join(output.split())
    assert "reproduced  Ours ends below ADVI. (Sec. 5.1)" in output
    assert "Rule: Over the seeds that both arms ran" in output
    assert (tmp_path / "toy" / "quick" / "figure.svg").exists()


def test_list_shows_id_place_purpose_and_minutes(command):
    result = command("reproduce", "list")
    assert result.exit_code == 0
    for piece in ("toy-twin", "Fig. 1 top, Sec. 5.1", "Walks with a level", "quick 0.1, paper 0.2"):
        assert piece in result.output


def test_a_second_start_only_draws(command, tmp_path):
    assert command("reproduce", "toy", "--seeds", 2).exit_code == 0
    again = command("reproduce", "toy", "--seeds", 2)
    assert again.exit_code == 0
    assert len(read_lines(tmp_path / "results" / "toy" / "records.jsonl")) == 6


def test_methods_and_seeds_choose_a_part_of_the_grid(command, tmp_path):
    result = command("reproduce", "toy", "toy", "--methods", "GSM, Ours", "--seeds", 3)
    assert result.exit_code == 0
    lines = read_lines(tmp_path / "results" / "toy" / "records.jsonl")
    assert {(line["method"], line["seed"]) for line in lines} == {
        (m, s) for m in ("GSM", "Ours") for s in range(3)
    }
    assert "no verdict" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toi"], "there is no experiment called 'toi'; did you mean 'toy'?"),
        (["toy", "--profile", "papr"], "did you mean 'paper'?"),
        (["toy", "--methods", "ours"], "did you mean 'Ours'?"),
        (["toy", "--jobs", 0], "the number of jobs must be from 1 to "),
        (["toy", "--jobs", 10**20], "8 for each core; got 100000000000000000000"),
        (["toy", "--seeds", 0], "the number of seeds must be from 1 to 10,000; got 0"),
        (["toy", "--seeds", 10**20 - 1], "the number of seeds must be from 1 to 10,000; got 9999999999"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_made(command, tmp_path, words, message):
    result = command("reproduce", *words)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_records_that_cannot_be_appended_to_are_refused_before_the_first_run(command, tmp_path, kind):
    path, precious = tmp_path / "results" / "toy" / "records.jsonl", tmp_path / "precious"
    path.parent.mkdir(parents=True)
    precious.write_bytes(b"a\nprecious\n")
    {"link": lambda: path.symlink_to(precious), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    result = command("reproduce", "toy")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "records.jsonl: is a " in result.output
    assert "runs done" not in result.output
    assert precious.read_bytes() == b"a\nprecious\n"


def test_damaged_records_are_repeated_and_what_cannot_be_drawn_is_a_sentence(command, tmp_path):
    assert command("reproduce", "toy", "--seeds", 2).exit_code == 0
    path = tmp_path / "results" / "toy" / "records.jsonl"
    first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join(["[" * 100_000, second.replace('"seed":', '"sed":'), *rest]) + "\n")
    assert command("reproduce", "toy", "--seeds", 2).exit_code == 0
    record = json.loads(first) | {"metrics": {"forward_kl": "low"}}
    path.write_text("\n".join([json.dumps(record), second, *rest]) + "\n")
    result = command("reproduce", "toy", "--seeds", 2)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "records.jsonl cannot be drawn (ValueError: forward_kl of" in result.output


def test_failing_runs_are_named_and_make_the_exit_code_one(command, tmp_path):
    result = command("reproduce", "toy", "--profile", "raise")
    assert result.exit_code == 1
    assert "23 of 24 runs done, 1 failing" in result.output
    assert "1 run failed and will be tried again by the same command:" in result.output
    assert "toy, ADVI, seed 1: ArithmeticError: the walk went | astray" in result.output
    assert (tmp_path / "results" / "toy" / "raise" / "figure.png").exists()


def test_where_every_run_fails_there_is_no_figure_and_no_traceback(command, tmp_path, monkeypatch):
    monkeypatch.setattr("toy_experiment.walk", lambda run: 1 / 0)
    result = command("reproduce", "toy", "--seeds", 1)
    assert result.exit_code == 1
    assert "toy has no finished run to draw" in result.output
    assert "3 runs failed" in result.output


def test_a_folder_that_cannot_be_written_is_said_before_the_first_run(command, tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = command("reproduce", "toy", "--out", "file/below")
    assert result.exit_code == 1
    assert "file/below/toy: cannot write to the folder" in result.output
    assert "runs done" not in result.output


@pytest.mark.parametrize("module", [records_module, files_module])
def test_a_full_disk_is_a_sentence_and_not_a_traceback(command, monkeypatch, module):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write" if module is records_module else "replace", full)
    result = command("reproduce", "toy", "--seeds", 1)
    monkeypatch.undo()
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    expected = {
        records_module: "the disk is full; the 0 finished runs are safe",
        files_module: "the records are safe",
    }
    assert expected[module] in result.output


def test_missing_extras_are_named_before_the_first_run(command, monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    result = command("reproduce", "toy")
    assert result.exit_code == 1
    assert "matplotlib and scipy must be installed: pip install ./lab" in result.output


def test_report_without_results_says_what_to_do_first(command):
    result = command("report")
    assert result.exit_code == 1
    assert (
        "nothing was drawn in results yet; run `bayescore reproduce ID --out results` first" in result.output
    )


def test_report_names_a_summary_that_it_cannot_read(command, tmp_path):
    (tmp_path / "results" / "toy").mkdir(parents=True)
    (tmp_path / "results" / "toy" / "summary.json").write_text("{")
    result = command("report")
    assert result.exit_code == 1
    assert "summary.json is not a summary" in result.output


def test_the_library_offers_the_same_commands_for_its_own_experiments():
    library = typer.Typer()
    commands.add_commands(library)
    assert CliRunner().invoke(library, ["reproduce", "list"]).exit_code == 0
    assert all(experiment.id == name for name, experiment in find_experiments().items())


WITHOUT_TORCH = """
import sys
import typer
from bayescore_lab.commands import add_commands

app = typer.Typer()
add_commands(app)
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    slow = {"torch", "matplotlib", "scipy"} & set(sys.modules)
    print("imported:", *sorted(slow), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", ["reproduce list", "reproduce --help", "bench --help", "bench step --help", "report --help"]
)
def test_lists_and_help_do_not_wait_for_torch(words):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words.split()], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "imported:\n")
    assert len(done.stdout) > 200
