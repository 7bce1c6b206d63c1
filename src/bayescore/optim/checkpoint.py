"""Optimizer checkpoints: their form, and checks. One that fits the model is loaded unchanged, any other is
refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bayescore.optim.gradients import LARGEST
from bayescore.posteriors.shards import local, part_like, sharded_like
from bayescore.posteriors.wrappers import matched

__all__ = [
    "as_sharded",
    "check_checkpoint",
    "impossible_options",
    "possible",
    "restored_tensors",
    "with_lists",
    "with_words",
]

Groups = list[dict[str, Any]]
NOT_OPTIONS = ("params", "param_names", "initial_lr")  # torch's own
SQUARES = ("second", "second_m", "second_r", "square")  # running means of squares
LISTS = ("quanta", "losses", "loss_lrs", "network", "reached")  # options whose length changes in a run


def with_words(group: dict[str, Any]) -> dict[str, Any]:
    """The options of a group as a checkpoint has them: lists whose length changes are JSON.

    torch.distributed.checkpoint takes lists apart if it is asked for a full state dict, and other processes
    than the first then get only as many entries as a fresh optimizer has.
    """
    return {name: json.dumps(value) if name in LISTS else value for name, value in group.items()}


def with_lists(state_dict: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict that has these lists again, and tuples where the options are tuples.

    Older state dicts have the lists already. What is no list is left to the checks.
    """

    def read(name: str, value: Any) -> Any:
        if name in LISTS and isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return value
        return tuple(value) if isinstance(value, list) and isinstance(defaults.get(name), tuple) else value

    groups = state_dict.get("param_groups") if isinstance(state_dict, dict) else None
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return state_dict
    rows = [{name: read(name, value) for name, value in group.items()} for group in groups]
    return {**state_dict, "param_groups": rows}


def check_checkpoint(
    state_dict: dict[str, Any],
    groups: Groups,
    method: str,
    options: Callable[[dict[str, Any], dict[str, Any]], None],
    initial: Callable[[dict[str, Any], dict[str, Any], int], dict[str, Tensor]],
) -> None:
    """Raise unless the state dict was made by `method` for parameters like those of `groups`.

    Arguments:
        options: called as options(saved group, group); raises unless the saved options are valid.
        initial: called as initial(group, saved group, j); the initial state of parameter j under the saved
            options, as tensors on the meta device.
    """
    try:
        saved, state = state_dict["param_groups"], state_dict["state"]
        sizes = [len(group["params"]) for group in saved]
        made_by = saved[0]["method"]
        keys = {key for group in saved for key in group["params"]}
        strange = [key for key, row in state.items() if key not in keys or not isinstance(row, dict)]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"this is not a state dict of a bayescore optimizer: {error!r}") from error
    if made_by != method:
        other = made_by if isinstance(made_by, str) else f"a {type(made_by).__name__}"
        raise ValueError(f"the checkpoint was made by {other[:100]} and this optimizer is {method}")
    here = [len(group["params"]) for group in groups]
    if sizes != here:
        raise ValueError(
            f"the checkpoint is of another model: it has groups of {sizes} parameters, this one {here}"
        )
    if strange:
        raise ValueError(f"the checkpoint is damaged: its state {strange[0]!r} is not that of a parameter")
    for old, new in zip(saved, groups, strict=True):
        lacking = [name for name in new if name not in old and name not in NOT_OPTIONS]
        if lacking:
            raise ValueError(
                f"the checkpoint is damaged, or older than this version: it lacks {lacking[0]!r}"
            )
        try:
            options(old, new)
        except (TypeError, ValueError, RuntimeError) as error:
            raise impossible_options(error) from error
        for j, (key, p, name, other) in enumerate(_rows(old, new)):
            if name != other:
                raise ValueError(
                    f"the checkpoint is of another model: it calls a parameter {other!r}, this one {name!r}"
                )
            found, called = state.get(key, {}), name or f"parameter {key}"
            mean = found.get("mean")
            if isinstance(mean, Tensor) and mean.shape != p.shape:
                raise ValueError(
                    f"the checkpoint is of another model: {called} has the shape {tuple(mean.shape)} there "
                    f"and {tuple(p.shape)} here"
                )
            if found:
                _check_tensors(found, initial(new, old, j), called)


def impossible_options(error: Exception) -> ValueError:
    """The error for options that raised another, whose message may hold a tensor or torch's own stack."""
    words = " ".join(str(error).split())[:300]
    return ValueError(f"the checkpoint is damaged: its options make no sense ({words})")


def _check_tensors(found: dict[str, Any], wanted: dict[str, Tensor], called: str) -> None:
    """Raise unless a parameter's tensors have the shapes and kinds of its initial state.

    A tensor that the initial state lacks, left from options that were changed during the run, has the
    parameter's shape.
    """
    for what in {**wanted, **found}:
        value, like = found.get(what), wanted.get(what, wanted["mean"])
        if (
            not isinstance(value, Tensor)
            or not isinstance(what, str)
            or what.startswith("sum_")  # of a step that was not finished
            or not value.is_floating_point()
            or value.shape != like.shape
        ):
            raise ValueError(
                f"the checkpoint is damaged: {what} of {called} is missing or of another shape or kind"
            )
        if not possible(what, local(value)):
            raise ValueError(f"the checkpoint is damaged: {what} of {called} holds impossible numbers")


def possible(what: str, value: Tensor) -> bool:
    """Whether a tensor has values that training can produce.

    The smallest and the largest tell: they are NaN if any number is.
    """
    if not value.numel():
        return True
    least, most = (float(extreme) for extreme in value.aminmax())
    if what == "statistics":  # mean slopes have either sign; squares may be infinite
        return float(value[1:].amin()) >= 0 and not math.isnan(most)
    bound = LARGEST if what == "weights" else math.inf
    sound = -bound < least and most < bound
    if what == "sd":
        return sound and least > 0
    return sound and (what not in SQUARES or least >= 0)


def _rows(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[Any, Tensor, str, str]]:
    """Per parameter of a group: its key in the checkpoint, the tensor here, its name here and there."""
    blank = [""] * len(new["params"])
    names, others = new.get("param_names", blank), old.get("param_names", blank)
    if "param_names" not in new or "param_names" not in old:
        names = others = blank
    if not isinstance(others, list) or len(others) != len(names):
        raise ValueError("the checkpoint is damaged: its names of parameters are not one for each")
    here = matched(others, names)
    others = [here[name] for name in others]
    yield from zip(old["params"], new["params"], names, others, strict=True)


def restored_tensors(
    state_dict: dict[str, Any], groups: Groups
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The saved tensors, or this process's parts of them, on the parameters' devices, in the precision of the
    state (torch would cast them)."""
    for old, new in zip(state_dict["param_groups"], groups, strict=True):
        for key, p in zip(old["params"], new["params"], strict=True):
            saved = state_dict["state"].get(key, {})
            wide = torch.float64 if p.dtype == torch.float64 else torch.float32
            tensors = {k: v for k, v in saved.items() if isinstance(v, Tensor)}
            own = {k for k, v in tensors.items() if k == "statistics" or not v.is_floating_point()}
            parts = {k: v if k == "statistics" else part_like(v, p, leading(k)) for k, v in tensors.items()}
            device = local(p).device
            yield (p, {k: v.to(device, v.dtype if k in own else wide, copy=True) for k, v in parts.items()})


def as_sharded(state: dict[str, Any], weight: Tensor) -> dict[str, Any]:
    """The state of a sharded weight as a checkpoint has it: tensors that are sharded like the weight.

    Statistics of the whole tensor are the same on all processes. A part that does not begin its memory, in a
    bucket, is copied: torch's asynchronous checkpoints cannot read a DTensor of such a part.
    """
    parts = {key: value.clone() if value.storage_offset() else value for key, value in state.items()}
    return {
        key: part if key == "statistics" else sharded_like(part, weight, leading(key))
        for key, part in parts.items()
    }


def leading(what: str) -> int:
    """How many dimensions a state tensor has before those of its weight."""
    return 1 if what == "path" else 0
