"""Stan's variables: flat columns with names such as beta.2.1, and named tensors of Stan's shapes.

Stan writes containers with the first index running fastest. A name without an index is a scalar; each slot of
a tuple and each part of a complex number is a separate variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Variable", "group", "pack", "readable", "split", "unpack", "variables_of"]

PREDICTIVE = ("_rep", "_hat", "_pred", "_sim", "_tilde")


@dataclass(frozen=True)
class Variable:
    """One variable: its columns are [start, start + size)."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()


def split(name: str) -> tuple[str, tuple[int, ...]]:
    """The variable and the index of a flat name: beta.2.1 is beta at (2, 1)."""
    found = re.fullmatch(r"(.*?)((?:\.\d+)*)", name)
    assert found is not None
    return found[1], tuple(int(i) for i in found[2].split(".")[1:])


def variables_of(names: Sequence[str]) -> list[Variable]:
    """The variables behind Stan's flat names, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    starts: dict[str, int] = {}
    for column, name in enumerate(names):
        base, index = split(name)
        shapes[base] = index  # the last name of a variable holds its largest indices
        starts.setdefault(base, column)
    return [Variable(base, shapes[base], starts[base]) for base in shapes]


def readable(name: str) -> str:
    """beta.2.1 in the usual notation, beta[2,1]."""
    base, index = split(name)
    return f"{base}[{','.join(map(str, index))}]" if index else base


def unpack(rows: Tensor, layout: Iterable[Variable]) -> dict[str, Tensor]:
    """Columns (..., K) as named tensors (..., *shape)."""
    values = {}
    for variable in layout:
        flat = rows[..., variable.start : variable.start + variable.size]
        shape = variable.shape
        if not shape:
            values[variable.name] = flat[..., 0]
            continue
        backwards = flat.unflatten(-1, shape[::-1])
        lead = flat.dim() - 1
        axes = (*range(lead), *reversed(range(lead, lead + len(shape))))
        values[variable.name] = backwards.permute(axes).contiguous()
    return values


def pack(values: Mapping[str, Any], layout: Sequence[Variable]) -> Tensor:
    """Named tensors (..., *shape) as columns (..., K); names that the layout does not hold are left out."""
    columns = []
    for variable in layout:
        if variable.name not in values:
            needed = ", ".join(v.name for v in layout)
            raise ValueError(f"the parameter {variable.name!r} is missing; the parameters are {needed}")
        value = torch.as_tensor(values[variable.name], dtype=torch.float64)
        lead = value.dim() - len(variable.shape)
        if lead < 0 or value.shape[lead:] != variable.shape:
            want = "(..., " + ", ".join(map(str, variable.shape)) + ")" if variable.shape else "(...)"
            raise ValueError(f"{variable.name} must have the shape {want}; got {tuple(value.shape)}")
        axes = (*range(lead), *reversed(range(lead, value.dim())))
        columns.append(value.permute(axes).reshape(*value.shape[:lead], variable.size))
    batch = torch.broadcast_shapes(*(column.shape[:-1] for column in columns))
    return torch.cat([column.expand(*batch, -1) for column in columns], -1)


def group(values: Mapping[str, Tensor], generated: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    """ArviZ groups of quantities.

    Generated quantities called log_lik* are the log likelihood, and those that end as in PREDICTIVE are
    predictions; everything else is the posterior.
    """
    groups: dict[str, dict[str, Tensor]] = {"posterior": {}, "log_likelihood": {}, "posterior_predictive": {}}
    generated = set(generated)
    for name, value in values.items():
        kind = "posterior"
        if name in generated and name.startswith("log_lik"):
            kind = "log_likelihood"
        elif name in generated and name.endswith(PREDICTIVE):
            kind = "posterior_predictive"
        groups[kind][name] = value
    return {kind: members for kind, members in groups.items() if members or kind == "posterior"}
