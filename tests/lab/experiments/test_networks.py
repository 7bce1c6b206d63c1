"""The network experiments: splits, learners, the methods as printed, and small runs of some arms."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from toy_tools import make_record

from bayescore.data import Images, Split
from bayescore.models import mlp
from bayescore_lab.engine import Records
from bayescore_lab.engine.verdicts import NOT_REPRODUCED
from bayescore_lab.experiments.networks import linear_gaussian, mnist, mnist_tuning, scale_limits
from bayescore_lab.experiments.networks.mnist_arms import ARMS, DECAY_POWER, TUNED, EpochBudget, scaled
from bayescore_lab.experiments.networks.scale_worker import attempt
from bayescore_lab.experiments.networks.training import LEARNERS, batches, learn, network
from bayescore_lab.reference.networks import PrintedADVI, PrintedProximal

SHORT = EpochBudget(epochs=2, every=1, patience=2, batch_size=16, draws=2)


def little(count=40):
    x = torch.randn(count, 28, 28, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, 0] > 0).long()
    return Images(x, y)


SMALL = Split(little(), little(20))


def test_batches_have_nearly_equal_sizes_and_hold_everything():
    parts = batches(600, 128, torch.Generator().manual_seed(0))
    assert [len(p) for p in parts] == [120] * 5
    assert sorted(torch.cat(parts).tolist()) == list(range(600))


@pytest.mark.parametrize("kind", [k for k in LEARNERS if k != "ivon"])
def test_every_learner_learns_from_the_same_calls(kind):
    options = {"dropout": {"p": 0.1}}.get(kind, {"init_sd": 0.01} if "printed" in kind else {})
    found = learn(kind, dict(options), SMALL, network(0, (8,)), 0, SHORT)
    assert found.steps >= 2
    if kind != "proximal-as-printed":
        assert math.isfinite(found.validation_nll)
        assert found.posterior is not None


def test_a_run_does_not_depend_on_what_ran_before_it():
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # somebody else's
        state = torch.get_rng_state()
        found.append(learn("dropout", {"p": 0.3}, SMALL, network(0, (8,)), 0, SHORT).validation_nll)
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["plain", "dropout", "proximal", "advi"])
def test_any_learner_may_average_and_learns_the_same_meanwhile(kind):
    found = []
    for average in (0.0, 0.5):
        torch.manual_seed(0)
        model = network(0, (8,))
        options = {"p": 0.1} if kind == "dropout" else {}
        learner = LEARNERS[kind](model, 40, 40, 10, 0, {**options, "average": average})
        path = []
        for _ in range(5):
            learner.step(SMALL.train.x, SMALL.train.y)
            path.append(next(model.parameters()).detach().clone())
        found.append(path)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    mean = torch.zeros_like(path[0])
    for t, weight in enumerate(path, 1):
        mean += (weight - mean) / max(1.0, 0.5 * t)
    posterior = learner.posterior()
    with posterior.mean_() as averaged:
        torch.testing.assert_close(next(averaged.parameters()).detach(), mean)
    assert torch.equal(next(model.parameters()).detach(), path[-1])


def test_ivon_learns_beside_the_others():
    pytest.importorskip("ivon")
    options = {"lr": 0.1, "hess_init": 0.5, "weight_decay": 1e-3}
    found = learn("ivon", options, SMALL, network(0, (8,)), 0, SHORT)
    assert math.isfinite(found.validation_nll)


def printed(kind, init_sd=0.3):
    torch.manual_seed(0)
    model = mlp(3, (), 2).double()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])
    return kind(model, 50, 10, seed=0, init_sd=init_sd), lambda: F.cross_entropy(model(x), y)


@pytest.mark.parametrize("kind", [PrintedADVI, PrintedProximal])
def test_the_first_gradient_as_printed_is_that_of_autograd(kind):
    method, loss = printed(kind)
    name = next(iter(method.mean))
    mean0, rho0 = method.mean[name].clone(), method.rho[name].clone()
    seen = {}
    inner = method.update

    def update(which, G, eps):
        if which == name:
            seen.update(G=G.clone(), eps=eps.clone())
        inner(which, G, eps)

    method.update = update
    if kind is PrintedProximal:
        method.inner_steps = 1
    method.step(loss)
    m, rho = mean0.clone().requires_grad_(), rho0.clone().requires_grad_()
    G, eps = seen["G"], seen["eps"]
    if kind is PrintedADVI:
        kl = (rho.exp().square() + m.square()).sum() / 2 - rho.sum()
        objective = (G * (m + rho.exp() * eps)).sum() + kl / 50
    else:
        theta = mean0 + rho0.exp() * eps
        g = (m - theta) / rho.exp().square()
        objective = (g - (-50 * G - theta)).square().sum()
    to_m, to_rho = torch.autograd.grad(objective, (m, rho))
    torch.testing.assert_close(method.mean[name], mean0 - 0.01 * to_m)
    torch.testing.assert_close(method.rho[name], rho0 - 0.01 * to_rho)


def test_members_and_arms_are_listed_for_every_percentage():
    runs = mnist.runs({}, [0, 1], tuple(ARMS))
    assert {run.config["percent"] for run in runs} == {0.1, 0.5, 1.0, 5.0, 10.0, 99.0}
    assert sum(run.config["percent"] == 99.0 for run in runs) == len(ARMS)
    groups = {run.group for run in runs if run.method in ("Plain", "Laplace", "Ensemble x5")}
    assert all(groups)


def test_every_tuned_method_has_as_many_trials():
    assert {len(trials) for trials in mnist_tuning.TRIALS.values()} == {12}
    assert set(mnist_tuning.TRIALS) == set(TUNED)


def test_the_settings_of_the_experiment_are_those_that_won_on_validation():
    table = Path(__file__).parents[3] / "results" / "mnist-tuning" / "table.csv"
    with table.open() as file:
        rows = [dict(zip(("method", "options", "nll", "epoch", "place", "used"), row, strict=True))
                for row in list(csv.reader(file))[1:]]  # fmt: skip
    best = {row["method"]: json.loads(row["options"]) for row in rows if row["place"] == "best"}
    assert best == {name: spec["options"] for name, spec in TUNED.items()}
    with table.with_name("table-decay.csv").open() as file:
        rows = list(csv.DictReader(file))
    mean = {power: sum(float(row["validation NLL"]) for row in rows if float(row["power"]) == power)
            for power in mnist_tuning.POWERS}  # fmt: skip
    assert min(mean, key=lambda power: mean[power]) == DECAY_POWER


def test_the_decay_per_step_falls_with_the_square_root_of_the_steps_of_an_epoch():
    options = {"lr": 0.1, "weight_decay": 20.0}
    assert scaled(options, 1.0) == options
    assert scaled(options, 10.0)["weight_decay"] == pytest.approx(20 * (5 / 47) ** 0.5)
    assert scaled(options, 10.0, 1.0)["weight_decay"] == pytest.approx(20 * 5 / 47)
    assert scaled({"lr": 0.1}, 10.0) == {"lr": 0.1}


@pytest.mark.skipif("BAYESCORE_DATA" not in os.environ, reason="MNIST is read from the folder BAYESCORE_DATA")
def test_a_small_mnist_run_gives_every_number_of_the_table():
    if importlib.util.find_spec("laplace") is None:
        pytest.skip("laplace-torch is not installed")
    few = {**mnist.QUICK, "percentages": {"0.1": {}}, "schedule": {"epochs": 2, "every": 1, "patience": 5},
           "hidden": [10], "test_limit": 50}  # fmt: skip
    runs = mnist.runs(few, [0], ("Plain", "Plain, temperature", "Laplace", "Ensemble x5", "Ours, exact"))
    grouped = [run for run in runs if run.group]
    outcomes = [*mnist.execute(grouped), *mnist.execute([run for run in runs if not run.group])]
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert set(mnist.METRICS.values()) <= set(outcome.metrics)
        assert all(math.isfinite(outcome.metrics[name]) for name in ("nll", "nll_30", "ece", "auroc_entropy"))


def test_a_method_runs_within_its_limit_and_says_why_it_does_not(monkeypatch: pytest.MonkeyPatch):
    config = {"method": "bam", "family": "diagonal", "options": {}, "hidden": [1], "steps": 1}
    assert attempt(config)["ran"]

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("you tried to allocate 8 GB")

    monkeypatch.setattr("bayescore_lab.experiments.networks.scale_worker.fit", full)
    refused = attempt(config)
    assert not refused["ran"]
    assert refused["reason"] == "you tried to allocate 8 GB"


def test_a_mistake_in_the_program_is_no_limit_of_the_memory():
    config = {"method": "gsm", "family": "diagonal", "options": {}, "hidden": [1], "steps": 1}
    with pytest.raises(TypeError, match="GSM cannot fit"):
        attempt(config)


def test_the_ladder_ends_with_the_papers_network():
    runs = scale_limits.runs({}, [0], ("BaM, full",))
    assert runs[-1].config["hidden"] == [1000, 1000, 1000]


def test_the_linear_model_counts_what_was_learned_and_judges_the_status():
    few = {"long": {"batch": 32, "temperature": 1.0, "steps": 3}, "steps": 2,
           "kappas": [(1000, 1.0), (10, 1e-6)]}  # fmt: skip
    runs = linear_gaussian.runs(few, [0], ("ProximalScore(batch_size=B)", "BaM, 2 draws"))
    records = Records(
        replace(make_record("x"), method=run.method, config=dict(run.config), metrics=dict(outcome.metrics))
        for run, outcome in zip(runs, linear_gaussian.EXPERIMENT.execute(runs), strict=True)
    )
    assert [record.metrics["learned"] for record in records] == [False] * 6
    assert all(0 < record.metrics["sd_rms"] <= record.metrics["sd_worst"] for record in records)
    long, kappas = linear_gaussian.tables(records)
    assert [row[0] for row in long.rows] == ["ProximalScore(batch_size=B)", "BaM, 2 draws"]
    assert list(kappas.columns) == ["method", "kappa 1", "kappa 1e+08"]
    (claim,) = linear_gaussian.EXPERIMENT.claims
    assert claim.rule.judge(records).verdict is None
    sure = replace(records[0], metrics={"learned": True, "sd_worst": 0.2})
    assert claim.rule.judge(Records([sure])).verdict == NOT_REPRODUCED
