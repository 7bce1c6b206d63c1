"""The vision and text experiments: the grid of Table 1, its numbers, and runs of every kind on tiny data."""

from __future__ import annotations

import math

import pytest

from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.vision import convergence, cost, text, vision
from bayescore_lab.experiments.vision.arms import ARMS, OURS, PLAIN, SCALED, TRIALS
from bayescore_lab.experiments.vision.table_one import METHODS, NETWORKS, PRINTED, SETS, paper_values

VISION, TUNING = vision.EXPERIMENTS
SEEDS = range(5)


def grid(experiment, profile, methods=None):
    settings = experiment.profiles[profile].settings
    return experiment.runs(settings, range(experiment.profiles[profile].seeds), methods or experiment.methods)


def test_the_grid_of_table_one_is_whole():
    runs = grid(VISION, "paper", METHODS)
    cells = {(run.config["data"], run.config["net"], run.method) for run in runs}
    assert len(cells) == 4 * 2 * 6
    five = [run for run in runs if run.method in ("ADVI", OURS)]
    assert len(five) == 4 * 2 * 2 * 5
    assert {run.config["epochs"] for run in runs} == {50}
    assert {run.config["size"] for run in runs} == {224}


def test_every_cell_of_the_paper_has_its_numbers():
    for data in SETS:
        for net in NETWORKS:
            values = paper_values(data, net)
            assert len(values) == 5 * 3 + 1  # the plain network has an error only
    assert {(v.arm, v.metric): v.value for v in paper_values("dtd", "vit_l_32")}[("Ours", "nll")] == 1.1936
    assert {(v.arm, v.metric): v.value for v in paper_values("pets", "resnet101")}[
        ("ADVI", "error")
    ] == 0.09134
    best = sum(
        min(row[i] for row in rows.values() if row[i] is not None) == rows["Ours"][i]
        for rows in PRINTED.values()
        for i in (2, 5)
    )
    assert best == 6  # of eight cells: MC-dropout has the best NLL in two


def test_the_arm_as_printed_has_the_printed_settings():
    printed = ARMS["Ours, as printed"]
    assert (printed["body_lr"], printed["head_lr"]) == (1e-4, 1e-2)
    assert printed["options"]["temperature"] == 1e-6
    assert printed["options"]["inner_steps"] == 2


def test_the_small_profile_has_six_cells_and_three_arms_of_whole_networks():
    runs = grid(VISION, "small")
    frozen = {(run.config["data"], run.config["net"]) for run in runs if run.config["freeze"]}
    assert len(frozen) == 6
    whole = [run for run in runs if not run.config["freeze"]]
    assert {run.method for run in whole} == {PLAIN, "ADVI", OURS}
    assert len(whole) == 2 * 3 * 2
    seeds = {method: len({run.seed for run in runs if run.method == method}) for method in ARMS}
    assert seeds[OURS] == seeds["ADVI"] == 5
    assert seeds["SGLD"] == 3


def test_there_are_six_trials_per_method_on_one_cell_and_one_seed():
    assert all(len(trials) == 6 for trials in TRIALS.values())
    runs = grid(TUNING, "small")
    assert {(run.config["data"], run.config["net"], run.seed) for run in runs} == {
        ("pets", "efficientnet_lite0", 0)
    }
    assert len(runs) == 6 * len(TUNING.methods)


def test_a_plain_network_is_trained_once_for_its_two_arms():
    runs = [run for run in grid(VISION, "small") if run.method in (PLAIN, SCALED) and run.config["freeze"]]
    groups = {run.group for run in runs}
    assert len(groups) == len(runs) // 2


@pytest.mark.parametrize("method", [PLAIN, "ADVI", "MC-dropout, weights", OURS])
def test_a_run_gives_its_metrics_and_a_log_probability_for_every_picture(method, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path))
    (run,) = grid_of_one(VISION, method)
    (outcome,) = VISION.execute([run])
    assert outcome.ended == "ok"
    assert outcome.metrics["nll"] == pytest.approx(-sum(outcome.trace["log_prob"]) / 24, rel=1e-3)


def grid_of_one(experiment, method):
    return [run for run in grid(experiment, "quick") if run.method == method][:1]


def test_scaling_the_temperature_changes_the_probabilities_of_the_same_network(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path))
    runs = [*grid_of_one(VISION, PLAIN), *grid_of_one(VISION, SCALED)]
    plain, scaled = VISION.execute(runs)
    assert plain.metrics["error"] == scaled.metrics["error"]
    assert plain.metrics["nll"] != scaled.metrics["nll"]


def test_the_convergence_of_a_run_is_its_test_loss_by_epochs(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path))
    (outcome,) = convergence.EXPERIMENT.execute(grid_of_one(convergence.EXPERIMENT, OURS))
    assert outcome.trace["epoch"] == [1.0, 2.0, 3.0]
    assert len(outcome.trace["test_loss"]) == 3


def test_the_cost_of_a_step_is_measured():
    from bayescore_lab.experiments.vision.cost_worker import measure

    (run,) = grid_of_one(cost.EXPERIMENT, "Ours")
    found = measure({**run.config, "seed": 0})
    assert found["seconds_per_step"] > 0
    assert found["peak_gb"] > 0
    assert {"predict_1", "predict_2"} <= set(found)


def test_a_run_on_sentences_gives_its_metrics():
    pytest.importorskip("transformers")
    (run,) = grid_of_one(text.EXPERIMENT, OURS)
    (outcome,) = text.EXPERIMENT.execute([run])
    assert outcome.ended == "ok"
    assert len(outcome.trace["log_prob"]) == 80
    assert len(grid(text.EXPERIMENT, "small")) == 2 * 3 * 10 * 3


def record(method, seed, values, data="pets", net="mobilenet_v2"):
    trace = {"example": [float(i) for i in range(len(values))], "log_prob": values}
    config = {"data": data, "net": net, "freeze": 15}
    metrics = {"nll": -sum(values) / len(values), "all_class_ece": 1.0, "error": 0.1}
    status = {"state": "done", "ended": "ok"}
    return Record(
        "vision",
        f"{method} {seed} {data}",
        method,
        seed,
        config,
        metrics,
        trace,
        1,
        1.0,
        status,
        "",
        {},
        {},
        "",
    )


def test_paired_differences_have_two_sources_of_variance():
    records = Records(
        [
            record(OURS, 0, [-1.0, -2.0]),
            record(OURS, 1, [-1.0, -2.2]),
            record("ADVI", 0, [-1.5, -2.1]),
            record("ADVI", 1, [-1.7, -2.1]),
        ]
    )
    mean, pictures, seeds = vision.paired(records.arms[OURS], records.arms["ADVI"])
    assert mean == pytest.approx(-(0.5 + 0.1 + 0.7 - 0.1) / 4)
    assert pictures == pytest.approx(0.3)  # examples differ by -0.6 and 0.0
    assert seeds == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(vision.paired(records.arms[OURS][:1], records.arms["ADVI"])[2])


def test_a_claim_counts_cells():
    good, bad = [-1.0, -1.0], [-2.0, -2.0]
    sets = ("pets", "flowers102", "dtd10")
    records = Records(
        [record(OURS, 0, good, data) for data in sets]
        + [record("ADVI", 0, bad if data != "dtd10" else [-0.5, -0.5], data) for data in sets]
    )
    rule = VISION.claims[0].rule.judge(records)
    assert rule.verdict == "reproduced"
    assert "2 of 3 cells" in rule.sentence
    assert VISION.claims[2].rule.judge(records).verdict is None


def test_runs_have_distinct_configs():
    for experiment in (VISION, TUNING, convergence.EXPERIMENT, cost.EXPERIMENT, text.EXPERIMENT):
        for profile in experiment.profiles:
            runs: list[Run] = grid(experiment, profile)
            keys = {(run.method, run.seed, str(sorted(run.config.items(), key=str))) for run in runs}
            assert len(keys) == len(runs), (experiment.id, profile)
