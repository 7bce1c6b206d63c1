"""The outputs of a network under draws of its weights, each computed in the cheapest way that is exact.

1. Several draws in one forward pass, mapped over stacked weights (`batched_outputs`), for small feed-forward
   networks. Measured on a CPU with a few thousand weights and up to a thousand rows, thirty draws in one pass
   take a half to a tenth of the time of thirty passes, because most of that time is overhead; for larger
   networks memory traffic dominates and single passes win. The network must consist of torch's own
   feed-forward modules, whose forward methods have no side effects and do not branch on data.
2. One draw after the other, where only the last layer is random: the rest of the network runs once
   (`CachedForward`). The last layer is a module without children that owns every random parameter, is called
   once, and whose output is the network's. Its inputs are kept from the first draw; every other draw then
   costs the last layer alone and is still exact. Since a forward method may use the layer's weights elsewhere
   too, one row is run with the second draw's weights to check that nothing before the layer depends on them.
3. One forward pass per draw (`CachedForward` without a layer).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from bayescore.posteriors.inputs import Inputs, explained, require_tensor
from bayescore.posteriors.shards import computing_device, local, part_like, reshard
from bayescore.posteriors.wrappers import eager

__all__ = [
    "ACTIVATIONS",
    "DRAWS_AT_ONCE",
    "CachedForward",
    "batched_outputs",
    "call_with",
    "can_batch",
    "copy_into",
    "own_tensors",
    "random_layer",
    "recalibrate_batchnorm",
]

#: the activation modules of torch that act on every unit by itself
ACTIVATIONS = (
    nn.CELU, nn.ELU, nn.GELU, nn.GLU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.RReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign,
    nn.Tanh, nn.Tanhshrink,
)  # fmt: skip

MAX_WEIGHTS = 20_000  # of a network whose draws are batched
MAX_ROWS = 1_000
DRAWS_AT_ONCE = 32
_MAPPED = tuple(kind for kind in ACTIVATIONS if kind is not nn.RReLU)  # vmap has no rule for RReLU
_FEED_FORWARD = (nn.Sequential, nn.Linear, nn.LayerNorm, nn.Identity, nn.Flatten, nn.Dropout, *_MAPPED)


# -- a module's tensors ----------------------------------------------------------------------------------


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The module's parameters and buffers, by name; of a sharded module, as this process holds them."""
    reshard(model)
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copy_into(own: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy values into the module's own tensors of the same names."""
    with torch.no_grad():
        for name, value in values.items():
            local(own[name]).copy_(part_like(value, own[name]))
    torch.clear_autocast_cache()  # it holds copies of weights that have just changed


def call_with(
    model: nn.Module,
    values: Mapping[str, Tensor],
    args: tuple[Any, ...],
    named: dict[str, Any] | None = None,
) -> Any:
    """The outputs with `values` instead of the parameters and buffers of the same names.

    A tensor that several modules share is replaced in all of them; in a module that is registered twice it is
    replaced once, because torch's own tying would replace it twice and then restore the replacement.
    """
    own = own_tensors(model)
    new = {id(own[name]): value for name, value in values.items()}
    replaced = {
        f"{prefix}.{name}" if prefix else name: new[id(tensor)]
        for prefix, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if id(tensor) in new
    }
    return functional_call(model, replaced, args, named, tie_weights=False)


@torch.no_grad()
def recalibrate_batchnorm(model: nn.Module, batches: Iterable[Any], device: torch.device) -> None:
    """Average the running statistics of every BatchNorm layer over `batches`, instead of what they were.

    The rest of the module stays in eval mode. A layer that no batch goes through keeps its statistics.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    before = [{name: value.clone() for name, value in layer.named_buffers()} for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average over the batches
        layer.train()
    empty = True
    try:
        for batch in batches:
            empty = False
            inputs = batch[0] if isinstance(batch, tuple | list) else batch
            Inputs.of(inputs).to(device).run(model)
    finally:
        for layer, momentum, old in zip(layers, momenta, before, strict=True):
            layer.momentum = momentum
            layer.eval()
            if not layer.num_batches_tracked:
                copy_into(dict(layer.named_buffers()), old)
    if empty:
        raise ValueError("recalibrate gave no batch; pass a loader or a list, not an iterator that has ended")


# -- several draws in one forward pass -------------------------------------------------------------------


def can_batch(model: nn.Module, rows: int) -> bool:
    """Whether several draws of this network should be run in one forward pass."""
    modules = list(model.modules())
    return (
        rows <= MAX_ROWS
        and all(type(module) in _FEED_FORWARD for module in modules)
        and sum(p.numel() for p in model.parameters()) <= MAX_WEIGHTS
        and not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    )


def batched_outputs(model: nn.Module, draws: list[dict[str, Tensor]], inputs: Inputs) -> Tensor:
    """Outputs (draws, n, ...); tensors that the draws do not name are the module's own."""
    own = dict(model.named_parameters())
    stacked = {name: torch.stack([draw[name].to(own[name]) for draw in draws]) for name in draws[0]}
    with explained(model, inputs):
        found: Tensor = vmap(lambda weights: call_with(model, weights, inputs.args, inputs.named))(stacked)
    return found


# -- one draw after the other ----------------------------------------------------------------------------


def random_layer(model: nn.Module, names: Iterable[str]) -> nn.Module | None:
    """The module without children that owns all parameters `names`, not shared with others, or None."""
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


class CachedForward:
    """Computes the outputs of `model` for the same chunks of rows again and again, with its current weights.

    Arguments:
        layer: the only layer whose weights change between calls, or None. If it is found not to be the last
            one, every call runs the whole network.
    """

    def __init__(self, model: nn.Module, chunks: Sequence[Inputs], layer: nn.Module | None) -> None:
        self.model, self.chunks, self.layer = model, chunks, layer
        self.device = computing_device(next(model.parameters()))
        self._layer_inputs: list[Any] = []  # (args, kwargs) of the layer, by chunk
        self._checked = False

    def __call__(self) -> list[Tensor]:
        """Outputs by chunk."""
        with eager() if self.layer is not None else nullcontext():  # a compiled graph would ignore its hook
            return self._outputs()

    def _outputs(self) -> list[Tensor]:
        layer = self.layer
        if layer is not None and self._layer_inputs and not self._checked:
            self._checked = True
            layer = self.layer = layer if self._agrees(layer) else None
        if layer is None:
            return [self._run_whole(chunk) for chunk in self.chunks]
        if not self._layer_inputs:
            return [self._run_and_keep(layer, chunk) for chunk in self.chunks]
        return [layer(*args, **named) for args, named in self._layer_inputs]

    def _run_whole(self, chunk: Inputs) -> Tensor:
        out = require_tensor(self.on_device(chunk).run(self.model))
        if len(self.chunks) > 1 and out.shape[:1] != (len(chunk),):
            raise ValueError(
                f"outputs {tuple(out.shape)} for {len(chunk)} rows cannot be joined to those of other rows; "
                f"run all at once with batch_size={sum(map(len, self.chunks))}, or wrap the module"
            )
        return out

    def _run_and_keep(self, layer: nn.Module, chunk: Inputs) -> Tensor:
        """Run the whole network and keep the layer's inputs, if the layer is the last."""
        calls: list[tuple[Any, Any]] = []
        hook = layer.register_forward_hook(
            lambda _, *call: calls.append((call[:2], call[2])), with_kwargs=True
        )
        with hook:
            out = self._run_whole(chunk)
        if len(calls) == 1 and calls[0][1] is out:
            self._layer_inputs.append(calls[0][0])
        else:
            self.layer = None
        return out

    def _agrees(self, layer: nn.Module) -> bool:
        """Whether the layer alone, on its kept inputs, gives the output of the whole network, for one row."""
        whole = self._run_whole(self.chunks[0][:1])
        args, named = self._layer_inputs[0]
        alone = layer(*args, **named)[:1]
        if not alone.numel():
            return True
        tolerance = 1e-2 if alone.dtype in (torch.bfloat16, torch.float16) else 1e-4
        return torch.allclose(whole, alone, rtol=tolerance, atol=tolerance * float(alone.abs().max()))

    def on_device(self, chunk: Inputs) -> Inputs:
        """A copy of a chunk on the model's device: a forward method may change its inputs in place."""
        return chunk.to(self.device, copy=True)
