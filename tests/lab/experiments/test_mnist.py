"""The rules and figures of the MNIST experiment, on records whose verdict is plain to see."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.networks import mnist
from bayescore_lab.experiments.networks.mnist import GUESS
from bayescore_lab.experiments.networks.mnist_arms import ARMS
from bayescore_lab.experiments.networks.mnist_results import (
    Measure,
    at_most,
    lower_mean,
    not_worse,
    percent_figure,
    similar,
)


def arm(method: str, values: Sequence[float], percent: float = 1.0) -> list[Record]:
    """A run per value; one that is not finite has diverged and has no metrics."""
    status = {"state": "done", "ended": "ok"}
    return [
        Record("x", f"{method} {percent} {seed}", method, seed, {"percent": percent},
               {"nll": value} if math.isfinite(value) else {}, {}, 1, 1.0, status, "", {}, {}, "")
        for seed, value in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ([2.0, 2.1, 2.2], "reproduced"),
        ([0.2, 0.1, 0.3], "not reproduced here"),
        ([0.2, 2.1, 1.2], "partly"),
        ([2.0], None),
    ],
)
def test_lower_mean(theirs: list[float], verdict: str | None):
    records = Records(arm("ours", [1.0, 1.1, 1.15]) + arm("theirs", theirs))
    assert lower_mean("nll", "ours", "theirs", 1.0).judge(records).verdict == verdict
    assert lower_mean("nll", "ours", "theirs", 5.0).judge(records).verdict is None


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ([1.01, 1.09, 1.15], "reproduced"),
        ([2.0, 2.1, 2.2], "not reproduced here"),
        ([0.9, 1.1, 1.35], "partly"),
        ([1.0, 1.1, math.inf], "not reproduced here"),
        ([1.0], None),
    ],
)
def test_similar(theirs: list[float], verdict: str | None):
    records = Records(arm("ours", [1.0, 1.1, 1.15]) + arm("theirs", theirs))
    assert similar("nll", "ours", "theirs", 1.0, 0.1).judge(records).verdict == verdict


GOOD, BAD = [2.0, 2.1, 2.2], [0.2, 0.1, 0.3]


@pytest.mark.parametrize(
    ("at_one", "at_five", "verdict"),
    [
        (GOOD, GOOD, "reproduced"),
        (GOOD, BAD, "partly"),
        (BAD, BAD, "not reproduced here"),
        ([0.2, 2.1, 1.2], GOOD, "reproduced"),  # level: no worse
        ([math.inf] * 3, GOOD, "reproduced"),  # who diverges beats nobody
        (GOOD, [2.0], None),
    ],
)
def test_not_worse(at_one: list[float], at_five: list[float], verdict: str | None):
    records = Records(
        [record for percent in (1.0, 5.0) for record in arm("ours", [1.0, 1.1, 1.15], percent)]
        + [record for percent in (1.0, 5.0) for record in arm("other", GOOD, percent)]
        + arm("theirs", at_one)
        + arm("theirs", at_five, 5.0)
    )
    judgement = not_worse("nll", "ours", ["other", "theirs"], [1.0, 5.0], GUESS).judge(records)
    assert judgement.verdict == verdict
    if verdict in ("partly", "not reproduced here"):
        assert "at 5 % than theirs by 0.883" in judgement.sentence
        assert "other" not in judgement.sentence


@pytest.mark.parametrize("values", [[math.inf] * 3, [70.0, 2.9, 1.9]])
def test_one_that_diverges_or_is_worse_than_a_guess_is_worse(values: list[float]):
    records = Records(arm("ours", values) + arm("theirs", GOOD))
    assert not_worse("nll", "ours", ["theirs"], [1.0], GUESS).judge(records).verdict == "not reproduced here"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.019, 0.02], "reproduced"),
        ([0.019, 0.021], "partly"),
        ([0.021], "not reproduced here"),
        ([math.inf], "not reproduced here"),
        ([], None),
    ],
)
def test_at_most(values: list[float], verdict: str | None):
    rule = at_most("nll", "ours", 99.0, 0.02)
    assert rule.judge(Records(arm("ours", values, 99.0) + arm("theirs", [0.0], 99.0))).verdict == verdict


def test_the_single_networks_are_all_arms_that_compete():
    apart = {"Ensemble x5", "Ours, exact", "Ours, gradient"}
    shown = {name for name in ARMS if name.endswith(("default settings", "no decay", "as printed"))}
    assert set(mnist.SINGLE) == set(ARMS) - apart - shown


RELATIVE = Measure("nll", "NLL / the plain network's", relative=True, guess=GUESS)


def test_figure_divides_seed_by_seed():
    records = Records(arm("Plain", [1.0, 0.5]) + arm("ADVI", [2.0, 2.0]))
    (panel,) = percent_figure(records, [RELATIVE], title="x").drawing.axes
    heights = {c.get_label(): float(c.lines[0].get_ydata()[0]) for c in panel.containers}
    assert heights == {"Plain": 1.0, "ADVI": 3.0}


def test_what_is_worse_than_a_guess_does_not_set_the_scale():
    records = Records(arm("Plain", [1.0, 0.5]) + arm("ADVI", [30.0, 34.0]))
    figure = percent_figure(records, [RELATIVE], title="x")
    assert figure.drawing.axes[0].get_ylim()[1] < 2
    assert "ADVI at 1 % (32)" in figure.note


@pytest.mark.parametrize("values", [[math.inf, 1.0], []])
def test_figure_without_what_it_divides_by(values: list[float]):
    records = Records(arm("ADVI", [1.0, 1.0]) + arm("Plain", values))
    percent_figure(records, [RELATIVE, Measure("nll", "NLL")], title="x")
