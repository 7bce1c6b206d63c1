"""The inputs and outputs of a module: tensors by position or by name, cut into chunks of rows.

A prediction also takes what is not a tensor yet (`as_inputs`): arrays, lists of numbers, frames, data sets
and loaders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

__all__ = [
    "ROWS_AT_ONCE",
    "Inputs",
    "as_inputs",
    "describe",
    "explained",
    "inputs_and_targets",
    "require_tensor",
]

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
        """What the module returns, or its `.logits` or `["logits"]`, as in Hugging Face's libraries."""
        with explained(model, self):
            out = model(*self.args, **self.named)
        if isinstance(out, Mapping) and "logits" in out:
            return out["logits"]
        return out if isinstance(out, Tensor | tuple) else getattr(out, "logits", out)


def as_inputs(x: Any, model: nn.Module | None = None) -> Inputs:
    """The inputs of a prediction from tensors, arrays, lists of numbers, a frame, a data set or a loader.

    Numbers that are not in a tensor become the model's kind of floating point numbers; whole ones only if the
    model begins with a linear layer, since they may be the numbers of words.
    """
    if isinstance(x, Dataset) and not isinstance(x, Tensor):
        x = DataLoader(x, batch_size=ROWS_AT_ONCE)
    if isinstance(x, DataLoader):
        return _from_batches(x)
    kind = (
        next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        if model is not None
        else None
    )
    whole = model is None or _first_layer(model) is None

    def tensor(part: Any) -> Any:
        return part if isinstance(part, Tensor) else _tensor(part, kind or torch.get_default_dtype(), whole)

    if isinstance(x, Mapping):
        found = Inputs.of({name: tensor(part) for name, part in x.items()})
    elif isinstance(x, tuple | list) and any(isinstance(part, Tensor | np.ndarray) for part in x):
        found = Inputs.of([tensor(part) for part in x])
    elif isinstance(x, Inputs) or (isinstance(x, tuple | list) and not x):
        found = Inputs.of(x)
    else:
        found = Inputs.of(tensor(x))
    if model is not None:
        _check_one_row(model, found)
    return found


def _from_batches(loader: DataLoader[Any]) -> Inputs:
    """All inputs of a loader, whose batches are inputs, or pairs of inputs and targets."""
    parts = []
    for batch in loader:
        pair = isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor)
        alone = isinstance(batch, tuple | list) and len(batch) == 1
        parts.append(Inputs.of(batch[0] if pair or alone else batch))
    if not parts:
        raise ValueError("the loader gave no batch to predict")
    named = {name: torch.cat([part.named[name] for part in parts]) for name in parts[0].named}
    return Inputs(tuple(torch.cat(column) for column in zip(*(p.args for p in parts), strict=True)), named)


def _tensor(x: Any, kind: torch.dtype, whole: bool) -> Any:
    """A tensor of numbers from an array, a frame or lists, where whole numbers stay `whole`; what holds no
    numbers stays as it is."""
    columns = getattr(x, "dtypes", None)
    if columns is not None and hasattr(x, "to_numpy"):
        columns = columns if hasattr(columns, "items") else {getattr(x, "name", None): columns}
        other = [str(name) for name, one in columns.items() if getattr(one, "kind", "O") not in "fiub"]
        if other:
            raise TypeError(
                f"the columns {', '.join(map(repr, other[:5]))} do not hold numbers; encode them first, as "
                "in training (scikit-learn's OneHotEncoder, or pandas' get_dummies)"
            )
        x = x.to_numpy()
    elif not isinstance(x, np.ndarray | list | tuple | float | int):
        return x
    try:
        array = np.asarray(x)
    except ValueError:
        raise ValueError("the rows of the list differ in length; make one array of them") from None
    if array.dtype.kind not in "fiub":
        return x
    found = torch.tensor(array)  # a copy: frames may give arrays that cannot be written to
    return found if whole and not found.is_floating_point() else found.to(kind)


def _first_layer(model: nn.Module) -> nn.Linear | None:
    """The layer that sees the inputs, if it is sure to be a linear one."""
    while isinstance(model, nn.Sequential) and len(model):
        inner = next(layer for layer in model)
        if isinstance(inner, nn.Flatten | nn.Identity | nn.Dropout) and len(model) > 1:
            inner = model[1]
        model = inner
    return model if isinstance(model, nn.Linear) else None


def _check_one_row(model: nn.Module, inputs: Inputs) -> None:
    layer = _first_layer(model)
    shapes = [part.shape for part in inputs.args]
    if layer is not None and shapes == [torch.Size([layer.in_features])] and layer.in_features > 1:
        raise ValueError(
            f"inputs of the shape ({layer.in_features},) are one row, and a prediction takes rows: "
            "give x[None], or [row] for a list"
        )


@contextmanager
def explained(model: nn.Module, inputs: Inputs) -> Iterator[None]:
    """A forward pass whose inputs have the wrong width, or kind, fails with a sentence about them."""
    try:
        yield
    except RuntimeError as error:
        layer, parts = _first_layer(model), inputs.args
        kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        other = next((part.dtype for part in parts if part.is_floating_point() and part.dtype != kind), None)
        if other is not None and kind is not None and "type" in str(error):
            raise TypeError(
                f"inputs hold {other}, and the network's weights {kind}; give x.to({kind})"
            ) from error
        if layer is None or len(parts) != 1 or not parts[0].dim():
            raise
        shape, wanted = tuple(parts[0].shape), layer.in_features
        if not parts[0].is_floating_point():
            raise TypeError(
                f"inputs hold {parts[0].dtype}, and the network's first layer takes floating point numbers; "
                "give x.float()"
            ) from error
        width = parts[0][0].numel() if len(shape) > 1 and len(parts[0]) else None
        if wanted in (shape[-1], width):
            raise
        one = ": give x[:, None]" if len(shape) == 1 and wanted == 1 else ""
        raise ValueError(
            f"inputs of the shape {shape} do not fit: the network's first layer takes {wanted} "
            f"{'column' if wanted == 1 else 'columns'}{one}"
        ) from error


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
