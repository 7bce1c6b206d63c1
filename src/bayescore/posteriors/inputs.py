"""The inputs and outputs of a module: tensors by position or by name, cut into chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

__all__ = ["ROWS_AT_ONCE", "Inputs", "describe", "inputs_and_targets", "require_tensor"]

ROWS_AT_ONCE = 1_000  # per forward pass, if no batch size is given: it limits the memory of activations


@dataclass(frozen=True)
class Inputs:
    """Tensors with the same number of rows, for `module(*args, **named)`."""

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
                f"got {describe(x)}"
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
        return self._map(lambda part: part[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        named = {name: change(part) for name, part in self.named.items()}
        return type(self)(tuple(change(part) for part in self.args), named)

    def to(self, device: torch.device, copy: bool = False) -> Self:
        """The same inputs on a device."""
        return self._map(lambda part: part.to(device, copy=copy))

    def chunks(self, batch_size: int | None) -> list[Self]:
        """Pieces of `batch_size` rows, the last one shorter; a single empty piece if there are no rows."""
        size = batch_size or ROWS_AT_ONCE
        return [self[i : i + size] for i in range(0, max(len(self), 1), size)]

    def run(self, model: nn.Module) -> Any:
        """What the module returns, or its `.logits` if that is an object as in Hugging Face's libraries."""
        out = model(*self.args, **self.named)
        return out if isinstance(out, Tensor | tuple) else getattr(out, "logits", out)


def inputs_and_targets(batch: Any) -> tuple[Inputs, Tensor]:
    """The two halves of a batch of training or validation data."""
    if (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and isinstance(batch[0], Tensor | tuple | list | Mapping)
        and isinstance(batch[1], Tensor)
    ):
        return Inputs.of(batch[0]), batch[1]
    raise TypeError(
        f"a batch must be a pair, inputs and a tensor of targets; got {describe(batch)}: "
        "let the loader's collate_fn make pairs, or write the loop yourself (`with opt.sample():`)"
    )


def describe(x: Any) -> str:
    """The type of an object and of its parts, for an error message."""
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple | list) else ()
    inside = ", ".join(type(part).__name__ for part in parts)
    return f"a {type(x).__name__}" + (f" of {inside}" if inside else "")


def require_tensor(outputs: Any) -> Tensor:
    """The outputs of a module; raises unless they are one tensor."""
    if isinstance(outputs, Tensor):
        return outputs
    raise TypeError(
        f"the module returned {describe(outputs)} where a tensor, or an object with .logits, is needed; "
        "wrap it in a module whose forward returns the tensor to be predicted"
    )
