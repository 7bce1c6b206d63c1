"""Numbers out of range: refused as options, noticed in the state, never handed on."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, large_from, train
from torch import nn

from bayescore.optim import ADVI, SGLD, BaM, CalibratedScore, PairedBaM, ProximalDescent, ProximalScore
from bayescore.optim.base import BayesianOptimizer

MLP = NETWORKS["mlp"]
LOST = r"from finite gradients: lower lr .* or temperature .* the last checkpoint is good"


def started(kind: str, num_data: int = 50, **options: Any) -> tuple[nn.Module, BayesianOptimizer]:
    model = MLP.module(torch.float32)
    return model, OPTIMIZERS[kind](model.parameters(), num_data, **options)


@pytest.mark.parametrize("value", [1e-200, 1e-30, 1e30, pytest.param(10**400, id="1e400")])
@pytest.mark.parametrize("name", ["prior_sd", "init_sd", "temperature", "lr", "weight_decay"])
@pytest.mark.parametrize(
    "kind", [ADVI, BaM, PairedBaM, ProximalDescent, CalibratedScore, ProximalScore, SGLD]
)
def test_options_whose_squares_are_no_float32_numbers_are_refused(
    kind: type[BayesianOptimizer], name: str, value: float
) -> None:
    if name in kind.lacks:
        name = {SGLD: "prior_sd", ProximalScore: "prior_scale" if name == "prior_sd" else "nats"}[kind]
    with pytest.raises(
        ValueError, match=rf"{name} must be a positive number between 1e-18 and 1e\+18.*; got"
    ):
        kind(nn.Linear(2, 2).parameters(), 50, **{name: value})


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_data_set_larger_than_any_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"num_data must be at most 1e\+18; got about 1e400"):
        started(kind, 10**400)


@pytest.mark.parametrize("value", [1e30, -1e30, pytest.param(10**400, id="1e400"), math.inf, math.nan])
def test_a_prior_mean_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"prior_mean must be 0 or a number up to 1e\+18"):
        started("proximal", prior_mean=value)


def test_prior_means_that_are_not_finite_are_refused() -> None:
    model = nn.Linear(2, 2)
    given = {"weight": torch.full((2, 2), torch.nan), "bias": torch.zeros(2)}
    opt = ProximalScore(model.named_parameters(), 50, prior_mean=given)
    with pytest.raises(ValueError, match=r"prior_mean\['weight'\] holds numbers that are not finite"):
        opt.state_dict()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_ends_of_the_range_train_or_are_noticed(
    kind: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the options, the weights are finite, or the sentence names what to lower."""
    if large:  # the noise is computed from the draw, theta - mean over sd
        large_from(0, monkeypatch)
    widths = ("prior_scale", "nats") if kind == "proximal" else ("prior_sd", "init_sd")
    for name in (*widths, "temperature", "lr"):
        if (kind.endswith("sgld") and name == "init_sd") or (kind == "psgld" and name == "lr"):
            continue
        for value in (1e-18, 1e18):
            decay = {"weight_decay": 0.0} if kind == "proximal" else {}  # lr * 0.01 must be below 1
            model, opt = started(kind, **{name: value}, **decay)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a gradient may overflow before the state
                try:
                    train(opt, MLP, model, 12)
                except FloatingPointError as error:
                    assert "lower lr" in str(error)  # noqa: PT017
                    continue
            assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("proximal", {"lr": 1e18, "weight_decay": 0.0, "betas": (0.9, 0.0)}),
        ("calibrated", {"temperature": 1e6}),
        ("calibrated", {"lr": 1e9}),
        ("descent", {"lr": 1e9}),
        ("advi", {"lr": 1e9}),
        ("sgld", {"temperature": 1e6}),
        ("sgld", {"lr": 1e9}),
        ("psgld", {"temperature": 1e6}),
        ("calibrated", {"init_sd": 1e17}),
        ("published-bam", {"init_sd": 1e17}),
    ],
)
def test_a_state_that_finite_gradients_have_spoilt_blames_the_options(
    kind: str, options: dict[str, Any]
) -> None:
    model, opt = started(kind, **options)
    with pytest.raises(FloatingPointError, match=LOST):  # and no warning that blames a gradient
        train(opt, MLP, model, 60)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_spoilt_state_is_neither_saved_nor_made_a_posterior(kind: str) -> None:
    model, opt = started(kind)
    train(opt, MLP, model, 5)
    good = copy.deepcopy(opt.state_dict())
    first = next(iter(opt.state.values()))
    first["mean"][0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match=LOST):
        opt.state_dict()
    with pytest.raises(FloatingPointError, match=LOST):
        opt.posterior(model)
    opt.load_state_dict(good)
    train(opt, MLP, model, 1, first=5)
    opt.posterior(model)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("proximal", {"lr": 3e4, "weight_decay": 0.0}),
        ("calibrated", {"lr": 1e4, "momentum": 0.0, "prior_sd": 1e6, "init_sd": 1e-3}),
    ],
)
def test_weights_that_overflow_in_half_precision_are_noticed(kind: str, options: dict[str, float]) -> None:
    model = nn.Linear(2, 1, bias=False).half()
    opt = OPTIMIZERS[kind](model.parameters(), 50, **options)
    with pytest.raises(FloatingPointError, match=LOST):  # noqa: PT012
        for _ in range(5):
            with opt.sample():
                (-100 * model.weight.sum()).backward()
            opt.step()
            opt.zero_grad()


def test_weights_that_are_not_finite_before_training_are_refused() -> None:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.bias, torch.nan)
    opt = ProximalScore(model.parameters(), 50)
    with pytest.raises(ValueError, match=r"shape \(2,\) holds numbers that are not finite"), opt.sample():
        pass


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_weights_without_memory_are_refused(kind: str) -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) is on the meta device and has no numbers"):
        OPTIMIZERS[kind](model.parameters(), 50)


def test_a_rate_of_zero_leaves_the_sds_of_published_bam_where_they_are() -> None:
    model = MLP.module(torch.float32)
    opt = BaM(model.parameters(), 50, init_sd=0.03)
    torch.optim.lr_scheduler.LambdaLR(opt, lambda _: 0.0)
    train(opt, MLP, model, 3)
    for state in opt.state.values():
        torch.testing.assert_close(state["sd"], torch.full_like(state["sd"], 0.03))
