"""Options of the network optimizers: which there are, which a group of parameters may have for itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
from small_networks import OPTIMIZERS
from torch import nn

from bayescore import optim
from bayescore.optim.base import BayesianOptimizer
from bayescore.optim.options import COMMON, CommonOptions

KINDS = [getattr(optim, name) for name in optim.__all__ if name != "FamilyOptimizer"]
WHOLE = {"draws": 3, "accumulate": 2, "seed": 7, "max_skips": 9, "update_in_backward": True}


def groups(**options: Any) -> list[dict[str, Any]]:
    return [{"params": nn.Linear(2, 2).parameters()}, {"params": nn.Linear(2, 2).parameters(), **options}]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_holds_for_the_whole_optimizer_is_refused_per_group(kind: str, name: str) -> None:
    message = f"{name} holds for the whole optimizer .* pass {name}={WHOLE[name]} to the optimizer"
    with pytest.raises(ValueError, match=message):
        OPTIMIZERS[kind](groups(**{name: WHOLE[name]}), 50)
    opt = OPTIMIZERS[kind](groups(), 50)
    with pytest.raises(ValueError, match=message):
        opt.add_param_group({"params": nn.Linear(2, 2).parameters(), name: WHOLE[name]})
    assert len(opt.param_groups) == 2


@pytest.mark.parametrize(("name", "value"), [("burn_in", 3), ("thin", 4), ("keep", 5)])
def test_a_chain_has_one_path_for_all_groups(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} holds for the whole optimizer"):
        optim.SGLD(groups(**{name: value}), 50)
    assert optim.SGLD(groups(), 50, **{name: value}).param_groups[1][name] == value


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "update_in_backward"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_group_has_what_the_optimizer_was_given_and_may_repeat_it(kind: str, name: str) -> None:
    for own in ({}, {name: WHOLE[name]}):
        opt = OPTIMIZERS[kind](groups(**own), 50, **{name: WHOLE[name]})
        assert [group[name] for group in opt.param_groups] == [WHOLE[name]] * 2


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.1), ("nats", 3.0)])
def test_the_temperature_that_the_network_bears_is_one_for_all_groups(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} holds for the whole optimizer"):
        optim.ProximalScore(groups(**{name: value}), 50)
    assert optim.ProximalScore(groups(), 50, **{name: value}).param_groups[1][name] == value


OWN = {"proximal": [("prior_scale", 0.5), ("betas", (0.8, 0.99))]}
COMMON_TO_MOST = [("prior_sd", 0.5), ("temperature", 0.1)]
COMMON_TO_ALL = [("lr", 0.05), ("prior_mean", 2.0), ("weight_decay", 0.1), ("compiled", False)]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, *option) for kind in OPTIMIZERS for option in (*COMMON_TO_ALL, *OWN.get(kind, COMMON_TO_MOST))],
)
def test_other_options_may_differ_between_groups(kind: str, name: str, value: Any) -> None:
    first, second = OPTIMIZERS[kind](groups(**{name: value}), 50).param_groups
    assert second[name] == value != first[name]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_option_is_named_beside_the_nearest(kind: type[BayesianOptimizer]) -> None:
    for wrong, right in (
        ("learning_rate", "lr"),
        ("learning_rte", "lr"),
        ("samples", "draws"),
        ("prior_std", "prior_scale" if "prior_sd" in kind.lacks else "prior_sd"),
        ("wieght_decay", "weight_decay"),
        ("temprature", "temperature"),
    ):
        with pytest.raises(
            TypeError, match=f"no option of {kind.__name__} called '{wrong}'; did you mean '{right}'"
        ) as error:
            kind(nn.Linear(2, 2).parameters(), 50, **{wrong: 1})
        assert str(error.value).endswith("choose from " + ", ".join(sorted(kind.options())))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not optim.CalibratedScore])
def test_the_size_of_a_batch_is_asked_for_by_the_only_rule_that_uses_it(
    kind: type[BayesianOptimizer],
) -> None:
    with pytest.raises(TypeError, match=f"no option of {kind.__name__} called 'batch_size'"):
        kind(nn.Linear(2, 2).parameters(), 50, batch_size=10)
    assert "batch_size" in optim.CalibratedScore.options()


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_is_in_the_groups_and_there_is_one_list_of_the_shared_ones(
    kind: type[BayesianOptimizer],
) -> None:
    assert list(CommonOptions.__annotations__) == list(COMMON)
    (group,) = kind(nn.Linear(2, 2).parameters(), 50).param_groups
    assert set(kind.options()) <= set(group)
    assert set(COMMON) - set(kind.options()) == set(kind.lacks)
    assert len(set(kind.options())) == len(kind.options())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("draws", 2.5, TypeError, "draws must be a whole number; got 2.5"),
        ("draws", True, TypeError, "draws must be a whole number; got True"),
        ("draws", 0, ValueError, "draws"),
        ("accumulate", "2", TypeError, "accumulate must be a whole number"),
        ("max_skips", 0, ValueError, "max_skips must be at least 1"),
        ("seed", 1.5, TypeError, "seed must be a whole number; got 1.5"),
        ("lr", "fast", ValueError, "lr must be a positive number; got 'fast'"),
        ("lr", True, ValueError, "lr must be a positive number; got True"),
        ("temperature", None, ValueError, "temperature must be a positive number; got None"),
        ("temperature", float("inf"), ValueError, "temperature must be a positive number; got inf"),
        ("prior_sd", "wide", ValueError, "prior_sd must be a positive number; got 'wide'"),
        ("prior_mean", "given by me", ValueError, "prior_mean must be 0, 'current', or a state dict"),
        ("compiled", "yes", ValueError, "compiled must be True, False or None; got 'yes'"),
        ("update_in_backward", "yes", ValueError, "update_in_backward"),
    ],
)
def test_options_of_the_wrong_kind_are_named_with_what_was_given(
    kind: type[BayesianOptimizer], option: str, value: Any, error: type[Exception], message: str
) -> None:
    if option in kind.lacks:
        message = f"{kind.__name__} has no {option}: {kind.lacks[option]}"
    with pytest.raises(error, match=message):
        kind(nn.Linear(2, 2).parameters(), 50, **{option: value})


@pytest.mark.parametrize(
    ("kind", "option", "value", "error", "message"),
    [
        (optim.ProximalScore, "betas", (0.9, 1.0), ValueError, r"betas must be two numbers in \[0, 1\); got"),
        (optim.ProximalScore, "betas", (0.9,), ValueError, r"betas must be two numbers in \[0, 1\); got"),
        (optim.ProximalScore, "betas", 0.9, ValueError, r"betas must be two numbers in \[0, 1\); got 0.9"),
        (optim.ProximalScore, "betas", ("a", 0.9), ValueError, r"betas must be two numbers in \[0, 1\); got"),
        (optim.ProximalScore, "prior_scale", 0.0, ValueError, "prior_scale must be a positive number; got 0"),
        (optim.ProximalScore, "prior_scale", math.inf, ValueError, "prior_scale must be a positive number"),
        (optim.ProximalScore, "nats", 0.0, ValueError, "nats must be a positive number; got 0.0"),
        (optim.ProximalScore, "nats", math.nan, ValueError, "nats must be a positive number; got nan"),
        (optim.ProximalScore, "init_sd", 0.1, ValueError, "ProximalScore has no init_sd: its widths start"),
        (optim.ProximalScore, "prior_sd", 0.1, ValueError, "ProximalScore has no prior_sd: give prior_scale"),
        (optim.CalibratedScore, "momentum", 1.0, ValueError, r"momentum must lie in \[0, 1\); got 1.0"),
        (optim.CalibratedScore, "damping", 0.0, ValueError, "damping must be a positive number; got 0.0"),
        (optim.CalibratedScore, "batch_size", 0, ValueError, "batch_size must be at least 1; got 0"),
        (optim.CalibratedScore, "batch_size", 9.0, TypeError, "batch_size must be a whole number; got 9.0"),
        (optim.ProximalDescent, "optimizer", "lion", ValueError, "must be 'adam' or 'sgd'; got 'lion'"),
        (optim.ProximalDescent, "momentum", -0.1, ValueError, r"momentum must lie in \[0, 1\); got -0.1"),
        (optim.ProximalDescent, "sd_rate", 0, ValueError, "sd_rate must be a positive number; got 0"),
        (optim.ProximalDescent, "inner_steps", 0, ValueError, "inner_steps must be at least 1; got 0"),
        (optim.ProximalDescent, "steps", 0, ValueError, "steps must be at least 1; got 0"),
        (optim.ProximalDescent, "alpha", -1.0, ValueError, "alpha must not be negative; got -1.0"),
        (optim.ProximalDescent, "floor", -1.0, ValueError, "floor must not be negative; got -1.0"),
        (optim.ADVI, "sd_rate", -1.0, ValueError, "sd_rate must be a positive number; got -1.0"),
        (optim.BaM, "draws", 1, ValueError, "BaM needs draws of at least 2; got 1"),
        (optim.PairedBaM, "draws", 1, ValueError, "BaM needs draws of at least 2; got 1"),
        (optim.PairedBaM, "damping", -1.0, ValueError, "damping must be a positive number; got -1.0"),
        (optim.SGLD, "init_sd", 0.1, ValueError, "SGLD has no init_sd"),
        (optim.SGLD, "average", 0.1, ValueError, "SGLD has no average"),
        (optim.SGLD, "thin", 0, ValueError, "thin must be at least 1; got 0"),
    ],
)  # fmt: skip
def test_own_options_that_make_no_sense_are_refused(
    kind: type[BayesianOptimizer], option: str, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kind(nn.Linear(2, 2).parameters(), 50, **{option: value})
