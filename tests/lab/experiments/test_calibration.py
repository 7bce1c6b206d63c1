"""calibration: its models simulate what they fit, and its rule reads the tests."""

from __future__ import annotations

import pytest
import torch

from bayescore.rng import generator
from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.posteriordb.calibration import EXPERIMENT, MODELS
from bayescore_lab.experiments.posteriordb.calibration_fits import SIMULATORS, execute


def record(seed: int, u: float) -> Record:
    status = {"state": "done", "ended": "ok"}
    metrics = {"u": {"a": u}, "u_resampled": {"a": u}, "grade": "GOOD"}
    config = {"model": "normal"}
    return Record("x", f"auto-{seed}", "auto", seed, config, metrics, {}, 10, 1.0, status, "", {}, {}, "")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_names_the_truth_and_is_finite_there(name: str) -> None:
    truth, target = SIMULATORS[name](generator(3))
    again = SIMULATORS[name](generator(3))[0]
    assert all(torch.equal(truth[key], again[key]) for key in truth)
    x = torch.zeros(5, target.dim, dtype=torch.float64)
    assert target.log_prob(x).isfinite().all()
    assert set(truth) <= set(target.to_posterior(x)["posterior"])


def test_uniform_ranks_pass_and_others_do_not() -> None:
    even = Records([record(i, (i + 0.5) / 100) for i in range(100)])
    low = Records([record(i, 0.5 + i / 200) for i in range(100)])
    rule = EXPERIMENT.claims[0].rule
    assert rule.judge(even).verdict == "reproduced"
    assert rule.judge(low).verdict == "not reproduced here"
    assert "too low" in rule.judge(low).sentence
    assert rule.judge(Records([])).verdict is None
    (table,) = EXPERIMENT.tables(even)
    assert [row[2] for row in table.rows] == ["q", "resampled"]


def test_a_run_places_the_truth_among_draws() -> None:
    (outcome,) = execute([Run("auto", 0, {"model": "normal"})])
    assert set(outcome.metrics["u"]) == {"mu", "sigma"}
    assert all(0 <= value <= 1 for value in outcome.metrics["u_resampled"].values())
