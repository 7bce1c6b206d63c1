"""The progress bar: for people at a terminal, silent everywhere else."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading

import pytest

import bayescore as bs
from bayescore.targets import Gaussian
from cases import family


def run(**options: object) -> bs.Fit:
    return bs.fit(Gaussian.random(3), family("full"), bs.methods.GSM(), steps=60, **options)


def test_a_run_is_quiet_when_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    run()
    out, err = capfd.readouterr()
    assert out == ""
    assert err == ""


def test_progress_can_be_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    run(progress=True)
    out, err = capfd.readouterr()
    assert out == "", "standard output is for results"
    assert "60/60" in err


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, **options: object) -> str:
    """What a run writes to standard error when that is a terminal."""
    ours, theirs = pty.openpty()
    written = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(ours, 4096):
                written.extend(chunk)
        except OSError:
            pass  # the other end was closed

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        run(**options)
    reader.join(timeout=10)
    os.close(ours)
    monkeypatch.undo()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode())


def test_a_terminal_shows_steps_loss_score_calls_and_the_time_that_remains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = at_a_terminal(monkeypatch)
    assert "/60" in shown
    assert re.search(r"loss -?[\d.]+", shown)
    assert re.search(r"score calls \d+", shown)
    assert re.search(r"\d:\d\d", shown), "the time that remains"


def test_a_terminal_can_be_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at_a_terminal(monkeypatch, progress=False) == ""


def test_the_bar_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(progress=True).family.flat().equal(run(progress=False).family.flat())
