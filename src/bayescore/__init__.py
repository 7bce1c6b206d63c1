"""bayescore: score-based variational inference in PyTorch.

import bayescore as bs

target = bs.targets.LogDensity(fn, dim=2)
fit = bs.fit(target)

Names are imported when they are first used, so that `bayescore --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayescore import (
        data,
        families,
        finetune,
        forecast,
        methods,
        metrics,
        model_folder,
        models,
        nn,
        optim,
        plotting,
        sklearn,
        tables,
        targets,
    )
    from bayescore.inference.fitting import fit, fit_many, resume
    from bayescore.inference.result import Fit, to_arviz
    from bayescore.inference.simulation import check_calibration
    from bayescore.inference.stopping import Plateau
    from bayescore.initial.finding import find_start

__version__ = version("bayescore")

__all__ = [
    "Fit",
    "Plateau",
    "__version__",
    "check_calibration",
    "data",
    "families",
    "find_start",
    "finetune",
    "fit",
    "fit_many",
    "forecast",
    "methods",
    "metrics",
    "model_folder",
    "models",
    "nn",
    "optim",
    "plotting",
    "resume",
    "sklearn",
    "tables",
    "targets",
    "to_arviz",
]

_HOMES = {
    "Fit": "bayescore.inference.result",
    "Plateau": "bayescore.inference.stopping",
    "check_calibration": "bayescore.inference.simulation",
    "find_start": "bayescore.initial.finding",
    "fit": "bayescore.inference.fitting",
    "fit_many": "bayescore.inference.fitting",
    "resume": "bayescore.inference.fitting",
    "to_arviz": "bayescore.inference.result",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"bayescore.{name}")
    raise AttributeError(f"module 'bayescore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
