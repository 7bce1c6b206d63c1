"""Data by name as tensors, or a sentence that says which are missing or of another kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["arrays"]

KINDS = ("a number", "a list of numbers", "a matrix, as a list of lists of numbers")


def arrays(data: Mapping[str, Any], ranks: Mapping[str, int], positive: tuple[str, ...] = ()) -> list[Tensor]:
    """Finite float64 tensors of the given ranks (0, 1, 2); those that are not numbers have equally many rows.

    >>> y, sigma = arrays({"y": [1, 2], "sigma": 3}, {"y": 1, "sigma": 0})
    >>> y.shape, sigma.shape
    (torch.Size([2]), torch.Size([]))
    """
    found = {name: _array(data, name, rank) for name, rank in ranks.items()}
    for name in positive:
        if not (found[name] > 0).all():
            raise ValueError(f"{name!r} must be positive; its smallest number is {float(found[name].min())}")
    rows = {name: len(value) for name, value in found.items() if value.dim()}
    if len(set(rows.values())) > 1:
        sizes = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
        raise ValueError(f"the data must have equally many rows; {sizes}")
    return list(found.values())


def _array(data: Mapping[str, Any], name: str, rank: int) -> Tensor:
    if name not in data:
        raise ValueError(f"{name!r} is missing; there are {', '.join(map(repr, data)) or 'no data'}")
    try:
        value = torch.as_tensor(data[name], dtype=torch.float64)
    # torch's words for strings, nulls, objects, rows of different lengths and numbers beyond 1e308
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name!r} must be {KINDS[rank]}; {error}") from error
    if value.dim() != rank or value.numel() == 0:
        raise ValueError(f"{name!r} must be {KINDS[rank]}; got the shape {tuple(value.shape)}")
    if not value.isfinite().all():
        raise ValueError(f"{name!r} must be finite; {int((~value.isfinite()).sum())} numbers are not")
    return value
