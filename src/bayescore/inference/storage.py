"""The file of a fit: its tensors as safetensors, everything else as JSON in the header (bayescore.io)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from bayescore.families import by_name as family_by_name
from bayescore.inference.history import History
from bayescore.io import read_tensors, write_tensors
from bayescore.methods import by_name as method_by_name
from bayescore.methods.base import Method, State
from bayescore.targets.counting import Counts

if TYPE_CHECKING:
    from bayescore.inference.result import Fit

__all__ = ["read", "refusing_damage", "write"]

FORMAT = "bayescore-fit-2"

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
    tensors = {f"state.{key}": value for key, value in fit.state.tensors().items()}
    write_tensors(path, header, {**tensors, "streams": fit.streams})


def _encode(value: float) -> float | str:
    """A number for strict JSON: NaN and infinities as strings."""
    return value if math.isfinite(value) else str(value)


def read(path: Path, device: torch.device) -> dict[str, Any]:
    """The fields of the `Fit` in a file, checked; without the target, and with the outcome by name."""
    header, tensors = read_tensors(path, FORMAT)
    for key, kind in _KINDS.items():
        if type(header.get(key)) is not kind:
            raise ValueError(f"its header has no {key} of the kind {kind.__name__}")
    if len({len(values) for values in header["history"].values()}) > 1:
        raise ValueError("the columns of its history differ in length")
    method, state = _method_and_state(header, tensors, device)
    loss_sum, losses, skipped = header["pending"]
    return {
        "family": state.family[0],
        "method": method,
        "outcome": header["outcome"],
        "status": header["status"],
        "history": History({key: [float(v) for v in values] for key, values in header["history"].items()}),
        "counts": Counts(**header["counts"]),
        "seconds": header["seconds"],
        "seed": header["seed"],
        "state": state,
        "streams": tensors["streams"],
        "pending": (float(loss_sum), int(losses), int(skipped)),
        "notes": tuple(header["notes"]),
        "_objections": tuple(header["objections"]),
    }


def _method_and_state(
    header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device
) -> tuple[Method, State]:
    method_config, family_config = dict(header["method"]), dict(header["family"])
    method = method_by_name(method_config.pop("name"))(**method_config)
    kind = family_by_name(family_config.pop("name"))
    stored = {k.removeprefix("state."): v.to(device) for k, v in tensors.items() if k.startswith("state.")}
    family = kind.rebuild(
        family_config, {k.removeprefix("family."): v for k, v in stored.items() if k.startswith("family.")}
    )
    fresh = method.init(family, header["horizon"])
    if {k: v.shape for k, v in fresh.tensors().items()} != {k: v.shape for k, v in stored.items()}:
        raise ValueError("its tensors are not those of its method and family")
    return method, replace(fresh, step=header["step"]).with_tensors(stored)


@contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Turn any error while reading a damaged or foreign file into one ValueError that names the file."""
    try:
        yield
    except (
        SafetensorError,
        KeyError,
        IndexError,
        ValueError,
        TypeError,
        RecursionError,
        OSError,
    ) as error:
        raise ValueError(
            f"{path} is not a readable bayescore fit (truncated, or written by something else): {error}"
        ) from error
