"""PosteriorDB: posteriors with data and reference draws; the densities of four are written here in torch."""

from __future__ import annotations

from bayescore.targets.posteriordb.folder import Folder
from bayescore.targets.posteriordb.gaussian_process import GaussianProcessCounts
from bayescore.targets.posteriordb.normal_mixture import NormalMixture
from bayescore.targets.posteriordb.regression import AutoRegression, Diamonds
from bayescore.targets.posteriordb.target import NATIVE, PosteriorDB, posteriordb

__all__ = [
    "NATIVE",
    "AutoRegression",
    "Diamonds",
    "Folder",
    "GaussianProcessCounts",
    "NormalMixture",
    "PosteriorDB",
    "posteriordb",
]
