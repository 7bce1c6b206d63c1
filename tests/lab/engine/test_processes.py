"""Real processes: one thread each, killed workers, two commands at once, Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial

import pytest
import toy_experiment
from toy_experiment import EXPERIMENT
from toy_tools import finish, living, read_lines, results, start_toy

from bayescore_lab.engine import plan, run_plans


def wait_for(condition, timeout=60.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_worker_computes_on_one_thread_and_a_dead_one_takes_only_its_own_runs_along(tmp_path):
    tally = run_plans([plan(replace(EXPERIMENT, execute=toy_experiment.count_threads), "kill")], tmp_path, 2)
    path = tmp_path / "toy" / "records.jsonl"
    records = read_lines(path)
    threads = [r["metrics"]["threads"] for r in records if r["status"]["state"] == "done"]
    assert set(threads) == {1}
    failed = {(f.method, f.seed) for f in tally.failures}
    assert failed == {("ADVI", 1), ("ADVI", 2), ("ADVI", 3)}  # the rest of one group of four
    assert all("killed by SIGKILL" in failure.error for failure in tally.failures)
    assert tally.done == len(threads) == 21


def test_what_cannot_be_sent_to_a_worker_is_refused_with_advice(tmp_path):
    hidden = replace(EXPERIMENT, execute=lambda batch: [])
    with pytest.raises(
        TypeError, match=r"cannot import what toy executes .*; make `execute` a function at the top"
    ):
        run_plans([plan(hidden)], tmp_path, 1)


def test_what_a_worker_cannot_import_fails_with_the_reason(tmp_path):
    broken = replace(EXPERIMENT, execute=partial(toy_experiment.execute_with, toy_experiment.Unloadable()))
    tally = run_plans([plan(broken, seeds=1)], tmp_path, 1)
    assert [failure.error for failure in tally.failures] == ["ImportError: not in this process"] * 3


def test_two_commands_on_one_folder_record_every_run_once(tmp_path):
    words = ("reproduce", "toy", "--profile", "slow", "--jobs", 1, "--out", tmp_path)
    first, second = start_toy(*words), start_toy(*words)
    for process in (first, second):
        code, _, errors = finish(process)
        assert code == 0, errors
        assert "36 of 36 runs done" in errors
    path = tmp_path / "toy" / "records.jsonl"
    assert len(results(path)) == len(read_lines(path)) == 36


def test_ctrl_c_keeps_what_is_recorded_and_says_how_to_continue(tmp_path):
    path = tmp_path / "toy" / "records.jsonl"
    process = start_toy("reproduce", "toy", "--profile", "slower", "--jobs", 1, "--out", tmp_path)
    wait_for(lambda: len(read_lines(path)) >= 3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone
    code, _, errors = finish(process)
    assert code == 130
    assert "Traceback" not in errors
    assert f"they are kept in {tmp_path}, and the same command continues there" in errors
    kept = results(path)
    assert 3 <= len(kept) < 36
    wait_for(lambda: not living(process.pid))
    assert kept.keys() < plan(EXPERIMENT, "slower").runs.keys()
