"""Variational families: the kinds of density q that can be fitted."""

from __future__ import annotations

from bayescore.checks import unknown_name
from bayescore.families.base import Family
from bayescore.families.coupling import CouplingFlow
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.full import FullGaussian
from bayescore.families.low_rank import LowRankGaussian
from bayescore.families.mixture import GaussianMixture
from bayescore.families.planar import PlanarFlow
from bayescore.families.spiked import SpikedGaussian
from bayescore.families.zuko import ZukoFlow

__all__ = [
    "FAMILIES",
    "CouplingFlow",
    "DiagonalGaussian",
    "Family",
    "FullGaussian",
    "GaussianMixture",
    "LowRankGaussian",
    "PlanarFlow",
    "SpikedGaussian",
    "ZukoFlow",
    "by_name",
]

#: every family by its name on the command line and in saved files
FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (
        FullGaussian,
        DiagonalGaussian,
        LowRankGaussian,
        SpikedGaussian,
        GaussianMixture,
        PlanarFlow,
        CouplingFlow,
        ZukoFlow,
    )
}


def by_name(name: str) -> type[Family]:
    """The family class of that name; the error for an unknown name suggests the nearest."""
    if name not in FAMILIES:
        raise unknown_name("family", name, FAMILIES)
    return FAMILIES[name]
