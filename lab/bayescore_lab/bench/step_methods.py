"""Who takes part in `bench step`, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from bayescore.checks import unknown_name
from bayescore_lab.bench.networks import INSTALL, Work
from bayescore_lab.bench.step_arms import Arm, Copy, ours, plain
from bayescore_lab.bench.step_peers import AuthorsADVI, BayesianTorch, Ivon, Posteriors

__all__ = ["ANCHOR", "BASELINES", "METHODS", "Contestant", "contestant"]

ANCHOR = "adamw"  # takes part in every block; all ratios go through it
BASELINES = ("adamw", "adamw-fused", "sgd")


@dataclass(frozen=True)
class Contestant:
    """A method of the benchmark.

    Arguments:
        copies: numbers per weight that it holds at most, for the plan of what fits into memory at once.
        own: whether it is one of ours, whose first step may compile.
        module: what must be installed.
    """

    name: str
    title: str
    make: Callable[[Work], Arm]
    copies: float
    own: bool = False
    module: str | None = None

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, or None."""
        absent = self.module is not None and find_spec(self.module) is None
        return f"{self.module} is not installed: {INSTALL}" if absent else None


_SGD, _ADAMW = torch.optim.SGD, torch.optim.AdamW
METHODS: dict[str, Contestant] = {
    entry.name: entry
    for entry in (
        Contestant("adamw", "AdamW, default", plain(_ADAMW), 4.2),
        Contestant("adamw-fused", "AdamW, fused", plain(_ADAMW, fused=True), 4.1),
        Contestant("proximal", "ProximalScore, exact", ours("ProximalScore"), 5.5, own=True),
        Contestant(
            "proximal-in-backward",
            "ProximalScore, exact, update_in_backward",
            ours("ProximalScore", update_in_backward=True),
            4.5,
            own=True,
        ),
        Contestant(
            "proximal-lean",
            "ProximalScore, exact, update_in_backward, no momentum",
            ours("ProximalScore", update_in_backward=True, momentum=0.0),
            3.5,
            own=True,
        ),
        Contestant("sgd", "SGD", plain(_SGD, lr=1e-3), 2.1),
        Contestant(
            "proximal-gradient",
            "ProximalScore, gradient",
            ours("ProximalScore", solver="gradient"),
            8.5,
            own=True,
        ),
        Contestant("adamw-foreach", "AdamW, foreach", plain(_ADAMW, foreach=True), 5.2),
        Contestant("advi", "ADVI", ours("ADVI"), 8.5, own=True),
        Contestant("sgld", "SGLD", ours("SGLD"), 3.5, own=True),
        Contestant("bam", "BaM, 2 draws", ours("BaM", draws=2), 10.0, own=True),
        Contestant("authors-advi", "ADVI as the paper's authors wrote it", AuthorsADVI, 10.5),
        Contestant("ivon", "IVON", Ivon, 12.5, module="ivon"),
        Contestant("posteriors", "posteriors, diagonal VI", Posteriors, 20.0, module="posteriors"),
        Contestant(
            "bayesian-torch",
            "bayesian-torch, reparametrisation",
            partial(BayesianTorch, kind="Reparameterization"),
            20.0,
            module="bayesian_torch",
        ),
        Contestant(
            "bayesian-torch-flipout",
            "bayesian-torch, Flipout",
            partial(BayesianTorch, kind="Flipout"),
            20.0,
            module="bayesian_torch",
        ),
    )
}

#: what `bench scaling` measures beside the methods
GAUGES: dict[str, Contestant] = {
    entry.name: entry
    for entry in (
        Contestant("copy", "copy_", Copy, 4.0),
        *(
            Contestant(
                f"proximal-{draws}-draws", f"ProximalScore, S={draws}", ours("ProximalScore", draws), 9.5
            )
            for draws in (2, 5, 10, 20, 50)
        ),
    )
}


def contestant(name: str) -> Contestant:
    """A method by name."""
    found = METHODS.get(name) or GAUGES.get(name)
    if found is None:
        raise unknown_name("method", name, METHODS)
    return found
