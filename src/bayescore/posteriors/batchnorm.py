"""BatchNorm: frozen layers in training, and the statistics of one set of weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayescore.posteriors.inputs import Inputs

__all__ = ["recalibrated", "to_train_mode"]


def to_train_mode(model: nn.Module) -> None:
    """Train mode, but for BatchNorm layers whose weights are all frozen: their statistics are frozen too."""
    model.train()
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(layer, _BatchNorm) and own and not any(p.requires_grad for p in own):
            layer.eval()


@torch.no_grad()
def recalibrated(model: nn.Module, batches: Iterable[Any], device: torch.device) -> None:
    """Estimate every BatchNorm layer's running statistics from `batches`, reset and averaged; the rest stays
    in eval mode."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average over the batches
        layer.train()
    seen = False
    try:
        for batch in batches:
            seen = True
            inputs = batch[0] if isinstance(batch, tuple | list) else batch
            Inputs.of(inputs).to(device).run(model)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()
    if not seen:
        raise ValueError("recalibrate gave no batch; pass a loader or a list, not an iterator that has ended")
