"""posteriordb-noisy-default: its grid, its rules, and one run of each arm."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

from bayescore.families import FullGaussian
from bayescore.targets import Gaussian
from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.posteriordb import noisy_default_fits
from bayescore_lab.experiments.posteriordb.more import POSTERIORS
from bayescore_lab.experiments.posteriordb.noisy_default import ADVI, AUTO, EXPERIMENT

DATA = os.environ.get("BAYESCORE_DATA", "")


def record(method: str, posterior: str, beta: float, seed: int, gap: float) -> Record:
    status = {"state": "done", "ended": "ok"}
    config = {"posterior": posterior, "beta": beta}
    metrics: dict[str, Any] = {"gap": gap, "condition": 10.0, "distance": 3.0}
    name = f"{method}-{posterior}-{beta}-{seed}"
    return Record("x", name, method, seed, config, metrics, {}, 10, 1.0, status, "", {}, {}, "")


def judged(claim: int, records: list[Record]) -> str | None:
    return EXPERIMENT.claims[claim].rule.judge(Records(records)).verdict


def test_the_grid_is_every_posterior_at_both_noise_levels() -> None:
    grid = EXPERIMENT.runs({}, range(5), EXPERIMENT.methods)
    assert len(grid) == len(POSTERIORS) * 2 * 2 * 5


def test_a_q_that_cannot_be_solved_with_has_no_elbo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy_default_fits, "_target", lambda name: Gaussian.random(3, seed=0))
    mean = torch.zeros(3, dtype=torch.float64)
    factor = torch.eye(3, dtype=torch.float64)
    assert noisy_default_fits._elbo("a", FullGaussian(mean, factor)) > -1e3
    factor[1:, 0] = 1e20
    factor[2, 1] = 1e20
    broken = FullGaussian(mean, factor)
    x = broken.sample(100, seed=0)
    assert broken.log_prob(x).mean() < -1e20  # -4 but for rounding
    assert noisy_default_fits._elbo("a", broken) == -math.inf


def test_the_worst_seed_counts_against_the_exact_fit() -> None:
    near = [record(AUTO, f"p{i}", 0.3, seed, 1.0) for i in range(8) for seed in range(2)]
    far = [record(AUTO, f"q{i}", 0.3, seed, 30.0 * seed) for i in range(4) for seed in range(2)]
    assert judged(0, near + far) == "reproduced"
    assert judged(0, near[:6] + far) == "not reproduced here"
    assert judged(0, []) is None


def test_medians_are_compared_with_advi() -> None:
    ours = [record(AUTO, f"p{i}", 1.0, seed, 1.0 + 50 * (seed == 2)) for i in range(12) for seed in range(3)]
    theirs = [record(ADVI, f"p{i}", 1.0, seed, 10.0) for i in range(12) for seed in range(3)]
    better = [record(ADVI, f"p{i}", 1.0, seed, 0.5) for i in range(12) for seed in range(3)]
    assert judged(1, ours + theirs) == "reproduced"
    assert judged(1, ours + better) == "not reproduced here"
    (table,) = EXPERIMENT.tables(Records(ours + theirs))
    assert table.rows[0][:6] == ["p0", 1.0, AUTO, 3, 1.0, 51.0]


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(DATA, "posteriordb")), reason="needs $BAYESCORE_DATA/posteriordb"
)
@pytest.mark.parametrize("method", [AUTO, ADVI])
def test_a_run_measures_its_gap(method: str) -> None:
    config = {"posterior": "sblrc-blr", "beta": 0.3, "calls": 150}
    (outcome,) = noisy_default_fits.execute([Run(method, 0, config)])
    assert outcome.metrics["gap"] > -1
    assert outcome.metrics["condition"] > 1
    assert outcome.metrics["distance"] > 0
