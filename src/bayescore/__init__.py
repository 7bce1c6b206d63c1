"""bayescore: score-based variational inference in PyTorch.

import bayescore as bs

target = bs.targets.LogDensity(fn, dim=2)
fit = bs.fit(target, bs.families.FullGaussian.init(2), bs.methods.ProximalScore(), steps=1000, seed=0)
"""

from importlib.metadata import version

from bayescore import data, families, methods, metrics, nn, optim, targets
from bayescore.begin import find_start
from bayescore.fit import Plateau, fit, fit_many, resume
from bayescore.result import Fit

__version__ = version("bayescore")

__all__ = [
    "Fit",
    "Plateau",
    "__version__",
    "data",
    "families",
    "find_start",
    "fit",
    "fit_many",
    "methods",
    "metrics",
    "nn",
    "optim",
    "resume",
    "targets",
]
