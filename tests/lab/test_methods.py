"""Recorded configs keep their words, and every one of them still makes a method or an optimizer."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from bayescore import methods, optim
from bayescore_lab.engine import find_experiments, plan
from bayescore_lab.engine.records import dumps
from bayescore_lab.experiments.networks.linear_gaussian import DATA
from bayescore_lab.experiments.networks.training import LEARNERS, network
from bayescore_lab.experiments.synthetic.fits import _family
from bayescore_lab.methods import low_dimensional_method, network_optimizer

SERVED = {"full": "FullGaussian", "diagonal": "DiagonalGaussian", "mixture": "GaussianMixture"}
#: what a method may be given in place of a mixture
GAUSSIAN_ONLY = ("gsm", "bam")


def configs(*areas: str) -> list[dict]:
    """The distinct configs of the experiments in these areas, of every profile."""
    found: dict[str, dict] = {}
    for experiment in find_experiments().values():
        if any(area in str(experiment.execute) for area in areas):
            for profile in experiment.profiles:
                for run in plan(experiment, profile, seeds=1).runs.values():
                    found.setdefault(dumps(run.config, sort_keys=True), dict(run.config))
    return list(found.values())


def test_every_synthetic_config_makes_a_method_that_serves_its_family():
    every = configs("synthetic.fits")
    assert len(every) > 100
    for config in every:
        for rate in config["learning_rates"] or [None]:
            options = dict(config["options"])
            if rate is not None:
                options |= {"learning_rate": rate}
                if config["method"] == "proximal":
                    options.setdefault("metric", "euclidean")
            method = low_dimensional_method(config["method"], family=_family(config), **options)
            assert SERVED[_family(config)] in method.serves or config["method"] in GAUSSIAN_ONLY


def test_every_posteriordb_config_makes_a_method_that_serves_its_family():
    every = configs("posteriordb.fits")
    assert len(every) > 50
    for config in every:
        family = "mixture" if config.get("components") else "full"
        method = low_dimensional_method(config["method"], family=family, **config["options"])
        assert SERVED[family] in method.serves


def test_every_network_config_makes_a_learner():
    every = configs("mnist_fits")
    kinds = {(config["kind"], dumps(config["options"])): config for config in every}
    assert len(kinds) > 100
    for (kind, _), config in kinds.items():
        if kind != "ivon" or find_spec("ivon") is not None:
            LEARNERS[kind](network(0, (2,)), 40, 40, 10, 0, dict(config["options"]))


def test_every_config_of_the_linear_model_makes_an_optimizer():
    for config in configs("linear_fits"):
        p = torch.nn.Parameter(torch.zeros(2))
        sized = {"batch_size": config["batch"]} if config.get("sized") else {}
        network_optimizer(config["shell"], [p], DATA, **config.get("options", {}), **sized)


@pytest.mark.parametrize(
    ("words", "family", "method"),
    [
        ({}, "full", methods.WhitenedDescent()),
        ({}, "diagonal", methods.WhitenedDescent()),
        ({}, "mixture", methods.ProximalDescent()),
        ({"metric": "euclidean", "learning_rate": 0.03}, "full", methods.ProximalDescent(lr=0.03)),
        (
            {"metric": "covariance", "optimizer": "adam", "samples": 3},
            "full",
            methods.WhitenedDescent(inner_steps=20, optimizer="adam", draws=3),
        ),
        ({"solver": "exact"}, "diagonal", methods.ProximalRidge()),
        (
            {"decay": "constant", "floor": 0.0},
            "mixture",
            methods.ProximalDescent(schedule="constant", floor=0.0),
        ),
    ],
)
def test_recorded_proximal_is_the_method_that_it_was(words, family, method):
    assert low_dimensional_method("proximal", family=family, **words) == method


def test_batch_of_bam_and_gsm_is_their_number_of_draws():
    assert low_dimensional_method("bam", batch=32) == methods.BaM(draws=32)
    assert low_dimensional_method("gsm", batch=16) == methods.GSM(draws=16)


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("proximal", {"batch_size": 8}, optim.CalibratedScore),
        ("proximal", {"solver": "exact"}, optim.CalibratedScore),
        ("default", {"batch_size": 8}, optim.ProximalScore),
        ("proximal", {"solver": "gradient", "batch_size": 8}, optim.ProximalDescent),
        ("bam", {}, optim.PairedBaM),
        ("bam", {"published": True}, optim.BaM),
        ("advi", {"samples": 2}, optim.ADVI),
        ("sgld", {}, optim.SGLD),
    ],
)
def test_recorded_optimizers_are_those_that_they_were(name, words, kind):
    optimizer = network_optimizer(name, [torch.nn.Parameter(torch.zeros(2))], 100, **words)
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["draws"] == words.get("samples", 2 if name == "bam" else 1)
