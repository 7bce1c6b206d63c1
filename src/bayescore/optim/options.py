"""The options that all network optimizers share, and the checks of a parameter group's options."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, TypedDict

from torch import Tensor

from bayescore.checks import check_count
from bayescore.optim.distributed import norms
from bayescore.optim.losses import check_losses
from bayescore.posteriors.shards import part_like

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

    init_sd: initial standard deviation; None: that for unit curvature per datum, at most 0.05 and at most
        half of the weights' root mean square.
    prior_mean, prior_sd: the prior N(prior_mean, prior_sd^2): 0, a number, "current" for the weights as they
        are, or a state dict (names it lacks are centred at zero). prior_sd=math.inf is flat.
    weight_decay: the mean also decays towards the prior's, by lr * weight_decay per step, as in AdamW.
    average: f of (3) in optim/base.py: the posterior's mean is an average over the updates so far; 1 weighs
        all of them equally, a smaller f the later ones more; 0: the mean after the last update. Costs one
        more number per weight.
    temperature: tau; the likelihood is raised to 1/tau.
    draws: draws per step with `opt.step(closure)`.
    accumulate: backward calls per block whose gradients are to be averaged.
    seed: of the noise.
    max_skips: updates in a row that may be left out for non-finite gradients before the run stops.
    compiled: run the update compiled; None: from 500,000 weights on.
    update_in_backward: update each large tensor as soon as its gradient is complete, and free the gradient's
        memory (optim/gradients.py); not with several draws, accumulation, GradScaler or clipping by the
        global norm.
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


#: the defaults of `CommonOptions`
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

#: options of the optimizer as a whole, which cannot differ between groups of parameters
WHOLE = ("draws", "accumulate", "seed", "max_skips", "update_in_backward")

#: counters in a group: steps, updates, draws since the last step ("taken") and how many of these are in the
#: running sums ("collected"), ...
COUNTERS = ("step", "updates", "taken", "collected", "skipped", "skipped_in_a_row", "last_draws")

#: the range of options whose squares float32 can hold
LEAST, MOST = 1e-18, 1e18
SLIP = 0.8  # least similarity at which one word counts as a misspelling of another: "wieght" has 0.83
#: largest default init_sd, absolute and relative to the root mean square of the weights
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
    """Raise unless the shared options of a parameter group are valid."""
    check_num_data(group["num_data"])
    for name in ("draws", "accumulate", "max_skips"):
        check_count(name, group[name])
    for name in ("steep_watch", *COUNTERS):
        check_count(name, group[name], 0)
    check_losses(group)
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
    quanta = group["quanta"]
    if not isinstance(quanta, tuple | list) or len(quanta) not in (0, len(group["params"])):
        raise ValueError(f"quanta must be one number per parameter, or none; got {quanta!r}")
    if not all(
        isinstance(q, float) and (q == 0 or (0 < q <= MOST and math.frexp(q)[0] == 0.5)) for q in quanta
    ):
        raise ValueError(f"quanta must be powers of two, or zero; got {quanta!r}")
    _check_prior_mean(group)


def check_own_groups(group: dict[str, Any], defaults: dict[str, Any], whole: Sequence[str]) -> None:
    """Refuse a group's own value of an option that belongs to the optimizer as a whole."""
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

    A state dict that names none of the parameters belongs to another model and is refused. It may lack some
    parameters (a new head) and have other entries (buffers, another head). If it lacks a parameter and has an
    entry whose name is spelt almost the same, there is a warning.
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
    """Whether two dotted names differ in one part only, by a misspelling; numbers of layers must agree."""
    pairs = zip(one.split("."), two.split("."), strict=False)
    different = [(a, b) for a, b in pairs if a != b]
    if one.count(".") != two.count(".") or len(different) != 1:
        return False
    a, b = different[0]
    return re.findall(r"\d+", a) == re.findall(r"\d+", b) and SequenceMatcher(None, a, b).ratio() >= SLIP


def prior_tensor(group: dict[str, Any], position: int, mean: Tensor) -> Tensor | None:
    """The prior mean of one parameter as a tensor, or None if the group has one number for all weights.

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
    weight = group["params"][position]
    if value[name].shape != weight.shape:
        raise ValueError(
            f"prior_mean[{name!r}] has the shape {tuple(value[name].shape)} and the parameter "
            f"{tuple(weight.shape)}; leave the name out for a prior centred at zero"
        )
    given = part_like(value[name].detach(), weight).to(mean).clone()
    if not given.isfinite().all():
        raise ValueError(
            f"prior_mean[{name!r}] holds numbers that are not finite; leave the name out for a prior centred "
            "at zero, or load other weights"
        )
    return given


def initial_sd(group: dict[str, Any]) -> float:
    """The default init_sd: that for unit curvature per datum, within bounds.

    If the mean loss has curvature 1, the posterior precision is num_data/temperature + 1/prior_sd^2. The
    bounds are 0.05, and half of the root mean square of the group's weights: with a larger sd the noise would
    drown the initial weights.
    """
    precision = group["num_data"] / group["temperature"] + group["prior_sd"] ** -2.0
    found = min(WIDEST, precision**-0.5)
    weights = [p.detach() for p in group["params"]]
    squares = sum(norm**2 for norm in norms(weights))
    if squares > 0 and math.isfinite(squares):
        found = min(found, WIDEST_SHARE * math.sqrt(squares / sum(p.numel() for p in weights)))
    return max(LEAST, float(found))
