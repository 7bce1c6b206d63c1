"""The file of a fit: its tensors as safetensors, everything else as JSON in the header (bayescore.io)."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayescore.families import by_name as family_by_name
from bayescore.inference.history import History
from bayescore.io import read_tensors, write_tensors
from bayescore.methods import by_name as method_by_name
from bayescore.methods.base import Method, State
from bayescore.rng import check_seed
from bayescore.targets.counting import Counts

if TYPE_CHECKING:
    from bayescore.inference.result import Fit

__all__ = ["read", "write"]

FORMAT = "bayescore-fit-2"
MAX_COUNT = 2**53  # beyond it, not every whole number is a float

_KINDS: dict[str, type] = {
    "family": dict,
    "method": dict,
    "step": int,
    "horizon": int,
    "outcome": str,
    "status": str,
    "history": dict,
    "counts": dict,
    "seconds": float,
    "seed": int,
    "pending": list,
    "notes": list,
    "objections": list,
}


def write(path: Path, fit: Fit) -> None:
    """Write the fit atomically."""
    config = fit.method.config()
    for key, value in config.items():
        if callable(value):
            raise TypeError(
                f"{key}={value!r} is a function and cannot be saved; use a named schedule or a number"
            )
    tensors = fit.state.tensors()
    if fit.outcome.name != "DIVERGED":  # what could not be read is not written
        try:
            _check_finite(fit.method.init(fit.state.family, fit.state.horizon), tensors)
        except ValueError as error:
            raise ValueError(f"the fit cannot be saved: {error}; fit again with smaller steps") from error
    header = {
        "format": FORMAT,
        "family": {"name": fit.family.name, **fit.family.config()},
        "method": {"name": fit.method.name, **config},
        "step": fit.state.step,
        "horizon": fit.state.horizon,
        "outcome": fit.outcome.name,
        "status": fit.status,
        "history": {k: [_encode(v) for v in values] for k, values in fit.history.columns.items()},
        "counts": asdict(fit.counts),
        "seconds": fit.seconds,
        "seed": fit.seed,
        "pending": [_encode(value) for value in fit.pending],
        "notes": fit.notes,
        "objections": fit._objections,
    }
    stored = {f"state.{key}": value for key, value in tensors.items()}
    write_tensors(path, header, {**stored, "streams": fit.streams})


def _encode(value: float) -> float | str:
    """A number for strict JSON: NaN and infinities as strings."""
    return value if math.isfinite(value) else str(value)


def read(path: Path, device: torch.device) -> dict[str, Any]:
    """The fields of the `Fit` in a file, checked; without the target, and with the outcome by name."""
    header, tensors = read_tensors(path, FORMAT)
    for key, kind in _KINDS.items():
        if type(header.get(key)) is not kind:
            raise ValueError(f"its header has no {key} of the kind {kind.__name__}")
    unknown = header.keys() - _KINDS.keys() - {"format"}
    unknown |= {name for name in tensors if name != "streams" and not name.startswith("state.")}
    if unknown:
        raise ValueError(f"it holds {min(unknown)!r}, which no fit has")
    for key in ("notes", "objections"):
        if not all(isinstance(text, str) for text in header[key]):
            raise ValueError(f"its {key} are not texts")
    check_seed(header["seed"])
    _check_count("horizon", header["horizon"], MAX_COUNT)
    _check_count("step", header["step"], header["horizon"])
    loss_sum, losses, skipped = header["pending"]
    counts = Counts(**header["counts"])
    if asdict(counts).keys() != header["counts"].keys():
        raise ValueError("its counts are not complete")
    for key, value in {**header["counts"], "pending losses": losses, "pending skips": skipped}.items():
        _check_count(key, value, MAX_COUNT)
    method, state = _method_and_state(header, tensors, device)
    streams = tensors["streams"]
    if streams.dtype != torch.uint8 or streams.dim() != 2 or len(streams) != 1:
        raise ValueError("its random stream is not one row of bytes")
    return {
        "family": state.family[0],
        "method": method,
        "outcome": header["outcome"],
        "status": header["status"],
        "history": _history(header["history"]),
        "counts": counts,
        "seconds": header["seconds"],
        "seed": header["seed"],
        "state": state,
        "streams": streams,
        "pending": (_decode(loss_sum), losses, skipped),
        "notes": tuple(header["notes"]),
        "_objections": tuple(header["objections"]),
    }


def _decode(value: Any) -> float:
    """A number as `_encode` writes it."""
    if type(value) in (int, float):
        number = float(value)
        if number == value:
            return number
    elif value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError("its records hold something that is no number")


def _check_count(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"its {name} is no whole number from 0 to {most}")


def _history(columns: dict[str, Any]) -> History:
    if not {"step", "score_calls", "seconds", "loss"} <= columns.keys():
        raise ValueError("its history lacks a column")
    if not all(isinstance(values, list) for values in columns.values()):
        raise ValueError("its history holds a column that is no list")
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("the columns of its history differ in length")
    return History({key: [_decode(value) for value in values] for key, values in columns.items()})


def _method_and_state(
    header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device
) -> tuple[Method, State]:
    method_config, family_config = dict(header["method"]), dict(header["family"])
    method = method_by_name(method_config.pop("name"))(**method_config)
    if method.config().keys() != method_config.keys():
        raise ValueError("its method lacks an option")
    kind = family_by_name(family_config.pop("name"))
    if kind.__name__ not in method.serves:
        raise ValueError(f"its method, {method.name}, cannot fit a {kind.__name__}")
    stored = {k.removeprefix("state."): v.to(device) for k, v in tensors.items() if k.startswith("state.")}
    own = {k.removeprefix("family."): v for k, v in stored.items() if k.startswith("family.")}
    _check_sizes(family_config, sum(value.numel() for value in own.values()))
    finite = {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in own.items()}
    family = kind.rebuild(family_config, finite)  # a family refuses to be made of what a run diverged to
    if not family.config() == family_config == family.in_form(method.form).config():
        raise ValueError("its family is not of the form that its header says")
    if len(family.batch_shape) != 1 or family.batch_shape[0] != 1:
        raise ValueError(f"it holds a batch of {tuple(family.batch_shape)} densities, not of one")
    _check_like(method.init(family.to("meta"), header["horizon"]), stored)  # shapes alone: no memory yet
    fresh = method.init(family, header["horizon"])
    if header["outcome"] != "DIVERGED":
        _check_finite(fresh, stored)
    return method, replace(fresh, step=header["step"]).with_tensors(stored)


def _check_sizes(config: dict[str, Any], numbers: int) -> None:
    """Raise if a family of this configuration has more parameters than the file has, before it is made."""
    for value in config.values():
        widths = [1, *value] if isinstance(value, list) else [1, value]
        for one, two in pairwise(widths):
            if isinstance(one, int) and isinstance(two, int) and one * two > numbers:
                raise ValueError(f"its family has more parameters than the {numbers} in the file")


def _check_like(fresh: State, stored: dict[str, Tensor]) -> None:
    """Raise unless the tensors have the names, shapes and kinds of those of a new state."""
    own = {name: (value.shape, value.dtype) for name, value in fresh.tensors().items()}
    if own != {name: (value.shape, value.dtype) for name, value in stored.items()}:
        raise ValueError("its tensors are not those of its method and family")


def _check_finite(fresh: State, stored: dict[str, Tensor]) -> None:
    """Raise where a number of the state is neither finite nor the infinity with which a method begins."""
    for name, value in fresh.tensors().items():
        possible = stored[name].isfinite()
        if not name.startswith("family."):
            possible |= stored[name] == value
        if not possible.all():
            raise ValueError(f"its tensor {name} is not finite, and it does not say that it diverged")
