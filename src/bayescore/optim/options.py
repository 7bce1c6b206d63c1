"""The options that every network optimizer shares, and what a parameter group may say, checked once."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, TypedDict

import torch
from torch import Tensor

from bayescore.checks import check_count

__all__ = [
    "COMMON",
    "COUNTERS",
    "WHOLE",
    "CommonOptions",
    "check_group",
    "check_num_data",
    "check_own_groups",
    "check_prior_names",
    "initial_sd",
    "positive",
    "prior_tensor",
    "shown",
]


class CommonOptions(TypedDict, total=False):
    """Options of every network optimizer.

    init_sd: initial standard deviation; None: that of unit curvature per datum, at most 0.05 and at most half
        of the weights' root mean square.
    prior_mean, prior_sd: the prior N(prior_mean, prior_sd^2): 0, a number, "current" for the weights as they
        are, or a state dict (names it lacks are centred at zero). prior_sd=math.inf is flat.
    weight_decay: the mean also decays towards the prior's, by lr * weight_decay per step, as in AdamW.
    average: the posterior's mean is an average over the updates so far, (3) of optim/base.py, from 1 for all
        alike to little for the last ones (a number more per weight); 0: the last one's.
    temperature: tau; the likelihood is raised to 1/tau.
    draws: draws per step with `opt.step(closure)`.
    accumulate: backward calls per block whose gradients are to be averaged.
    seed: of the noise.
    max_skips: updates in a row that may be left out for non-finite gradients before the run stops.
    compiled: run the update compiled; None: from 500,000 weights on.
    update_in_backward: update large tensors when their gradients arrive, whose memory is then free again
        (optim/gradients.py); not with several draws, accumulation, GradScaler or clipping by the global norm.
    """

    init_sd: float | None
    prior_mean: Any
    prior_sd: float
    weight_decay: float
    average: float
    temperature: float
    draws: int
    accumulate: int
    seed: int
    max_skips: int
    compiled: bool | None
    update_in_backward: bool


#: their defaults
COMMON: dict[str, Any] = {
    "init_sd": None,
    "prior_mean": 0.0,
    "prior_sd": 1.0,
    "weight_decay": 0.0,
    "average": 0.0,
    "temperature": 1.0,
    "draws": 1,
    "accumulate": 1,
    "seed": 0,
    "max_skips": 50,
    "compiled": None,
    "update_in_backward": False,
}

#: what holds for the optimizer as a whole, not for a group of parameters
WHOLE = ("draws", "accumulate", "seed", "max_skips", "update_in_backward")

#: what a group counts: steps, updates, draws since the last step and how many of these are in the sums, ...
COUNTERS = ("step", "updates", "taken", "collected", "skipped", "skipped_in_a_row", "last_draws")

#: numbers with squares that float32 holds in full
LEAST, MOST = 1e-18, 1e18
SLIP = 0.8  # likeness of two words from which one is taken for the other, misspelt: "wieght" has 0.83
#: widest standard deviation that weights start with unless the user says so, and as a share of their size
WIDEST, WIDEST_SHARE = 0.05, 0.5


def positive(name: str, value: Any, *, infinite: bool = False) -> None:
    """Raise unless `value` is a positive number whose square and inverse a rule can use."""
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not value > 0 or (value == math.inf and not infinite):
        raise ValueError(f"{name} must be a positive number; got {value!r}")
    if value == math.inf:
        return
    if not LEAST <= value <= MOST:
        flat = ", or be math.inf" if infinite else ""
        raise ValueError(
            f"{name} must be a positive number between {LEAST:g} and {MOST:g}{flat}, because its square must "
            f"be a float32 number; got {shown(value)}"
        )


def shown(value: Any) -> str:
    """A value as a sentence shows it: a whole number of very many digits by its size."""
    long = isinstance(value, int) and abs(value) > MOST
    return f"about 1e{math.log10(abs(value)):.0f}" if long else repr(value)


def check_num_data(value: Any) -> None:
    """Raise unless `value` can be the size of a data set."""
    check_count("num_data", value)
    if value > MOST:
        raise ValueError(f"num_data must be at most {MOST:g}; got {shown(value)}")


def check_group(group: dict[str, Any]) -> None:
    """Raise unless the shared options of a parameter group make sense."""
    check_num_data(group["num_data"])
    for name in ("draws", "accumulate", "max_skips"):
        check_count(name, group[name])
    for name in ("steep_watch", *COUNTERS):
        check_count(name, group[name], 0)
    for name in ("temperature", "lr"):
        positive(name, group[name])
    if not 0 < group["lr_factor"] <= 1:
        raise ValueError(f"lr_factor must be positive and at most 1; got {group['lr_factor']!r}")
    positive("prior_sd", group["prior_sd"], infinite=True)
    if group["weight_decay"] != 0:
        positive("weight_decay", group["weight_decay"])
        if group["lr"] * group["weight_decay"] >= 1:
            raise ValueError(
                "lr * weight_decay is the share of a weight that each step takes off and must be below 1; "
                f"got {group['lr']:g} * {group['weight_decay']:g}"
            )
    share = group["average"]
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(
            "average is the share of the updates that the posterior's mean looks back on, "
            f"from 0 (none) to 1 (all of them); got {share!r}"
        )
    if group["init_sd"] is not None:
        positive("init_sd", group["init_sd"])
    if group.get("batch_size") is not None:
        check_count("batch_size", group["batch_size"])
    if isinstance(group["seed"], bool) or not isinstance(group["seed"], int):
        raise TypeError(f"seed must be a whole number; got {group['seed']!r}")
    if group["compiled"] not in (None, True, False):
        raise ValueError(f"compiled must be True, False or None; got {group['compiled']!r}")
    if group["update_in_backward"] not in (True, False):
        raise ValueError(f"update_in_backward must be True or False; got {group['update_in_backward']!r}")
    _check_prior_mean(group)


def check_own_groups(group: dict[str, Any], defaults: dict[str, Any], whole: Sequence[str]) -> None:
    """Refuse options of a group that hold for the optimizer as a whole."""
    for name in whole:
        if name in group and group[name] != defaults[name]:
            raise ValueError(
                f"{name} holds for the whole optimizer and cannot differ between groups of parameters; "
                f"pass {name}={group[name]!r} to the optimizer"
            )


def _check_prior_mean(group: dict[str, Any]) -> None:
    value = group["prior_mean"]
    if isinstance(value, str):
        if value not in ("current", "given"):
            raise ValueError(f"prior_mean must be 0, 'current', or a state dict by name; got {value!r}")
    elif isinstance(value, dict):
        if "param_names" not in group:
            raise ValueError(
                "prior_mean as a state dict needs the parameters' names; "
                "pass model.named_parameters() instead of model.parameters()"
            )
    elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST:
        raise ValueError(
            f"prior_mean must be 0 or a number up to {MOST:g}, 'current', or a state dict by name; "
            f"got {shown(value)}"
        )


def check_prior_names(groups: list[dict[str, Any]]) -> None:
    """Look for mistakes in the names of prior means.

    A state dict that names none of the parameters is that of another model, and refused. It may lack some (a
    new head) and have others (buffers, another head); one it lacks beside another that is nearly spelt like
    it is worth a warning.
    """
    named = [group for group in groups if isinstance(group["prior_mean"], dict)]
    names = {
        name: p for group in named for name, p in zip(group["param_names"], group["params"], strict=True)
    }
    given = {name: value for group in named for name, value in group["prior_mean"].items()}
    if names and not set(names) & set(given):
        other = f"its first name is {next(iter(given))!r}" if given else "it is empty"
        first = next(iter(names))
        raise ValueError(
            f"prior_mean names none of the parameters: {other}, the first parameter is {first!r}; "
            "rename its entries (a prefix such as 'module.'?), or pass 0 for a prior centred at zero"
        )
    lacking = [name for name in names if name not in given]
    for other in (other for other in given if other not in names):
        for name in lacking:
            if getattr(given[other], "shape", None) == names[name].shape and _misspelt(other, name):
                warnings.warn(
                    f"prior_mean has {other!r}, which is no parameter of the optimizer, and lacks {name!r}, "
                    "whose prior is therefore centred at zero; rename the entry, or leave it out",
                    UserWarning,
                    stacklevel=4,
                )


def _misspelt(one: str, two: str) -> bool:
    """Whether two names differ in one of their parts, and in that by a slip; layers 1 and 2 are no slip."""
    pairs = zip(one.split("."), two.split("."), strict=False)
    apart = [(a, b) for a, b in pairs if a != b]
    if one.count(".") != two.count(".") or len(apart) != 1:
        return False
    a, b = apart[0]
    return re.findall(r"\d+", a) == re.findall(r"\d+", b) and SequenceMatcher(None, a, b).ratio() >= SLIP


def prior_tensor(group: dict[str, Any], position: int, mean: Tensor) -> Tensor | None:
    """The prior mean of one parameter, or None where one number serves for all.

    A state dict centres the parameters it names; those it does not name are centred at zero.
    """
    value = group["prior_mean"]
    if value == "current":
        return mean.clone()
    if value == "given":
        raise ValueError(
            "the checkpoint holds no prior mean of a tensor that was frozen when it was written; "
            "train it in a group of its own (add_param_group), with its prior_mean"
        )
    if not isinstance(value, dict):
        return None
    name = group["param_names"][position]
    if name not in value:
        return mean.new_zeros(mean.shape)
    if value[name].shape != mean.shape:
        raise ValueError(
            f"prior_mean[{name!r}] has the shape {tuple(value[name].shape)} and the parameter "
            f"{tuple(mean.shape)}; leave the name out for a prior centred at zero"
        )
    given = value[name].detach().to(mean).clone()
    if not given.isfinite().all():
        raise ValueError(
            f"prior_mean[{name!r}] holds numbers that are not finite; leave the name out for a prior centred "
            "at zero, or load other weights"
        )
    return given


def initial_sd(group: dict[str, Any]) -> float:
    """The initial sd where none is given: that of unit curvature per datum, within bounds.

    One datum of mean-loss curvature 1 makes the posterior precision num_data/temperature + 1/prior_sd^2. The
    bounds are 0.05, and half of the root mean square of the group's weights: beyond it the noise drowns the
    network that training starts from.
    """
    precision = group["num_data"] / group["temperature"] + group["prior_sd"] ** -2.0
    found = min(WIDEST, precision**-0.5)
    weights = [p.detach() for p in group["params"]]
    squares = sum(float(torch.linalg.vector_norm(p)) ** 2 for p in weights)
    if squares > 0 and math.isfinite(squares):
        found = min(found, WIDEST_SHARE * math.sqrt(squares / sum(p.numel() for p in weights)))
    return max(LEAST, float(found))
