"""The example with Optuna: trials that it chooses are runs, recorded once, on any pool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_tools import read_lines, results

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune_with_optuna.py"


def tune(trials: int, out: Path, *more: str) -> str:
    command = [sys.executable, str(EXAMPLE), "--trials", str(trials), "--jobs", "2", "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_trials_that_optuna_chooses_are_recorded_once_and_are_the_same_on_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    if not os.environ.get("BAYESCORE_DATA"):
        pytest.skip("images of MNIST are read from BAYESCORE_DATA")
    here = tmp_path / "local" / "mnist-tuning" / "records.jsonl"
    tune(4, tmp_path / "local")
    first = read_lines(here)
    assert len(first) == 4
    told = tune(6, tmp_path / "local")
    assert read_lines(here)[:4] == first
    assert len(results(here)) == len(read_lines(here)) == 6
    assert tune(6, tmp_path / "local") == told
    assert len(read_lines(here)) == 6
    pytest.importorskip("ray")
    assert tune(6, tmp_path / "ray", "--engine", "ray") == told
    assert results(tmp_path / "ray" / "mnist-tuning" / "records.jsonl") == results(here)
