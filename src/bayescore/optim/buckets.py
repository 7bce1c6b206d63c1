"""Parameter tensors that are updated together: every large one by itself, small ones in a row.

A network has many tensors of a few hundred weights, and a pass over one of them costs as much as a pass over
fifty thousand weights. Small tensors of one group therefore share flat state tensors, of which their own
state (`optimizer.state[p]`) holds views; a large tensor's flat state is its own. Numbers that belong to a
tensor (`moments`) are the rows of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Bucket", "Member", "bucketed"]

SMALL = 1 << 16  # weights of a tensor from which it is updated by itself
FULL = 1 << 18  # weights that share flat tensors at most


class Member(NamedTuple):
    """One trained parameter tensor: where it stands and what is known about it."""

    number: int  # over all groups, frozen parameters included
    group: dict[str, Any]
    position: int  # within its group
    weight: Tensor
    state: dict[str, Any]


class Bucket:
    """Members with their flat state.

    Arguments:
        members: of one group, dtype and device, with state of the same names.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.group, first = members[0].group, members[0].state
        self.sizes = [m.weight.numel() for m in members]
        self.size = sum(self.sizes)
        self.flat: dict[str, Tensor] = {}
        for key in [key for key, value in first.items() if _flattens(members[0], key, value)]:
            self._share(key, [m.state[key] for m in members])
        self._views = [m.state["mean"] for m in members]
        self.moments = self._table([m.state["moments"] for m in members]) if "moments" in first else None
        self.lengths = self.flat["mean"].new_tensor([float(n) for n in self.sizes])
        #: noise of small tensors, kept from the draw to the step that uses it again, and which it is
        self.made: tuple[Any, Tensor] | None = None

    def _share(self, key: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) == 1:
            self.flat[key] = tensors[0].view(-1)
            return
        self.flat[key] = torch.cat([t.reshape(-1) for t in tensors])
        for member, part in zip(self.members, self.split(self.flat[key]), strict=True):
            member.state[key] = part

    def _table(self, rows: Sequence[Tensor]) -> Tensor:
        if len(rows) == 1:
            return rows[0].view(1, -1)
        table = torch.stack(tuple(rows))
        for member, row in zip(self.members, table, strict=True):
            member.state["moments"] = row
        return table

    @property
    def whole(self) -> Tensor | None:
        """The module's own weights as a flat tensor, where they are one."""
        weight = self.members[0].weight
        alone = len(self.members) == 1 and weight.is_contiguous()
        return weight.detach().view(-1) if alone else None

    @property
    def alone(self) -> bool:
        """Whether this is one large tensor."""
        return self.sizes[0] >= SMALL

    @property
    def keeps_draws(self) -> bool:
        """Whether a draw has all its digits in the module's weights, and is worth more than its making."""
        whole = self.whole
        perturbed = "sd" in self.flat and self.alone
        return perturbed and whole is not None and whole.dtype == self.flat["mean"].dtype

    @property
    def stands(self) -> bool:
        """Whether the members' state still is this bucket's."""
        return all(m.state.get("mean") is view for m, view in zip(self.members, self._views, strict=True))

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor in the members' shapes."""
        parts = flat.split(self.sizes)
        return [part.view(m.weight.shape) for part, m in zip(parts, self.members, strict=True)]

    def spread(self, table: Tensor) -> tuple[Tensor, ...]:
        """Rows of a number per member as rows of one per weight; one member's are left to broadcasting."""
        if len(self.sizes) > 1:
            columns = zip(table.split(1, 1), self.sizes, strict=True)
            table = torch.cat([column.expand(len(table), size) for column, size in columns], 1)
        return table.unbind()

    def gathered(self, tensors: Iterable[Tensor]) -> Tensor:
        """The members' tensors as one flat tensor in the state's dtype."""
        parts = [t.to(self.flat["mean"].dtype).reshape(-1) for t in tensors]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def zeros(self, *keys: str) -> list[Tensor]:
        """Flat tensors of this step's sums, which begin with zero."""
        for key in keys:
            if key not in self.flat:
                self._add(key)
        return [self.flat[key] for key in keys]

    def _add(self, key: str) -> None:
        self.flat[key] = torch.zeros_like(self.flat["mean"])
        for member, part in zip(self.members, self.split(self.flat[key]), strict=True):
            member.state[key] = part

    def drop_sums(self) -> None:
        for key in [k for k in self.flat if k.startswith("sum_")]:
            del self.flat[key]


def _flattens(member: Member, key: str, value: Any) -> bool:
    return key != "moments" and isinstance(value, Tensor) and value.shape == member.weight.shape


def bucketed(members: Sequence[Member]) -> list[Bucket]:
    """Buckets of all members, in their order but for small ones, which come together."""
    rows: dict[Any, list[Member]] = {}
    closed: list[list[Member]] = []
    for member in members:
        size, mean = member.weight.numel(), member.state["mean"]
        if size >= SMALL:
            closed.append([member])
            continue
        key = (id(member.group), mean.dtype, mean.device, *sorted(member.state))
        row = rows.setdefault(key, [])
        if row and sum(m.weight.numel() for m in row) + size > FULL:
            closed.append(row)
            row = rows[key] = []
        row.append(member)
    return [Bucket(row) for row in (*closed, *rows.values())]
