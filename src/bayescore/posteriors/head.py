"""Passes of one draw after the other; where only the last layer is random, the rest runs once.

The last layer is a module without children that owns every random parameter, is called once per pass, and
whose output is the network's. Its inputs are kept from the pass of the first draw; every other draw is then
exact and costs the last layer. That nothing before it depends on the draw is checked on one row with the
second draw's weights, because a forward method may use a layer's weights elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.posteriors.inputs import Inputs, a_tensor
from bayescore.posteriors.wrappers import eager

__all__ = ["Passes", "last_layer"]


def last_layer(model: nn.Module, names: Iterable[str]) -> nn.Module | None:
    """The module that owns all parameters `names` and shares none of them, or None."""
    owners = {name.rpartition(".")[0] for name in names}
    if len(owners) != 1:
        return None
    (owner,) = owners
    layer = model.get_submodule(owner)
    if layer is model or any(True for _ in layer.children()):
        return None
    own = {id(p) for p in layer.parameters()}
    shared = [n for n, p in model.named_parameters(remove_duplicate=False) if id(p) in own]
    return layer if all(name.rpartition(".")[0] == owner for name in shared) else None


class Passes:
    """The outputs of `model` for the same chunks of rows, whatever its weights are when it is called.

    Arguments:
        layer: the last layer, if nothing else changes from call to call.
    """

    def __init__(self, model: nn.Module, chunks: Sequence[Inputs], layer: nn.Module | None) -> None:
        self.model, self.chunks, self.layer = model, chunks, layer
        self.place = next(model.parameters()).device
        self._inputs: list[Any] = []  # of the last layer
        self._checked = False

    def __call__(self) -> list[Tensor]:
        """Outputs chunk by chunk."""
        with eager() if self.layer is not None else nullcontext():
            return self._outputs()

    def _outputs(self) -> list[Tensor]:
        layer = self.layer
        if layer is not None and self._inputs and not self._checked:
            self._checked = True
            layer = self.layer = layer if self._agrees(layer) else None
        if layer is None:
            return [self._whole(chunk) for chunk in self.chunks]
        if not self._inputs:
            return [self._first(layer, chunk) for chunk in self.chunks]
        return [layer(*args, **named) for args, named in self._inputs]

    def _whole(self, chunk: Inputs) -> Tensor:
        out = a_tensor(self.moved(chunk).run(self.model))
        if len(self.chunks) > 1 and out.shape[:1] != (len(chunk),):
            raise ValueError(
                f"outputs {tuple(out.shape)} for {len(chunk)} rows cannot be joined to those of other rows; "
                f"run all at once with batch_size={sum(map(len, self.chunks))}, or wrap the module"
            )
        return out

    def _first(self, layer: nn.Module, chunk: Inputs) -> Tensor:
        seen: list[tuple[Any, Any]] = []
        hook = layer.register_forward_hook(
            lambda _, *call: seen.append((call[:2], call[2])), with_kwargs=True
        )
        with hook:
            out = self._whole(chunk)
        if len(seen) == 1 and seen[0][1] is out:
            self._inputs.append(seen[0][0])
        else:
            self.layer = None
        return out

    def _agrees(self, layer: nn.Module) -> bool:
        whole = self._whole(self.chunks[0][:1])
        args, named = self._inputs[0]
        alone = layer(*args, **named)[:1]
        if not alone.numel():
            return True
        tolerance = 1e-2 if alone.dtype in (torch.bfloat16, torch.float16) else 1e-4
        return torch.allclose(whole, alone, rtol=tolerance, atol=tolerance * float(alone.abs().max()))

    def moved(self, chunk: Inputs) -> Inputs:
        """A chunk on the model's device, copied: a forward method may work on its inputs in place."""
        return chunk.to(self.place, copy=True)
