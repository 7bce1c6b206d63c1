"""The vision and text experiments: the grid of Table 1, its numbers, and runs of every kind on tiny data."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bayescore.metrics import ece
from bayescore.rules import Draws
from bayescore.rules.inner import InnerOptions, inner_gradient
from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.vision import batchnorm, convergence, cost, text, vision
from bayescore_lab.experiments.vision.arms import ARMS, BASE, OURS, PLAIN, PRINTED_ARM, SCALED, TRIALS
from bayescore_lab.experiments.vision.predictions import pack, paired_ece, paired_nll, unpack
from bayescore_lab.experiments.vision.table_one import METHODS, NETWORKS, PRINTED, SETS, paper_values

RESULTS = Path(__file__).parents[3] / "results"

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
    printed = ARMS[PRINTED_ARM]
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


def test_the_policies_of_batchnorm_are_compared_on_one_cell_with_all_else_equal():
    runs = grid(batchnorm.EXPERIMENT, "small")
    assert {(run.method, run.config["batchnorm"]) for run in runs} == {
        (name, policy) for name, (_, policy) in batchnorm.METHODS.items()
    }
    for arm in batchnorm.TRAINED:
        same = {
            str({key: value for key, value in run.config.items() if key != "batchnorm"})
            for run in runs
            if run.method.startswith(arm)
        }
        assert len(same) == 1


def test_the_epoch_is_chosen_by_some_of_validation_and_a_trial_is_judged_by_all_of_it(monkeypatch):
    seen = []

    def train(parts, *_, **__):
        seen.append([len(part) for part in (parts.train, parts.validation, parts.test)])
        raise FloatingPointError("far enough")

    monkeypatch.setattr("bayescore.finetune.train_images", train)
    (run,) = grid_of_one(VISION, OURS)
    few = Run(run.method, run.seed, {**run.config, "choose_by": 5})
    assert next(VISION.execute([few])).ended == next(TUNING.execute([few])).ended == "diverged"
    assert seen == [[24, 5, 24], [24, 5, 24]]
    assert {run.config["choose_by"] for run in grid(VISION, "small")} == {500}
    assert not any("choose_by" in run.config for run in grid(VISION, "paper"))


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
    kept = unpack(as_record(outcome))
    assert outcome.metrics["nll"] == pytest.approx(-kept.log_prob.mean(), abs=1e-3)
    assert outcome.metrics["error"] == pytest.approx(1 - kept.right.mean())


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
    assert len(unpack(as_record(outcome)).log_prob) == 80
    assert len(grid(text.EXPERIMENT, "small")) == 2 * 3 * 10 * 3


def as_record(outcome):
    return of_metrics(outcome.run.method, outcome.run.seed, dict(outcome.metrics), dict(outcome.run.config))


def of_metrics(method, seed, metrics, config):
    status = {"state": "done", "ended": "ok"}
    name = f"{method} {seed} {config['data']}"
    return Record("vision", name, method, seed, config, metrics, {}, 1, 1.0, status, "", {}, {}, "")


def record(method, seed, values, data="pets", net="mobilenet_v2", confidence=0.9, right=True):
    config = {"data": data, "net": net, "freeze": 15}
    metrics = {"nll": -sum(values) / len(values), "all_class_ece": 1.0, "error": 0.1}
    metrics |= pack(values, np.broadcast_to(confidence, len(values)), np.broadcast_to(right, len(values)))
    return of_metrics(method, seed, metrics, config)


def test_what_is_predicted_survives_its_packing():
    rng = np.random.default_rng(0)
    losses, top, right = rng.exponential(2, 500), rng.uniform(0.1, 1, 500), rng.random(500) < 0.7
    found = unpack(of_metrics(OURS, 0, pack(-losses, top, right), {"data": "pets"}))
    np.testing.assert_allclose(-found.log_prob, losses, atol=5.01e-4)
    np.testing.assert_allclose(found.confidence, top, atol=5.01e-5)
    assert (found.right == right).all()
    broken = unpack(
        of_metrics(OURS, 0, pack([-math.inf, math.nan], [1, 0.5], [False, True]), {"data": "pets"})
    )
    assert (broken.log_prob == -65.535).all()  # as bad as 16 bits can say
    assert unpack(of_metrics(OURS, 0, {"reason": "diverged"}, {"data": "pets"})) is None


def test_paired_differences_have_two_sources_of_variance():
    records = Records(
        [
            record(OURS, 0, [-1.0, -2.0]),
            record(OURS, 1, [-1.0, -2.2]),
            record("ADVI", 0, [-1.5, -2.1]),
            record("ADVI", 1, [-1.7, -2.1]),
        ]
    )
    found = paired_nll(records.arms[OURS], records.arms["ADVI"])
    assert found.mean == pytest.approx(-(0.5 + 0.1 + 0.7 - 0.1) / 4)
    assert found.over_examples == pytest.approx(0.3)  # examples differ by -0.6 and 0.0
    assert found.over_seeds == pytest.approx(0.0, abs=1e-12)
    alone = paired_nll(records.arms[OURS][:1], records.arms["ADVI"])
    assert math.isnan(alone.over_seeds)
    assert math.isnan(alone.p)
    assert paired_nll(records.arms[OURS], records.arms["ADVI"][:0]) is None


@pytest.mark.parametrize(("examples", "seeds", "rest"), [(1.0, 0.0, 0.3), (0.0, 0.3, 0.3), (1.0, 0.1, 0.3)])
def test_the_paired_test_keeps_its_level_whatever_varies(examples, seeds, rest):
    """Of true null hypotheses about 5 % are rejected at 0.05: not the share that ignoring a source gives."""
    rng = np.random.default_rng(0)
    n, k, count = 60, 5, 300
    rejected = 0
    for _ in range(count):
        d = examples * rng.normal(size=n) + seeds * rng.normal(size=(k, 1)) + rest * rng.normal(size=(k, n))
        ours = Records([record(OURS, i, list(-5.0 - row)) for i, row in enumerate(d)])
        theirs = Records([record("ADVI", i, [-5.0] * n) for i in range(k)])
        rejected += paired_nll(ours, theirs).p < 0.05
    assert 0.01 < rejected / count < 0.09


def test_the_paired_ece_is_that_of_the_metrics_and_equal_arms_do_not_differ():
    rng = np.random.default_rng(0)
    top = rng.uniform(0.5, 1, 400).round(2)  # a square has the four digits that are kept
    right = rng.random(400) < top
    two = {
        OURS: [record(OURS, i, [-1.0] * 400, confidence=top, right=right) for i in range(2)],
        "ADVI": [record("ADVI", i, [-1.0] * 400, confidence=top**2, right=right) for i in range(2)],
    }
    ours, theirs = (Records(rows) for rows in two.values())
    found = paired_ece(ours, theirs)
    sides = []
    for confidence in (top, top**2):
        probs = torch.tensor(np.stack([confidence, 1 - confidence], 1))
        probs = probs if confidence is top else torch.cat([probs[:, :1], probs[:, 1:].expand(-1, 9) / 9], 1)
        sides.append(ece(probs, torch.tensor(np.where(right, 0, 1))))
    assert found.mean == pytest.approx(sides[0] - sides[1], abs=1e-9)
    assert 0 < found.over_examples < 0.05
    same = paired_ece(ours, ours)
    assert (same.mean, same.over_examples, same.over_seeds, same.p) == (0, 0, 0, 1)


def test_the_second_printed_step_is_thrown_back_at_a_width_of_1e_minus_6_and_not_at_the_unit_width():
    """The factor that vision/arms.py names, from the rule itself: it is the setting that diverges."""
    count, rate = 1840, ARMS[PRINTED_ARM]["head_lr"]
    c = 1e-6 / count
    g, zero = torch.tensor([0.1], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for sd, expected in ((1e-6, 1 - 2 * rate * (c / 1e-12) ** 2), (math.sqrt(c), 1 - 2 * rate)):
        width = torch.tensor([sd], dtype=torch.float64)
        draws = Draws.of_one(g, zero)
        o = InnerOptions(c, 0.0, 0.0, rate, rate, 0.0, 0.0, ())
        first = inner_gradient(zero, 1 / width, width, -g, zero, draws, o)[0]
        second = inner_gradient(-rate * first, 1 / width, width, -g, zero, draws, o)[0]
        assert float(second / first) == pytest.approx(expected, rel=1e-6)
    assert 1 - 2 * rate * (c / 1e-12) ** 2 < -5_000


def test_the_arm_as_printed_trains_from_the_unit_width_and_is_lost_from_1e_minus_6(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path))
    (run,) = grid_of_one(VISION, PRINTED_ARM)
    (trained,) = VISION.execute([run])
    assert trained.ended == "ok"
    assert trained.metrics["nll"] < math.log(10) + 0.05  # no worse than knowing nothing
    options = {**run.config["options"], "init_sd": 1e-6}
    lost = Run(run.method, 0, {**run.config, "unit_width": False, "options": options})
    (outcome,) = VISION.execute([lost])
    assert outcome.ended == "diverged" or outcome.metrics["nll"] > 2 * math.log(10)


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


def test_the_figure_has_a_row_per_arm_also_where_an_arm_diverged():
    lost = of_metrics(
        PRINTED_ARM, 0, {"reason": "diverged"}, {"data": "pets", "net": "mobilenet_v2", "freeze": 15}
    )
    sets = ("pets", "dtd10")
    records = Records([lost, *(record(arm, 0, [-1.0, -2.0], data) for data in sets for arm in (OURS, PLAIN))])
    (figure,) = vision.figures(records)
    first, second = figure.drawing.axes
    assert [label.get_text() for label in first.get_yticklabels()] == [PRINTED_ARM, OURS, PLAIN]
    assert [label.get_text() for label in second.get_yticklabels()] == [OURS, PLAIN]  # other rows, own names


def test_an_untuned_arm_may_be_above_by_chance_but_not_beyond_it():
    rng = np.random.default_rng(0)

    def records(shift, data):
        hard = rng.exponential(1.0, 300)
        return [
            record(
                arm, seed, list(-hard - rng.exponential(0.3, 300) - shift * (arm == "Ours, untuned")), data
            )
            for arm in ("Ours, untuned", "Plain, untuned")
            for seed in range(3)
        ]

    rule = VISION.claims[3].rule
    assert rule.judge(Records(records(0.0, "pets") + records(-0.2, "dtd10"))).verdict == "reproduced"
    mixed = rule.judge(Records(records(0.3, "pets") + records(-0.2, "dtd10")))
    assert mixed.verdict == "partly"
    assert "above in Pets" in mixed.sentence
    assert rule.judge(Records([])).verdict is None
    alone = [r for r in records(0.3, "pets") if r.seed == 0]
    assert rule.judge(Records(alone)).verdict is None  # one seed says nothing of the spread of seeds


def test_sentences_are_untuned_and_a_plain_network_is_trained_once_for_its_two_arms():
    runs = grid(text.EXPERIMENT, "small")
    for run in runs:
        assert {key: run.config[key] for key in BASE[run.method]} == BASE[run.method]
    plain = [run for run in runs if run.method in (PLAIN, SCALED)]
    assert len({run.group for run in plain}) == len(plain) // 2
    (table, paired) = text.tables(
        Records(
            of_metrics(
                method,
                seed,
                record(method, seed, [-1.0, -2.0 - seed]).metrics,
                {"data": "made", "labels": 24},
            )
            for method in (OURS, PLAIN)
            for seed in range(2)
        )
    )
    assert table.name == "made-24"
    assert [row[:2] for row in paired.rows] == [["made, 24 labels", PLAIN]]


def test_runs_have_distinct_configs():
    others = (module.EXPERIMENT for module in (batchnorm, convergence, cost, text))
    for experiment in (VISION, TUNING, *others):
        for profile in experiment.profiles:
            runs: list[Run] = grid(experiment, profile)
            keys = {(run.method, run.seed, str(sorted(run.config.items(), key=str))) for run in runs}
            assert len(keys) == len(runs), (experiment.id, profile)


def test_the_chosen_settings_are_the_best_of_the_recorded_trials() -> None:
    with (RESULTS / "vision-tuning" / "small" / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for arm in TRIALS:
        best = min((row for row in rows if row["arm"] == arm), key=lambda row: float(row["validation NLL"]))
        words = ", ".join(f"{k}={v}" for k, v in ARMS[arm].get("options", {}).items())
        chosen = (ARMS[arm]["body_lr"], ARMS[arm]["head_lr"], words)
        assert chosen == (float(best["body lr"]), float(best["head lr"]), best["options"]), arm
