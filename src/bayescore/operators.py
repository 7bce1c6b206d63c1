"""torchvision with a build of torch that it was not compiled for: declare the operators its import needs.

A wheel of torchvision is compiled for one build of torch. With another build (such as one for the CPU) its
operators do not load, and `import torchvision` fails, as does every library that imports it (laplace-torch,
torchmetrics, timm). Once the schemas are declared, models and transforms work; calling the operators still
raises.
"""

from __future__ import annotations

import importlib.util

import torch

__all__ = ["declare_vision_operators"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_library: list[torch.library.Library] = []  # declarations end when their library object is deleted


def declare_vision_operators() -> None:
    """Declare torchvision's operators if it is installed and cannot load them; harmless to repeat."""
    if _library or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError as problem:  # "operator torchvision::nms does not exist"
        if "torchvision::" not in str(problem):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _library.append(library)
