"""kill -9 at any moment, then the same command again: nothing lost, nothing twice, nothing different."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

from toy_tools import finish, living, results, start_toy

KILLS = 10
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def count_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until(condition, reason):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, reason
        time.sleep(0.005)


def test_ten_kills_and_a_last_start_give_the_records_of_an_uninterrupted_run(tmp_path):
    code, _, errors = finish(start_toy("record", "slow", tmp_path / "whole"))
    assert code == 0, errors

    moments = random.Random(0)
    path = tmp_path / "killed" / "toy" / "records.jsonl"
    counts = [0]
    for growth in moments.sample([0, 0, 1, 1, 1, 2, 2, 2, 3, 3], KILLS):
        process = start_toy("record", "slow", tmp_path / "killed", **SILENT)
        if growth:  # while runs are executed and recorded
            target = counts[-1] + growth
            wait_until(lambda target=target: count_lines(path) >= target, "nothing was recorded")
            time.sleep(moments.uniform(0, 0.06))
        else:  # while processes start
            time.sleep(moments.uniform(0, 0.5))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda group=process.pid: not living(group), "a worker outlived its command")
        counts.append(count_lines(path))
    assert counts == sorted(counts), "a kill lost a record"
    assert len(set(counts)) > KILLS // 2, "the kills did not hit runs in progress"

    code, _, errors = finish(start_toy("record", "slow", tmp_path / "killed"))
    assert code == 0, errors
    whole = results(tmp_path / "whole" / "toy" / "records.jsonl")
    assert len(whole) == 36
    assert results(path) == whole


def test_a_kill_within_a_batch_of_fits_changes_no_digit(tmp_path):
    code, _, errors = finish(start_toy("record", "quick", tmp_path / "whole", "--toy", "toy-fits"))
    assert code == 0, errors

    path = tmp_path / "killed" / "toy-fits" / "records.jsonl"
    process = start_toy("record", "quick", tmp_path / "killed", "--toy", "toy-fits", **SILENT)
    wait_until(lambda: count_lines(path) == 7, "nothing was recorded")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not living(process.pid), "a worker outlived its command")
    assert count_lines(path) == 7, "the kill did not hit the batch"

    code, _, errors = finish(start_toy("record", "quick", tmp_path / "killed", "--toy", "toy-fits"))
    assert code == 0, errors
    whole = results(tmp_path / "whole" / "toy-fits" / "records.jsonl")
    assert len(whole) == 8
    assert results(path) == whole
