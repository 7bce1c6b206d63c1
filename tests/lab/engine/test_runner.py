"""Resuming, failing and recording, without processes."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace

import pytest
from toy_experiment import EXPERIMENT, TWIN, execute
from toy_tools import read_lines, results

from bayescore_lab.engine import Profile, Run, RunOutcome, plan, run_plans
from bayescore_lab.engine import records as records_module
from bayescore_lab.engine.workers import Task, perform

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "toy" / "records.jsonl"


def calls_of(experiment):
    """The experiment, and a list that fills with the batches it is given."""
    batches: list[list[tuple[str, int]]] = []

    def spy(batch):
        batches.append([(run.method, run.seed) for run in batch])
        return execute(batch)

    return replace(experiment, execute=spy), batches


def test_a_second_start_adds_nothing(tmp_path, path):
    grid = plan(EXPERIMENT)
    assert run_plans([grid], tmp_path, 1).done == 24
    before = path.read_bytes()
    tally = run_plans([grid], tmp_path, 1)
    assert (tally.recorded, tally.done, tally.total) == (24, 0, 24)
    assert path.read_bytes() == before


def test_a_resume_executes_each_group_with_a_missing_run_whole_and_records_only_what_is_missing(
    tmp_path, path
):
    run_plans([plan(EXPERIMENT)], tmp_path, 1)
    whole = results(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))  # a group of four, and one run of the next
    watched, batches = calls_of(EXPERIMENT)
    tally = run_plans([plan(watched)], tmp_path, 1)
    assert (tally.recorded, tally.done, tally.finished) == (5, 19, 24)
    assert [len(batch) for batch in batches] == [4] * 5
    assert path.read_bytes().splitlines(keepends=True)[:5] == lines[:5]
    assert len(results(path)) == len(read_lines(path)) == 24
    assert results(path) == whole


def test_a_recorded_run_that_fails_with_its_group_stays_as_it_was(tmp_path, path):
    run_plans([plan(EXPERIMENT, seeds=4)], tmp_path, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    broken = replace(EXPERIMENT, execute=lambda batch: 1 / 0)
    tally = run_plans([plan(broken, seeds=4)], tmp_path, 1)
    assert (tally.recorded, tally.done, len(tally.failures)) == (11, 0, 1)
    assert path.read_bytes().splitlines(keepends=True)[:-1] == lines[:-1]


def test_the_dearest_groups_run_first_and_ties_keep_their_order(tmp_path):
    watched, batches = calls_of(EXPERIMENT)
    run_plans([plan(watched)], tmp_path, 1)
    firsts = [batch[0] for batch in batches]
    assert firsts == [("ADVI", 0), ("ADVI", 4), ("Ours", 0), ("Ours", 4), ("GSM", 0), ("GSM", 4)]


def test_changed_settings_are_new_runs_beside_the_old(tmp_path, path):
    run_plans([plan(EXPERIMENT, seeds=2)], tmp_path, 1)
    profiles = {**EXPERIMENT.profiles, "quick": Profile(2, 1, {"steps": 61})}
    changed = plan(replace(EXPERIMENT, profiles=profiles))
    assert run_plans([changed], tmp_path, 1).done == 6
    stored = records_module.RecordStore(tmp_path / "toy").read()
    assert len(stored) == 12
    assert {record.config["steps"] for record in changed.choose(stored)} == {61}
    assert {record.config["steps"] for record in plan(EXPERIMENT, seeds=2).choose(stored)} == {60}


def test_a_failing_run_is_recorded_and_the_others_of_its_group_go_on(tmp_path, path):
    grid = plan(EXPERIMENT, "raise")
    tally = run_plans([grid], tmp_path, 1)
    assert tally.done == 23
    (failure,) = tally.failures
    assert (failure.method, failure.seed) == ("ADVI", 1)
    (record,) = [r for r in read_lines(path) if r["status"]["state"] == "failed"]
    assert record["status"]["error"] == "ArithmeticError: the walk went | astray"
    assert record["status"]["where"].startswith("toy_experiment.py:")
    assert record["status"]["where"].endswith("in execute")


def test_a_failed_run_is_tried_again_at_the_next_start(tmp_path, path):
    grid = plan(EXPERIMENT, "raise")
    run_plans([grid], tmp_path, 1)
    tally = run_plans([grid], tmp_path, 1)
    assert (tally.recorded, tally.done, len(tally.failures)) == (23, 0, 1)
    assert [r["status"]["state"] for r in read_lines(path)].count("failed") == 2


def test_what_another_process_finished_meanwhile_is_not_executed_again(tmp_path, path):
    watched, batches = calls_of(EXPERIMENT)

    def meddle(tally):
        if tally.done == 4:
            run_plans([plan(EXPERIMENT)], tmp_path, 1)

    tally = run_plans([plan(watched)], tmp_path, 1, meddle)
    assert len(batches) == 1
    assert tally.finished == 24
    assert len(results(path)) == len(read_lines(path)) == 24


def test_several_experiments_share_a_start_and_keep_their_folders_apart(tmp_path):
    tally = run_plans([plan(EXPERIMENT, seeds=1), plan(TWIN, seeds=2)], tmp_path, 1)
    assert tally.total == 9
    assert len(read_lines(tmp_path / "toy" / "records.jsonl")) == 3
    assert len(read_lines(tmp_path / "toy-twin" / "records.jsonl")) == 6


def test_a_full_disk_stops_the_start_with_a_sentence_and_the_next_one_continues(tmp_path, path, monkeypatch):
    write, left = records_module.os.write, [5]

    def full(file, data):
        if not left[0]:
            return write(file, data[:10])
        left[0] -= 1
        return write(file, data)

    monkeypatch.setattr(records_module.os, "write", full)
    with pytest.raises(OSError, match=r"the disk is full; the 5 finished runs are safe\. Free") as caught:
        run_plans([plan(EXPERIMENT)], tmp_path, 1)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.setattr(records_module.os, "write", write)
    assert len(results(path)) == 5
    assert run_plans([plan(EXPERIMENT)], tmp_path, 1).recorded == 5
    assert len(results(path)) == 24


def test_a_corrupt_line_is_reported_and_its_run_repeated(tmp_path, path, caplog):
    run_plans([plan(EXPERIMENT)], tmp_path, 1)
    whole = results(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[6] = b"?\n"
    path.write_bytes(b"".join(lines))
    with caplog.at_level(logging.WARNING):
        tally = run_plans([plan(EXPERIMENT)], tmp_path, 1)
    assert f"{path}: line 7 is corrupt and is left out (Expecting value" in caplog.text
    assert tally.done == 1
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(keepends=True) if line != b"?\n"))
    assert results(path) == whole


def test_a_folder_that_cannot_be_written_is_refused_before_any_run(tmp_path):
    (tmp_path / "file").write_text("in the way")
    watched, batches = calls_of(EXPERIMENT)
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"cannot write to the folder \(.*\); choose another with --out"):
            run_plans([plan(watched)], out, 1)
    assert batches == []


@pytest.mark.parametrize("jobs", [0, -1, 10**20])
def test_the_number_of_jobs_is_checked(tmp_path, jobs):
    with pytest.raises(
        ValueError, match=rf"the number of jobs must be from 1 to \d+, 8 for each core; got {jobs}"
    ):
        run_plans([plan(EXPERIMENT)], tmp_path, jobs)


def test_the_tally_estimates_the_time_that_is_left(tmp_path):
    seen = []
    run_plans([plan(EXPERIMENT)], tmp_path, 1, seen.append)
    assert seen[0].left is None
    assert all(tally.left >= 0 for tally in seen[1:])
    assert seen[-1].left == 0.0


A, B = Run("Ours", 0, {"steps": 5}), Run("Ours", 1, {"steps": 5})


def outcomes(execute, *runs):
    grid = replace(EXPERIMENT, runs=lambda settings, seeds, methods: runs, execute=execute)
    fields = perform(Task("toy", execute, plan(grid).runs))
    return [entry["status"].get("error", "ok") for _, entry in fields]


def test_outcomes_that_do_not_fit_the_runs_are_failures_with_reasons():
    done = RunOutcome(A, {}, 1)
    assert outcomes(lambda batch: [done], A, B) == [
        "ok",
        "RuntimeError: execute() ended without an outcome for this run",
    ]
    (first, second) = outcomes(lambda batch: [done, done], A, B)
    assert first == "ok"
    assert second.startswith("ValueError: execute() gave an outcome for Run(")
    (ragged,) = outcomes(lambda batch: [RunOutcome(A, {}, 1, {"x": [1], "y": [1, 2]})], A)
    assert "the lists of a trace must have one length" in ragged
    (unwritable,) = outcomes(lambda batch: [RunOutcome(A, {"f": print}, 1)], A)
    assert "metrics['f'] is a builtin_function_or_method" in unwritable


def test_an_outcome_may_state_its_share_of_a_batch():
    timed = perform(Task("toy", lambda batch: [RunOutcome(A, {}, 1, seconds=2.5)], plan_of(A)))
    assert next(timed)[1]["seconds"] == 2.5


def plan_of(*runs):
    return plan(replace(EXPERIMENT, runs=lambda settings, seeds, methods: runs)).runs


def test_a_turn_is_over_before_the_next_begins_whatever_runs_cost(tmp_path):
    turns = {"Ours": 0, "ADVI": 1, "GSM": 0}

    def runs(settings, seeds, methods):
        return [
            replace(run, group="", turn=turns[run.method], cost=2.0 if run.method == "GSM" else 1.0)
            for run in EXPERIMENT.runs(settings, seeds, methods)
        ]

    watched, batches = calls_of(replace(EXPERIMENT, runs=runs))
    run_plans([plan(watched, seeds=2)], tmp_path, 1)
    assert [run for (run,) in batches] == [
        ("GSM", 0), ("GSM", 1), ("Ours", 0), ("Ours", 1), ("ADVI", 0), ("ADVI", 1),
    ]  # fmt: skip
