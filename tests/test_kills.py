"""A few kills of every job that writes files; `make kill-test` makes 200."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kills import JOBS, kill_at_random


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_what_was_killed_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    found = kill_at_random(name, 3, random.Random(0), tmp_path / "scratch", lambda _: None)
    assert found["kills"] == 3
