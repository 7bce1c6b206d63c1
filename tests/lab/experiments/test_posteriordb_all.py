"""posteriordb-all: the list of models, its grid, its table and its rules."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bayescore import fit
from bayescore.targets import Gaussian, Positive, Real, TorchModel
from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.posteriordb import all_fits
from bayescore_lab.experiments.posteriordb.all_models import EXPERIMENT, REFERENCES
from bayescore_lab.experiments.posteriordb.models import CENTRED, MODELS
from bayescore_lab.experiments.posteriordb.more import POSTERIORS
from bayescore_lab.experiments.posteriordb.references import references

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
    both = EXPERIMENT.runs({}, range(20), EXPERIMENT.methods)
    assert len(both) == 20 * (len(POSTERIORS) + len(MODELS)) + 10 * len(CENTRED)


def test_a_folder_of_the_user_is_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "posterior_database" / "posteriors").mkdir(parents=True)
    for name in ("b-b", "a-a"):
        (tmp_path / "posterior_database" / "posteriors" / f"{name}.json").write_text("{}")
    settings = EXPERIMENT.profiles["folder"].settings
    monkeypatch.setenv("BAYESCORE_POSTERIORDB", str(tmp_path))
    assert [run.config["posterior"] for run in EXPERIMENT.runs(settings, [0], ["auto"])] == ["a-a", "b-b"]


def test_references_are_converged_and_name_the_parameters_of_their_models() -> None:
    for name, found in references()["models"].items():
        assert MODELS[name].reference is None
        assert max(found["rhat"]) < 1.01
        assert found["divergences"] == 0
        assert min(found["ess"]) > 400
        lengths = {len(found[key]) for key in ("mean", "sd", "tail", "q5", "q50", "q95")}
        assert lengths == {len(found["names"])}
    assert REFERENCES.stat().st_size < 1_000_000


def test_errors_are_measured_against_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TorchModel({"a": Real(), "b": Positive()}, lambda a, b: -0.5 * (a - 1).square() - b)
    found = fit(target, seed=0, progress=False)
    heavy = {
        "names": ["a", "b", "c"],
        "mean": [1.1, 5.0, 0.0],
        "sd": [1.0, 1.0, 1.0],
        "tail": [0.0, 0.9, 0.0],
    }
    quantiles = {"q5": [-0.645, 0.051, 0.0], "q50": [1.0, 0.693, 0.0], "q95": [2.645, 2.996, 0.0]}
    monkeypatch.setattr(all_fits, "_known", lambda target, name: {**heavy, **quantiles})
    monkeypatch.setattr(all_fits, "PosteriorDB", TorchModel)
    measured = all_fits.errors(found, "a")
    assert measured["mean_error"] == pytest.approx(0.1, abs=0.05)
    assert measured["sd_error"] < 0.05
    assert measured["quantile_error"] < 0.1
    assert (measured["worst"], measured["heavy"]) == ("a", 1)


def test_accuracy_is_judged_where_it_is_known() -> None:
    right = [record(f"p{i}", 0, grade="GOOD", mean_error=0.05, sd_error=0.05) for i in range(9)]
    wrong = [record("b", 0, grade="USABLE", mean_error=0.05, sd_error=0.2)]
    assert judged(0, right + wrong) == "reproduced"
    assert judged(0, right[:5] + wrong) == "partly"
    assert judged(0, [record("a", 0, grade="GOOD")]) is None


def test_a_posterior_that_is_called_usable_and_is_off_breaks_the_claim() -> None:
    right = [record("a", seed, grade="GOOD", mean_error=0.1, sd_error=0.1) for seed in range(3)]
    wrong = [record("b", seed, grade="USABLE", mean_error=0.4, sd_error=0.1) for seed in range(3)]
    assert judged(1, right) == "reproduced"
    assert judged(1, right + wrong) == "not reproduced here"


def test_grades_that_are_not_neighbours_break_the_claim() -> None:
    steady = [record("a", seed, grade="GOOD") for seed in range(20)]
    assert judged(2, steady) == "reproduced"
    mixed = [record("b", seed, grade="POOR" if seed else "GOOD") for seed in range(20)]
    assert judged(2, steady + mixed) == "not reproduced here"
    assert judged(2, steady[:3]) is None


def test_centred_models_are_judged_by_the_spread_of_their_elbo() -> None:
    near = [record(CENTRED[0], seed, grade="POOR", elbo=-80 - seed) for seed in range(3)]
    assert judged(3, near) == "reproduced"
    best = replace(record(CENTRED[0], 0, grade="POOR", elbo=-70.0), method="auto, thorough")
    assert judged(3, [*near, best]) == "not reproduced here"
    assert judged(3, [*near, record(CENTRED[0], 4, grade="POOR", elbo=-90.0)]) == "not reproduced here"
    assert judged(3, [record("a", 0, grade="GOOD")]) is None


def test_advice_must_be_given_on_every_seed() -> None:
    said = [record(CENTRED[0], seed, grade="POOR", advice="write it") for seed in range(2)]
    silent = record(CENTRED[1], 0, grade="POOR", advice="")
    assert judged(4, said) == "reproduced"
    assert judged(4, [*said, silent]) == "partly"
    assert judged(4, [record("a", 0, grade="GOOD", advice="")]) is None
    assert judged(4, [record(CENTRED[0], 0, grade="POOR")]) is None


def test_the_table_has_a_row_per_posterior() -> None:
    records = Records([record("a", seed, grade=grade) for seed, grade in enumerate(("GOOD", "USABLE"))])
    table, references_table = EXPERIMENT.tables(records)
    assert not references_table.rows
    assert table.rows[0][:3] == ["a", "PosteriorDB", "good 1, usable 1"]


def test_a_run_records_the_word_of_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_fits, "target_of", lambda name: Gaussian.random(3, seed=1))
    (outcome,) = all_fits.execute([Run("auto", 0, {"posterior": "a"})])
    assert outcome.metrics["grade"] == "GOOD"
    assert outcome.metrics["advice"] == ""
    assert "mean_error" not in outcome.metrics


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(DATA, "posteriordb")), reason="needs $BAYESCORE_DATA/posteriordb"
)
def test_errors_are_those_of_resampled_draws() -> None:
    (outcome,) = all_fits.execute([Run("auto", 0, {"posterior": "sblrc-blr"})])
    assert outcome.metrics["mean_error"] < 0.1
    assert outcome.metrics["sd_error"] < 0.1
    assert torch.tensor(outcome.metrics["elbo"]).isfinite()
