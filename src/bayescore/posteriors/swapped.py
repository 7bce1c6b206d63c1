"""A module called with other tensors in the place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["call_with"]


def call_with(
    model: nn.Module,
    values: Mapping[str, Tensor],
    args: tuple[Any, ...],
    named: dict[str, Any] | None = None,
) -> Any:
    """The outputs with `values` in the place of the parameters and buffers they name.

    A tensor that several modules share is replaced in all of them, and a module that is used twice once:
    torch's own tying replaces it twice and puts the replacement back for good.
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    new = {id(own[name]): value for name, value in values.items()}
    places = {
        f"{prefix}.{name}" if prefix else name: new[id(tensor)]
        for prefix, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if id(tensor) in new
    }
    return functional_call(model, places, args, named, tie_weights=False)
