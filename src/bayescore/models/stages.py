"""Networks as a list of stages, so that the first ones can be frozen and what they make kept.

`FrozenStages` has all weights of the network. It takes pictures, or what its frozen stages have made of them
(`features`), which it tells by their shape: then only the other stages run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayescore.checks import check_count

__all__ = ["FrozenStages", "freeze_stages", "split_stages"]


class FrozenStages(nn.Module):
    """A network whose first stages are frozen.

    Arguments:
        stages: from inputs to what the head takes.
        head: the last layer.
        frozen: how many of the stages are frozen.
        shape: of one input.
    """

    def __init__(self, stages: list[nn.Module], head: nn.Module, frozen: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem, self.body = nn.Sequential(*stages[:frozen]), nn.Sequential(*stages[frozen:])
        self.head = head
        self.stem.requires_grad_(False)
        self.shape = shape

    def train(self, mode: bool = True) -> FrozenStages:
        super().train(mode)
        self.stem.eval()  # its BatchNorm and dropout too are those of prediction
        return self

    @torch.no_grad()
    def features(self, x: Tensor, batch_size: int = 100) -> Tensor:
        """What the frozen stages make of inputs."""
        device = next(self.stem.parameters()).device
        self.stem.eval()
        return torch.cat([self.stem(part.to(device)).cpu() for part in x.split(batch_size)])

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) == self.shape:
            x = self.stem(x)
        out: Tensor = self.head(self.body(x))
        return out


class _PatchTokens(nn.Module):
    """The patches of torchvision's VisionTransformer as tokens, with the class token and the positions."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.conv_proj, self.dropout = vit.conv_proj, vit.encoder.dropout
        self.class_token, self.pos_embedding = vit.class_token, vit.encoder.pos_embedding

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv_proj(x).flatten(2).transpose(1, 2)  # (n, patches, width)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1)
        out: Tensor = self.dropout(tokens + self.pos_embedding)
        return out


class _ClassToken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class _Pool(nn.Module):
    """The mean over a map."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def split_stages(module: Any, head: str) -> list[nn.Module]:
    """The stages of a network of a known kind, from its inputs to what the head takes."""
    last = module.get_submodule(head)
    if hasattr(module, "_conv_stem") and hasattr(module, "_blocks"):  # EfficientNet-Lite
        start = [module._conv_stem, module._bn0, module._swish]
        return [*start, *module._blocks, module._conv_head, module._bn1, module._swish, _Pool()]
    if hasattr(module, "layer4") and hasattr(module, "conv1"):  # ResNet
        start = [module.conv1, module.bn1, module.relu, module.maxpool]
        layers = (module.layer1, module.layer2, module.layer3, module.layer4)
        return [*start, *(block for layer in layers for block in layer), _Pool()]
    if hasattr(module, "encoder") and hasattr(module, "conv_proj"):  # VisionTransformer
        return [_PatchTokens(module), *module.encoder.layers, module.encoder.ln, _ClassToken()]
    if isinstance(getattr(module, "features", None), nn.Sequential):  # MobileNet, EfficientNet
        before = [layer for layer in module.classifier if layer is not last]
        if all(isinstance(layer, nn.Dropout) for layer in before):
            return [*module.features, _Pool(), *before]
    if isinstance(module, nn.Sequential) and module[-1] is last:
        return [*module.children()][:-1]
    raise ValueError(
        f"the stages of a {type(module).__name__} are not known, so that its first ones cannot be frozen; "
        "leave freeze out, or set requires_grad=False in the module yourself"
    )


def freeze_stages(module: nn.Module, head: str, frozen: int, shape: tuple[int, ...]) -> FrozenStages:
    """The network with its first stages frozen."""
    stages = split_stages(module, head)
    check_count("freeze", frozen, most=len(stages))
    return FrozenStages(stages, module.get_submodule(head), frozen, shape)
