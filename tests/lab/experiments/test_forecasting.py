"""The forecasting experiments: measures with known answers, declarations, rules, and tiny runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bayescore.data import Series, as_series
from bayescore.models import Koopa
from bayescore_lab.engine import Run, plan
from bayescore_lab.engine.records import Record, Records, RecordStore, run_id
from bayescore_lab.experiments.forecasting import (
    koopa,
    koopa_channels,
    koopa_fits,
    koopa_flow,
    koopa_tuning,
    significance,
)
from bayescore_lab.experiments.forecasting.channels_worker import measure
from bayescore_lab.experiments.forecasting.koopa_arms import (
    ADVI,
    ARMS,
    DATA,
    ENSEMBLE,
    OURS,
    PROXIMAL,
    TUNED,
    VANILLA,
)
from bayescore_lab.experiments.forecasting.koopa_results import (
    coverage_within,
    lower_on,
    no_more_than,
    not_worse_on,
)
from bayescore_lab.experiments.forecasting.measures import Forecasts, Noise, Sums
from bayescore_lab.experiments.vision.predictions import pack


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- measures ----------------------------------------------------------------------------------------------


def forecasts(draws: Tensor, y: Tensor) -> Forecasts:
    """With contexts of one scale."""
    return Forecasts(normal(len(y), 10, y.shape[2], seed=7), y, draws)


def test_one_draw_is_a_gaussian_with_the_textbooks_measures():
    f, y = normal(1, 500, 4, 2), normal(500, 4, 2, seed=1)
    rmse = float((f[0] - y).square().mean().sqrt())
    sums = Sums(Noise.of(forecasts(f, y), 5), 5)
    for ends in (slice(0, 200), slice(200, 500)):
        sums.add(forecasts(f[:, ends], y[ends]))
    sums.add_costly(forecasts(f[:, :20], y[:20]))
    sums.add_test_noise(forecasts(f, y))
    found = sums.means()
    z = ((y - f[0]) / rmse).numpy()
    crps = rmse * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert found["mse"] == pytest.approx(rmse**2)
    assert found["mae"] == pytest.approx(float((f[0] - y).abs().mean()))
    assert found["nll"] == pytest.approx(0.5 * math.log(2 * math.pi * math.e * rmse**2))
    assert found["nll_test_noise"] == pytest.approx(found["nll"])
    assert found["nll_steps"] < found["nll"]
    assert found["crps"] == pytest.approx(crps.mean(), rel=1e-6)
    for level in (50, 80, 95):
        half = stats.norm.ppf((1 + level / 100) / 2)
        assert found[f"coverage_{level}"] == pytest.approx((np.abs(z) <= half).mean())
        assert found[f"width_{level}"] == pytest.approx(2 * half * rmse, rel=1e-5)


def test_intervals_hold_what_they_say_when_the_model_is_right():
    f = 0.3 * normal(30, 4000, 3, 1)
    y = f[-1] + 0.5 * normal(4000, 3, 1, seed=2)
    sums = Sums(Noise.of(forecasts(f[:, :2000], y[:2000]), 5), 5)
    sums.add(forecasts(f[:, 2000:], y[2000:]))
    found = sums.means()
    assert found["coverage_80"] == pytest.approx(0.8, abs=0.02)
    assert found["calibrated_80"] == pytest.approx(0.8, abs=0.02)
    level = stats.norm.cdf((y[2000:] - f[:, 2000:]) / sums.noise.many).mean(0)
    assert found["coverage_80"] == ((level >= 0.1) & (level <= 0.9)).mean()
    assert found["mse"] == pytest.approx(float((f[:5, 2000:].mean(0) - y[2000:]).square().mean()))
    assert found["mse_30"] < found["mse"]


# -- declarations ------------------------------------------------------------------------------------------


def test_the_grid_of_table_2_has_ten_seeds_for_the_papers_methods_and_ours():
    grid = plan(koopa.EXPERIMENT, "paper")
    assert {run.config["data"] for run in grid.runs.values()} == set(DATA)
    for name in (VANILLA, ADVI, OURS, PROXIMAL):
        assert sum(run.method == name for run in grid.runs.values()) == 10 * len(DATA)
    assert sum(run.method == ENSEMBLE for run in grid.runs.values()) == 3 * len(DATA)
    parts = [plan(koopa.EXPERIMENT, name) for name in ("ili", "exchange", "etth2", "weather")]
    assert set(grid.runs) == {key for part in parts for key in part.runs}


def test_the_arms_as_printed_have_the_printed_settings():
    for name in ("Ours, as printed", "ADVI, as printed"):
        options = ARMS[name]["options"]
        assert (options["lr"], options["tau"]) == (1e-3, 1e-6)
    assert ARMS["Ours, as printed"]["options"]["inner_steps"] == 2


def test_every_tuned_method_has_as_many_trials_and_the_arms_are_among_them():
    assert {len(trials) for trials in koopa_tuning.TRIALS.values()} == {8}
    for name, trials in koopa_tuning.TRIALS.items():
        spec = TUNED[name]
        assert {"options": spec["options"], "sizes": spec.get("sizes", {})} in [
            {"sizes": {}, **trial} for trial in trials
        ]


def test_the_settings_of_the_experiment_are_those_that_won_on_validation():
    store = RecordStore(Path(__file__).parents[3] / "results" / "koopa-tuning")
    grid = plan(koopa_tuning.EXPERIMENT, "paper")
    records = grid.choose(store.read())
    if len(records) < len(grid.runs):
        pytest.skip(f"{len(records)} of the {len(grid.runs)} trials have been run")
    for name, setting in koopa_tuning.best_settings(records).items():
        spec = TUNED[name]
        assert setting == koopa_tuning.dumps(spec["options"] | spec.get("sizes", {}))


@pytest.mark.parametrize(
    ("data", "weights"), [("Exchange", 4496), ("Weather", 3524), ("Weather, segment 24", None)]
)
def test_the_networks_of_the_flows_are_small(data: str, weights: int | None):
    model = Koopa.for_dataset(data.partition(",")[0], **koopa_flow.SETTINGS["data"][data])
    count = sum(p.numel() for p in model.parameters())
    assert count < 5000
    assert weights in (None, count)


# -- tiny runs ---------------------------------------------------------------------------------------------


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seven noisy waves in place of the data sets."""
    time = torch.arange(500, dtype=torch.float64)[:, None]
    values = (time / torch.arange(5, 12)).sin() + 0.1 * normal(500, 7)
    made: Series = as_series(values)
    monkeypatch.setattr(koopa_fits, "series", lambda name: made)
    koopa_fits.benchmark.cache_clear()
    yield
    koopa_fits.benchmark.cache_clear()


TINY = {"data": {"ILI": {"hidden": 4, "dynamic_dim": 4, "blocks": 1}}, "epochs": 1}


@pytest.mark.usefixtures("waves")
@pytest.mark.parametrize("experiment", [koopa, koopa_flow])
def test_every_arm_trains_and_is_measured(experiment: Any):
    runs = experiment.runs(TINY, [0], experiment.EXPERIMENT.methods)
    outcomes = list(koopa_fits.execute(runs))
    assert [one.run for one in outcomes] == runs
    for one in outcomes:
        assert one.ended == "ok", one.run.method
        assert all(math.isfinite(value) for value in one.metrics.values())
        assert one.metrics["mse_30"] > 0
        assert 0 <= one.metrics["coverage_50"] <= one.metrics["coverage_95"] <= 1
    status = {"state": "done", "ended": "ok"}
    records = Records(
        Record(experiment.EXPERIMENT.id, str(i), one.run.method, 0, dict(one.run.config), dict(one.metrics),
               {}, 1, 1.0, status, "", {}, {}, "")
        for i, one in enumerate(outcomes)
    )  # fmt: skip
    assert len(experiment.tables(records)[0].rows) == len(runs)
    assert len(experiment.figures(records)) == 1


@pytest.mark.usefixtures("waves")
def test_a_trial_is_judged_on_validation():
    (first, *_) = koopa_tuning.runs(TINY, [0], [PROXIMAL])
    (outcome,) = koopa_fits.execute_trials([first])
    assert set(outcome.metrics) == {"validation_mse", "validation_nll", "noise", "epoch"}
    assert outcome.metrics["noise"] == pytest.approx(outcome.metrics["validation_mse"] ** 0.5, rel=0.05)


@pytest.mark.usefixtures("waves")
def test_methods_start_from_the_same_weights():
    one, two = (koopa_fits.network("ILI", 3, TINY["data"]["ILI"]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_steps_are_timed_at_any_number_of_channels():
    for run in koopa_channels.runs(
        {"data": {"ILI": {"hidden": 4, "dynamic_dim": 4}}, "steps": 2}, [0], [VANILLA]
    ):
        found = measure(dict(run.config))
        assert found["seconds_per_step"] > 0
        assert math.isfinite(found["loss"])


# -- rules and tests ---------------------------------------------------------------------------------------


def arm(method: str, values: list[float], data: str = "ILI", metric: str = "nll") -> list[Record]:
    status = {"state": "done", "ended": "ok"}
    return [
        Record("koopa", f"{method} {data} {seed}", method, seed, {"data": data}, {metric: value}, {}, 1, 1.0,
               status, "", {}, {}, "")
        for seed, value in enumerate(values)
    ]  # fmt: skip


LOW, HIGH = [1.0, 1.1, 1.05, 1.02, 1.08], [2.0, 2.2, 2.1, 2.05, 2.15]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(LOW, "reproduced"), (HIGH, "partly"), ([3.0, 3.1, 3.3, 3.1, 3.2], "not reproduced here")],
)
def test_lower_on(ours: list[float], verdict: str):
    records = Records(arm("a", ours) + arm("b", [2.1, 2.15, 2.2, 2.0, 2.1]))
    assert lower_on("nll", "a", "b", "ILI").judge(records).verdict == verdict
    assert lower_on("nll", "a", "b", "Weather").judge(records).verdict is None


@pytest.mark.parametrize(
    ("second", "verdict"),
    [(LOW, "reproduced"), (HIGH, "partly"), ([9.0, 9.1, 9.2, 9.1, 9.0], "not reproduced here")],
)
def test_not_worse_on(second: list[float], verdict: str):
    theirs = [2.1, 2.15, 2.0, 2.0, 2.1]
    records = Records(
        arm("a", LOW) + arm("b", HIGH) + arm("a", second, "Weather") + arm("b", theirs, "Weather")
    )
    rule = not_worse_on(("nll",), "a", "b", ("ILI", "Weather"), 2)
    assert rule.judge(records).verdict == verdict
    assert rule.judge(Records(arm("a", LOW))).verdict is None


def test_no_more_than_also_where_the_values_are_negative():
    records = Records(arm("a", [-0.95] * 5) + arm("b", [-1.0] * 5))
    assert no_more_than("nll", "a", "b", "ILI", 1.1).judge(records).verdict == "reproduced"
    assert no_more_than("nll", "a", "b", "ILI", 1.01).judge(records).verdict == "not reproduced here"
    assert no_more_than("nll", "a", "c", "ILI", 1.1).judge(records).verdict is None


def test_coverage_within():
    records = Records(arm("a", [0.79, 0.81, 0.8, 0.8, 0.8], metric="calibrated_80"))
    assert coverage_within("a", ("ILI",), 0.75, 0.85, 1).judge(records).verdict == "reproduced"
    assert coverage_within("a", ("ILI",), 0.85, 0.9, 1).judge(records).verdict == "not reproduced here"
    assert coverage_within("b", ("ILI",), 0.75, 0.85, 1).judge(records).verdict is None


@pytest.mark.parametrize(
    "rule",
    [
        lower_on("nll", "a", "b", "ILI"),
        not_worse_on(("nll",), "a", "b", ("ILI",), 1),
        no_more_than("nll", "a", "b", "ILI", 1.1),
        coverage_within("a", ("ILI",), 0.0, 9.0, 1),
    ],
)
def test_few_seeds_are_not_judged(rule: Any):
    def records(count: int) -> Records:
        return Records(
            replace(one, metrics={"nll": one.metrics["nll"], "calibrated_80": 0.8})
            for one in arm("a", LOW[:count]) + arm("b", HIGH[:count])
        )

    few = rule.judge(records(4))
    assert few.verdict is None
    assert "Not judged: 4 seeds of a" in few.sentence
    assert rule.judge(records(5)).verdict == "reproduced"
    assert "Fewer than 5 seeds are not judged." in rule.words


def test_the_first_seeds_have_all_arms_of_a_data_set_before_the_next_begin():
    turns = {key: run.turn for key, run in plan(koopa.EXPERIMENT, "ili").runs.items()}
    runs = plan(koopa.EXPERIMENT, "ili").runs
    assert all(turns[key] == run.seed for key, run in runs.items())
    assert {run.method for run in runs.values() if run.turn == 0} == set(ARMS)


def test_paired_tests_come_from_the_records_of_the_other_experiment(tmp_path: Path):
    rng = np.random.default_rng(0)
    store = RecordStore(tmp_path / "koopa")
    (tmp_path / "koopa").mkdir()
    nll: dict[str, list[float]] = {OURS: [], ADVI: []}
    for run in plan(koopa.EXPERIMENT, "ili").runs.values():
        if run.method in nll:
            value = float(rng.normal(1.0 if run.method == OURS else 1.5, 0.3))
            nll[run.method].append(value)
            key = run_id("koopa", run.method, run.seed, run.config)
            status = {"state": "done", "ended": "ok"}
            store.append(Record("koopa", key, run.method, run.seed, dict(run.config), {"nll": value}, {}, 1,
                                1.0, status, "", {}, {}, ""))  # fmt: skip
    runs = significance.runs({"folder": str(tmp_path)}, [0], significance.EXPERIMENT.methods)
    by_cell = {(run.method, run.config["cell"]): run for run in runs}
    assert len(by_cell) == 2 * len(significance.CELLS)
    outcomes = list(significance.execute(runs))
    found = next(o for o in outcomes if o.run is by_cell[significance.PAPERS, "Koopa, ILI"])
    assert found.metrics["pairs"] == 10
    assert found.metrics["t"] == pytest.approx(stats.ttest_rel(nll[OURS], nll[ADVI]).pvalue)
    assert found.metrics["wilcoxon"] == pytest.approx(stats.wilcoxon(nll[OURS], nll[ADVI]).pvalue)
    records = Records(_record(o.run, dict(o.metrics)) for o in outcomes)
    ours, default = significance.tables(records)
    assert [row[0] for row in ours.rows] == ["Koopa, ILI"]
    assert not default.rows
    assert significance.EXPERIMENT.claims[0].rule.judge(records).verdict is None


def test_paired_tests_of_vision_count_the_test_pictures_too(tmp_path: Path):
    rng = np.random.default_rng(0)
    store = RecordStore(tmp_path / "vision")
    (tmp_path / "vision").mkdir()
    hard = rng.exponential(1.0, 200)  # some pictures are hard for everybody
    for run in plan(significance.VISION, "pets").runs.values():
        if run.method in ("Ours", "ADVI"):
            losses = hard + rng.exponential(0.2, 200) + 0.1 * (run.method == "ADVI")
            metrics = {"nll": losses.mean(), **pack(-losses, np.full(200, 0.9), np.full(200, True))}
            key = run_id("vision", run.method, run.seed, run.config)
            status = {"state": "done", "ended": "ok"}
            store.append(Record("vision", key, run.method, run.seed, dict(run.config), metrics, {}, 1, 1.0,
                                status, "", {}, {}, ""))  # fmt: skip
    runs = significance.runs({"folder": str(tmp_path)}, [0], [significance.DEFAULT])
    outcomes = [o for o in significance.execute(runs) if o.metrics["pairs"]]
    assert [o.run.config["cell"] for o in outcomes] == ["Pets, efficientnet_lite0", "Pets, mobilenet_v2"]
    for outcome in outcomes:
        both = outcome.run.config["with_pictures"]
        assert outcome.metrics["pairs"] == 5
        assert outcome.metrics["difference"] == pytest.approx(both["mean"], abs=1e-3)
        assert both["mean"] == pytest.approx(-0.1, abs=0.03)
        assert outcome.metrics["with_pictures"] == both["p"] < 0.001
        assert both["over_examples"] == pytest.approx(0.2 * math.sqrt(2 / 5 / 200), rel=0.3)
    (table,) = significance.tables(Records(_record(o.run, dict(o.metrics)) for o in outcomes))
    assert [row[0] for row in table.rows] == ["Pets, efficientnet_lite0", "Pets, mobilenet_v2"]
    assert {len(row) for row in table.rows} == {len(table.columns)}


def _record(run: Run, metrics: dict[str, Any]) -> Record:
    status = {"state": "done", "ended": "ok"}
    key = f"{run.method} {run.config['cell']}"
    return Record("significance", key, run.method, run.seed, dict(run.config), metrics, {}, 0, 1.0, status,
                  "", {}, {}, "")  # fmt: skip
