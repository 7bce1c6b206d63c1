"""What the tests of the lab share: the path to the toy experiment, and a pool without processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
if str(HERE) not in sys.path:  # worker processes inherit the path and import the toy by its name
    sys.path.insert(0, str(HERE))

from bayescore_lab.engine import plan, runner  # noqa: E402
from bayescore_lab.engine.workers import Event, perform  # noqa: E402


def work_here(next_task: Callable[[], Any], count: int) -> Iterator[Event]:
    """Execute tasks in this process."""
    while (task := next_task()) is not None:
        for run, fields in perform(task):
            yield Event(task, run, fields)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about processes."""
    monkeypatch.setattr(runner, "work", work_here)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of the toy's paper profile; copy them before changing anything."""
    from toy_experiment import EXPERIMENT

    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "work", work_here)
        runner.run_plans([plan(EXPERIMENT, "paper")], folder, 1)
    return folder
