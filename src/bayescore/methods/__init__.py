"""Methods: how a fit moves its family towards the target."""

from __future__ import annotations

from bayescore.checks import unknown_name
from bayescore.methods.advi import ADVI
from bayescore.methods.bam import BaM
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.methods.calibrated_score import CalibratedScore
from bayescore.methods.curvature_matching import CurvatureMatching
from bayescore.methods.fisher import Fisher
from bayescore.methods.gsm import GSM
from bayescore.methods.paired_bam import PairedBaM
from bayescore.methods.proximal_descent import ProximalDescent
from bayescore.methods.proximal_ridge import ProximalRidge
from bayescore.methods.proximal_score import ProximalScore
from bayescore.methods.score import Score
from bayescore.methods.whitened_descent import WhitenedDescent

__all__ = [
    "ADVI",
    "GSM",
    "METHODS",
    "BaM",
    "CalibratedScore",
    "CurvatureMatching",
    "Fisher",
    "Info",
    "Method",
    "Oracle",
    "PairedBaM",
    "ProximalDescent",
    "ProximalRidge",
    "ProximalScore",
    "Score",
    "State",
    "WhitenedDescent",
    "by_name",
]

#: every method by its name on the command line and in saved files
METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        ProximalDescent,
        WhitenedDescent,
        ProximalRidge,
        ProximalScore,
        CalibratedScore,
        ADVI,
        GSM,
        BaM,
        PairedBaM,
        CurvatureMatching,
        Fisher,
        Score,
    )
}


def by_name(name: str) -> type[Method]:
    """The method class of that name; the error for an unknown name suggests the nearest."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
