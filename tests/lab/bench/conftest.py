"""Small parts of a benchmark, made by hand."""

from __future__ import annotations

import pytest

from bayescore_lab.bench.results import Part, Ratio, Row


@pytest.fixture
def paired() -> Part:
    slow, fast = Row("easy", "theirs", (6.0, 8.0, 7.0)), Row("easy", "ours", (1.0, 1.0, 1.0), (9, 9, 9))
    ratios = (Ratio.between(slow, fast, bar=5.0), Ratio.between(slow, fast, bar=7.0, at_least=False))
    return Part("pairs", "ours against theirs", "pairs", {"threads": 1}, (slow, fast), ratios, ("a note",))


@pytest.fixture
def to_goal() -> Part:
    rows = (
        Row("hill", "late", (0.4, 0.2), (40, 20), (0.01, 0.02), "batch 2"),
        Row("hill", "lost", (None, 0.1), (99, None), (float("inf"), 0.5), note="missed in 1 of 2 runs"),
        Row("hill", "absent", note="not installed: pip install './lab[peers]'"),
        Row(
            "hill", "early", (0.001, 0.002), (10, 10), (0.03, 0.03), "learning rate 0.1", compile_seconds=3.0
        ),
    )
    ratios = (Ratio.between(rows[0], rows[3]), Ratio.between(rows[3], rows[3]))
    return Part("race", "to the top", "goal", {}, rows, ratios)
