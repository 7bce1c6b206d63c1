"""Turns, ratios and their bars."""

from __future__ import annotations

import pytest
import torch

from bayescore_lab.bench import timing
from bayescore_lab.bench.results import Ratio, Row
from bayescore_lab.bench.timing import one_thread, rounds
from bayescore_lab.engine.statistics import median_range


def test_arms_take_turns_and_the_order_is_reversed_every_round():
    calls, notices = [], []
    arms = {name: lambda i, name=name: calls.append((name, i)) or i for name in "abc"}
    answers = rounds(arms, 2, notices.append)
    assert calls == [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("b", 1), ("a", 1)]
    assert answers == {"a": [0, 1], "b": [0, 1], "c": [0, 1]}
    assert notices[0] == "round 1 of 2: a"


def test_a_ratio_compares_within_rounds_only():
    """Both arms were twice as slow in the second round: every ratio is 3, and so is their median."""
    ratio = Ratio.between(Row("p", "slow", (3.0, 6.0)), Row("p", "fast", (1.0, 2.0)), bar=3.0)
    assert ratio.values == (3.0, 3.0)
    assert ratio.spread == median_range([3.0, 3.0])
    assert ratio.holds


@pytest.mark.parametrize(
    ("bar", "at_least", "holds"), [(4.0, True, False), (4.0, False, True), (None, True, None)]
)
def test_a_bar_is_a_least_or_a_largest_value(bar, at_least, holds):
    ratio = Ratio.between(Row("p", "a", (3.0,)), Row("p", "b", (1.0,)), bar=bar, at_least=at_least)
    assert ratio.holds is holds


def test_a_row_with_a_missed_goal_has_no_time():
    assert Row("p", "a", (1.0, None)).spread is None
    assert Row("p", "a").spread is None
    assert Row("p", "a", (1.0, 3.0, 2.0)).spread == median_range([1.0, 2.0, 3.0])


@pytest.mark.parametrize(("cpu", "busy"), [(9.5, False), (3.0, True)])
def test_a_busy_machine_is_mentioned(monkeypatch, cpu, busy):
    now = [0.0, 0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "process_time", lambda: now[1])
    share = timing.CoreShare()
    now[:] = 10.0, cpu
    assert share.value == cpu / 10
    assert any("30% of a core" in note for note in share.notes()) is busy


def test_one_thread_is_given_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
