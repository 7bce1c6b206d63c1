"""posteriordb-more: the errors it measures, the JAX densities it compares on, its tables and its verdicts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from bayescore.families import FullGaussian
from bayescore.targets.posterior_db import Folder, posteriordb
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.posteriordb.more import EXPERIMENT, IN_PYMC, POSTERIORS
from bayescore_lab.experiments.posteriordb.more_fits import errors

DATA = os.environ.get("BAYESCORE_DATA", "")
with_data = pytest.mark.skipif(
    not os.path.isdir(os.path.join(DATA, "posteriordb")), reason="needs $BAYESCORE_DATA/posteriordb"
)
with_jax = pytest.mark.skipif(find_spec("jax") is None, reason="needs jax: pip install './lab[peers]'")

# values of all JAX densities in one process, since JAX's 64-bit switch is global
JAX_VALUES = """
import json, sys
from bayescore_lab.bench.posteriordb_peers import answer
print(json.dumps([answer(request)["values"] for request in json.load(sys.stdin)]))
"""


def record(method: str, posterior: str, seed: int = 0, ended: str = "ok", **metrics: Any) -> Record:
    status = {"state": "done", "ended": ended}
    config = {"posterior": posterior}
    name = f"{method}-{posterior}-{seed}"
    return Record("x", name, method, seed, config, metrics, {}, 10, 1.0, status, "", {}, {}, "")


def both(ours: float, theirs: float, peer: str = "NumPyro", posterior: str = "a") -> list[Record]:
    def parts(error: float) -> dict[str, float]:
        return {"error": error, "mean_error": error / 2, "sd_error": error / 2, "khat": 0.1}

    return [record("auto", posterior, **parts(ours)), record(peer, posterior, **parts(theirs))]


def test_the_grid_has_pymc_on_its_four_posteriors_only() -> None:
    grid = EXPERIMENT.runs({}, range(3), EXPERIMENT.methods)
    assert {run.config["posterior"] for run in grid} == set(POSTERIORS)
    assert {run.config["posterior"] for run in grid if run.method == "PyMC"} == set(IN_PYMC)
    assert len(grid) == 3 * (12 * 7 + 4 * 2)


def test_being_better_somewhere_and_worse_nowhere_reproduces_the_claim() -> None:
    records = Records(both(0.02, 0.5) + both(0.02, 0.01, posterior="b"))
    judgement = EXPERIMENT.claims[0].rule.judge(records)
    assert judgement.verdict == "reproduced"
    assert judgement.numbers == {"better": 1, "ties": 1, "worse": 0, "lower": 1}


def test_being_worse_as_often_as_better_does_not_reproduce_the_claim() -> None:
    records = Records(both(0.02, 0.5) + both(0.5, 0.02, posterior="b"))
    judgement = EXPERIMENT.claims[0].rule.judge(records)
    assert judgement.verdict == "not reproduced here"
    assert "(b)" in judgement.sentence


def test_a_peer_that_broke_down_is_worse_and_one_without_runs_gives_no_verdict() -> None:
    ours = both(0.02, 0.5)[0]
    broken = EXPERIMENT.claims[0].rule.judge(Records([ours, record("NumPyro", "a", ended="diverged")]))
    assert broken.verdict == "reproduced"
    assert EXPERIMENT.claims[0].rule.judge(Records([ours])).verdict is None


def test_tables_say_where_the_default_fit_is_worse() -> None:
    everything, beside = EXPERIMENT.tables(Records(both(0.5, 0.02)))
    assert len(everything.rows) == 2
    assert beside.rows == [["a", 0.5, "0.020 (worse)"]]


@with_data
def test_the_experiment_covers_every_posterior_of_the_folder() -> None:
    assert sorted(POSTERIORS) == [name for name in Folder().names if name in POSTERIORS]


@with_data
def test_a_gaussian_with_the_moments_of_the_reference_has_small_errors() -> None:
    target = posteriordb("mesquite-mesquite")
    points = target.reference_points
    found = errors(target, FullGaussian(points.mean(0), torch.linalg.cholesky(points.T.cov())))
    assert found["mean_error"] < 0.02
    assert found["sd_error"] < 0.05
    assert found["khat"] < 0.7


@with_data
def test_a_shift_by_one_standard_deviation_is_an_error_of_one() -> None:
    target = posteriordb("mesquite-mesquite")
    points = target.reference_points
    shifted = FullGaussian(points.mean(0) + points.std(0), torch.linalg.cholesky(points.T.cov()))
    assert errors(target, shifted)["mean_error"] == pytest.approx(1, abs=0.1)


@with_data
@with_jax
def test_jax_densities_equal_ours_at_random_points() -> None:
    requests, expected = [], []
    rng = torch.Generator().manual_seed(0)
    for name in POSTERIORS:
        target = posteriordb(name)
        reference = target.reference_points
        noise = torch.randn(20, target.dim, generator=rng, dtype=torch.float64)
        points = reference.mean(0) + reference.std(0) * noise
        requests.append({"posterior": name, "points": points.tolist()})
        expected.append(target.log_prob(points))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", JAX_VALUES],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    for name, values, ours in zip(POSTERIORS, json.loads(done.stdout), expected, strict=True):
        theirs = torch.tensor(values, dtype=torch.float64)
        worst = float(((theirs - ours).abs() / ours.abs().clamp(min=1)).max())
        assert worst < 1e-8, f"{name}: {worst:.1e}"
        assert math.isfinite(worst)
