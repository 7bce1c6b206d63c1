"""What a benchmark can be asked for: networks, methods, sizes. Plain data: help needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

__all__ = [
    "ANCHOR",
    "BASELINES",
    "INSTALL",
    "METHODS",
    "NETWORKS",
    "SAMPLES",
    "SCALING_METHODS",
    "SIZES",
    "Network",
    "StepMethod",
    "bare_weights",
    "vision_network",
]

INSTALL = "pip install './lab[peers]'"
SAMPLES = (1, 2, 5, 10, 20, 50)  # draws of a prediction
SIZES = (100_000, 1_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000)  # weights of `bench scaling`


@dataclass(frozen=True)
class Network:
    """A network and what goes into it; `networks.make_network` makes it.

    Arguments:
        source: a perceptron of ours with `hidden` layers, a classifier of torchvision by its name, or `size`
            bare weights: no forward pass, and a gradient that is already there.
        shape: of one input; None where there is no forward pass.
        batch: rows of a mini-batch unless the user says otherwise.
    """

    name: str
    title: str
    source: Literal["perceptron", "torchvision", "bare weights"]
    shape: tuple[int, ...] | None
    classes: int
    batch: int
    hidden: tuple[int, ...] = ()
    size: int = 0

    def inputs(self, batch: int) -> tuple[int, ...] | None:
        """The shape of a mini-batch."""
        return None if self.shape is None else (batch, *self.shape)


def vision_network(name: str, pixels: int = 224) -> Network:
    """A classifier of torchvision."""
    return Network(name, f"{name}, {pixels} px", "torchvision", (3, pixels, pixels), 1000, 16)


def bare_weights(size: int) -> Network:
    """So many weights without a forward pass: a step is nothing but the optimizer's work."""
    title = f"{size:,} weights, no forward pass"
    return Network(f"weights:{size}", title, "bare weights", None, 0, 1, size=size)


def _perceptron(name: str, hidden: tuple[int, ...], inputs: int = 784, batch: int = 128) -> Network:
    layers = "-".join(map(str, (inputs, *hidden, 10)))
    return Network(name, f"MLP {layers}", "perceptron", (inputs,), 10, batch, hidden)


NETWORKS: dict[str, Network] = {
    net.name: net
    for net in (
        _perceptron("mlp", (1000, 1000, 1000)),
        _perceptron("mlp-middle", (256, 256)),
        _perceptron("mlp-small", (60,)),
        _perceptron("mlp-tiny", (50, 50), inputs=20, batch=32),
        vision_network("resnet18", 64),
        *(vision_network(name) for name in ("resnet101", "vit_b_16", "vit_l_32")),
    )
}


ANCHOR = "adamw"  # is measured in every block; ratios between blocks go through it
BASELINES = ("adamw", "adamw-fused", "sgd")


@dataclass(frozen=True)
class StepMethod:
    """A method of `bench step`; `steppers.make_stepper` makes it.

    Arguments:
        copies: numbers per weight that it holds at most, for the plan of what fits into memory at once.
        source: where it comes from.
        optimizer: its name there.
        draws: draws of the weights in a step.
        module: what must be installed.
    """

    name: str
    title: str
    copies: float
    source: Literal["torch", "bayescore", "authors", "ivon", "posteriors", "bayesian-torch", "copy"]
    optimizer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    draws: int = 1
    module: str | None = None

    @property
    def ours(self) -> bool:
        """Whether it is one of ours, whose first step may compile."""
        return self.source == "bayescore"

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, or None."""
        if self.module is None:
            return None
        spec = find_spec(self.module)
        absent = spec is None or spec.origin is None  # None: a mere folder of that name on the path
        return f"{self.module} is not installed: {INSTALL}" if absent else None


def _torch(name: str, title: str, copies: float, optimizer: str, **options: Any) -> StepMethod:
    return StepMethod(name, title, copies, "torch", optimizer, options)


def _ours(name: str, title: str, copies: float, optimizer: str, draws: int = 1, **options: Any) -> StepMethod:
    return StepMethod(name, title, copies, "bayescore", optimizer, options, draws)


def _bayesian_torch(name: str, title: str, layers: str) -> StepMethod:
    return StepMethod(name, title, 20.0, "bayesian-torch", layers, module="bayesian_torch")


#: in the order in which they are measured
METHODS: dict[str, StepMethod] = {
    method.name: method
    for method in (
        _torch("adamw", "AdamW, default", 4.2, "AdamW"),
        _torch("adamw-fused", "AdamW, fused", 4.1, "AdamW", fused=True),
        _ours("proximal", "ProximalScore", 5.5, "default"),
        _ours(
            "proximal-in-backward",
            "ProximalScore, update_in_backward",
            4.5,
            "default",
            update_in_backward=True,
        ),
        _ours("calibrated", "CalibratedScore", 5.5, "proximal"),
        _ours(
            "calibrated-lean",
            "CalibratedScore, update_in_backward, no momentum",
            3.5,
            "proximal",
            update_in_backward=True,
            momentum=0.0,
        ),
        _torch("sgd", "SGD", 2.1, "SGD", lr=1e-3),
        _ours("proximal-gradient", "ProximalDescent", 8.5, "proximal", solver="gradient"),
        _torch("adamw-foreach", "AdamW, foreach", 5.2, "AdamW", foreach=True),
        _ours("advi", "ADVI", 8.5, "advi"),
        _ours("sgld", "SGLD", 3.5, "sgld"),
        _ours("bam", "PairedBaM, 2 draws", 10.0, "bam", draws=2),
        StepMethod("authors-advi", "ADVI as the paper's authors wrote it", 10.5, "authors"),
        StepMethod("ivon", "IVON", 12.5, "ivon", module="ivon"),
        StepMethod("posteriors", "posteriors, diagonal VI", 20.0, "posteriors", module="posteriors"),
        _bayesian_torch("bayesian-torch", "bayesian-torch, reparametrisation", "Reparameterization"),
        _bayesian_torch("bayesian-torch-flipout", "bayesian-torch, Flipout", "Flipout"),
    )
}

#: what `bench scaling` measures beside the methods
SCALING_METHODS: dict[str, StepMethod] = {
    method.name: method
    for method in (
        StepMethod("copy", "copy_", 4.0, "copy"),
        *(
            _ours(f"proximal-{draws}-draws", f"ProximalScore, S={draws}", 9.5, "default", draws)
            for draws in (2, 5, 10, 20, 50)
        ),
    )
}
