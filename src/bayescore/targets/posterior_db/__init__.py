"""PosteriorDB: posteriors with data and reference draws; some of the densities are written in torch."""

from __future__ import annotations

from bayescore.targets.posterior_db.folder import Folder
from bayescore.targets.posterior_db.gaussian_process import GaussianProcessCounts
from bayescore.targets.posterior_db.normal_mixture import NormalMixture
from bayescore.targets.posterior_db.regression import AutoRegression, Diamonds
from bayescore.targets.posterior_db.target import NATIVE, PosteriorDB, posteriordb

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
