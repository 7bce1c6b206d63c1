"""Network optimizers: any PyTorch module becomes Bayesian by swapping its optimizer."""

from __future__ import annotations

from bayescore.optim.advi import ADVI
from bayescore.optim.bam import BaM, PairedBaM
from bayescore.optim.calibrated import CalibratedScore
from bayescore.optim.descent import ProximalDescent
from bayescore.optim.family import FamilyOptimizer
from bayescore.optim.proximal import ProximalScore
from bayescore.optim.sgld import SGLD

__all__ = [
    "ADVI",
    "SGLD",
    "BaM",
    "CalibratedScore",
    "FamilyOptimizer",
    "PairedBaM",
    "ProximalDescent",
    "ProximalScore",
]
