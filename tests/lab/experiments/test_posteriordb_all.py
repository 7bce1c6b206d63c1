"""posteriordb-all: the list of models, its grid, its table and its rules."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from bayescore.targets import Gaussian
from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.posteriordb import all_fits
from bayescore_lab.experiments.posteriordb.all_models import EXPERIMENT
from bayescore_lab.experiments.posteriordb.models import CENTRED, MODELS
from bayescore_lab.experiments.posteriordb.more import POSTERIORS

DATA = os.environ.get("BAYESCORE_DATA", "")


def record(posterior: str, seed: int, **metrics: Any) -> Record:
    status = {"state": "done", "ended": "ok"}
    config = {"posterior": posterior}
    name = f"auto-{posterior}-{seed}"
    metrics = {"khat": 0.3, "elbo": -1.0, **metrics}
    return Record("x", name, "auto", seed, config, metrics, {}, 10, 1.0, status, "", {}, {}, "")


def judged(claim: int, records: list[Record]) -> str | None:
    return EXPERIMENT.claims[claim].rule.judge(Records(records)).verdict


def test_the_list_has_every_kind_of_model_its_data_and_its_program() -> None:
    assert len(MODELS) >= 20
    kinds = " ".join(model.kind for model in MODELS.values())
    for kind in (
        "hierarchical, centred",
        "non-centred",
        "GLM",
        "GP",
        "HMM",
        "ODE",
        "mixture",
        "time series",
        "item response",
        "survival",
        "high dimension",
    ):
        assert kind in kinds
    for model in MODELS.values():
        text = model.program.read_text(encoding="utf-8")
        assert "parameters" in text
        declared = text.split("data {")[1].split("}\nparameters")[0]
        assert all(name in declared for name in model.data())
        assert str(model.data()) == str(model.data())
        assert model.reference_name in MODELS
    assert len(CENTRED) >= 5


def test_the_grid_is_every_posterior_and_seed() -> None:
    grid = EXPERIMENT.runs({}, [0, 1], ["auto"])
    assert len(grid) == 2 * (len(POSTERIORS) + len(MODELS))


def test_a_posterior_that_is_called_usable_and_is_off_breaks_the_claim() -> None:
    right = [record("a", seed, grade="GOOD", mean_error=0.1, sd_error=0.1) for seed in range(3)]
    wrong = [record("b", seed, grade="USABLE", mean_error=0.4, sd_error=0.1) for seed in range(3)]
    assert judged(0, right) == "reproduced"
    assert judged(0, right + wrong) == "not reproduced here"


def test_grades_that_are_not_neighbours_break_the_claim() -> None:
    steady = [record("a", seed, grade="GOOD") for seed in range(20)]
    assert judged(1, steady) == "reproduced"
    assert judged(1, [*steady, record("b", 0, grade="GOOD"), record("b", 1, grade="POOR")]) != "reproduced"


def test_centred_models_are_judged_by_the_spread_of_their_elbo() -> None:
    near = [record(CENTRED[0], seed, grade="POOR", elbo=-80 - seed) for seed in range(3)]
    assert judged(2, near) == "reproduced"
    assert judged(2, [*near, record(CENTRED[0], 4, grade="POOR", elbo=-90.0)]) == "not reproduced here"
    assert judged(2, [record("a", 0, grade="GOOD")]) is None


def test_the_table_has_a_row_per_posterior() -> None:
    records = Records([record("a", seed, grade=grade) for seed, grade in enumerate(("GOOD", "USABLE"))])
    (table,) = EXPERIMENT.tables(records)
    assert table.rows[0][:3] == ["a", "PosteriorDB", "good 1, usable 1"]


def test_a_run_records_the_word_of_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_fits, "target_of", lambda name: Gaussian.random(3, seed=1))
    (outcome,) = all_fits.execute([Run("auto", 0, {"posterior": "a"})])
    assert outcome.metrics["grade"] == "GOOD"
    assert "mean_error" not in outcome.metrics


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(DATA, "posteriordb")), reason="needs $BAYESCORE_DATA/posteriordb"
)
def test_errors_are_those_of_resampled_draws() -> None:
    (outcome,) = all_fits.execute([Run("auto", 0, {"posterior": "sblrc-blr"})])
    assert outcome.metrics["mean_error"] < 0.1
    assert outcome.metrics["sd_error"] < 0.1
    assert torch.tensor(outcome.metrics["elbo"]).isfinite()
