"""What goes into a module and comes out of it: tensors by position or by name, cut into chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

__all__ = ["ROWS", "Inputs", "a_tensor", "described"]

ROWS = 1_000  # per forward pass, where no batch size is given: it bounds the memory of activations


@dataclass(frozen=True)
class Inputs:
    """Tensors with one number of rows, for `module(*args, **named)`."""

    args: tuple[Tensor, ...]
    named: dict[str, Tensor]

    @classmethod
    def of(cls, x: Any) -> Inputs:
        """From a tensor, a tuple or list of tensors, or a mapping of names to tensors."""
        if isinstance(x, Inputs):
            return x
        if isinstance(x, Mapping):
            found = cls((), dict(x))
        else:
            found = cls(tuple(x) if isinstance(x, tuple | list) else (x,), {})
        parts: dict[Any, Any] = {**dict(enumerate(found.args)), **found.named}
        if not parts or not all(isinstance(part, Tensor) for part in parts.values()):
            raise TypeError(
                "inputs must be a tensor, a tuple of tensors, or a mapping of argument names to tensors; "
                f"got {described(x)}"
            )
        rows = {part.shape[:1] for part in parts.values()}
        if len(rows) > 1 or torch.Size() in rows:
            shapes = ", ".join(f"{name}: {tuple(part.shape)}" for name, part in parts.items())
            raise ValueError(
                f"inputs must have one first dimension, the rows; got {shapes}: "
                "wrap the module if one of them is not by row"
            )
        return found

    def __len__(self) -> int:
        return len(next(iter((*self.args, *self.named.values()))))

    def __getitem__(self, rows: slice) -> Self:
        return self._each(lambda part: part[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        named = {name: change(part) for name, part in self.named.items()}
        return type(self)(tuple(change(part) for part in self.args), named)

    def to(self, place: torch.device, copy: bool = False) -> Self:
        """The same on a device."""
        return self._each(lambda part: part.to(place, copy=copy))

    def chunks(self, batch_size: int | None) -> list[Self]:
        """Pieces of `batch_size` rows, the last one shorter; one piece if there is no row."""
        size = batch_size or ROWS
        return [self[i : i + size] for i in range(0, max(len(self), 1), size)]

    def run(self, model: nn.Module) -> Any:
        """What the module returns; `.logits` of what a Hugging Face module returns."""
        out = model(*self.args, **self.named)
        return out if isinstance(out, Tensor | tuple) else getattr(out, "logits", out)


def described(x: Any) -> str:
    """The kind of an object, and of its parts."""
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple | list) else ()
    inside = ", ".join(type(part).__name__ for part in parts)
    return f"a {type(x).__name__}" + (f" of {inside}" if inside else "")


def a_tensor(outputs: Any) -> Tensor:
    """The outputs, unless they are something else than one tensor."""
    if isinstance(outputs, Tensor):
        return outputs
    raise TypeError(
        f"the module returned {described(outputs)} where a tensor, or an object with .logits, is needed; "
        "wrap it in a module whose forward returns the tensor to be predicted"
    )
