"""Which methods are compared on the time to the same ELBO, with one small grid of settings for all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bayescore.methods import Method
from bayescore_lab.methods import low_dimensional_method

__all__ = ["OURS", "PEERS", "Entry", "OurMethod", "PeerMethod", "RunResult", "Setting", "setting_text"]

Setting = Mapping[str, float | int]

LEARNING_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
DRAWS = (1, 10, 100)  # per step, where a method takes gradient steps
BATCHES = (2, 10, 100)  # per step, where it solves for the next Gaussian
PATHS = ((30, 10, 1e-5), (100, 50, 1e-9))  # iterations, updates remembered and tolerance of L-BFGS
DESCENTS: tuple[Setting, ...] = tuple({"learning_rate": r, "draws": s} for s in DRAWS for r in LEARNING_RATES)
SOLVES: tuple[Setting, ...] = tuple({"batch": b} for b in BATCHES)
SINGLE: tuple[Setting, ...] = tuple(
    {"iterations": i, "history": h, "tolerance": f, "draws": 200} for i, h, f in PATHS
)
MULTI: tuple[Setting, ...] = tuple({**s, "paths": 4} for s in SINGLE)


@dataclass(frozen=True)
class RunResult:
    """How one run ended: the first check at which the goal was reached, or the last one."""

    seconds: float | None  # None where the goal was not reached
    score_calls: int | None  # None where they were not counted
    steps: int
    gap: float  # nats below the best Gaussian
    compile_seconds: float | None = None


@dataclass(frozen=True)
class Entry:
    """A method in the comparison and the settings it may choose from."""

    name: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class OurMethod(Entry):
    """One of our methods."""

    make: Callable[[Setting], Method]
    check_every: int  # steps


@dataclass(frozen=True)
class PeerMethod(Entry):
    """A method of another library, by its name in jax_methods.PEERS."""

    method: str
    modules: tuple[str, ...]


def _descent(name: str, setting: Setting, **options: Any) -> Method:
    rate, draws = setting["learning_rate"], int(setting["draws"])
    return low_dimensional_method(name, learning_rate=rate, samples=draws, **options)


OURS: tuple[OurMethod, ...] = (
    OurMethod(
        "WhitenedDescent",
        DESCENTS,
        lambda s: _descent("proximal", s),
        check_every=1,
    ),
    OurMethod(
        "ProximalDescent",
        DESCENTS,
        lambda s: _descent("proximal", s, metric="euclidean"),
        check_every=1,
    ),
    OurMethod("BaM", SOLVES, lambda s: low_dimensional_method("bam", batch=int(s["batch"])), check_every=1),
    OurMethod("GSM", SOLVES, lambda s: low_dimensional_method("gsm", batch=int(s["batch"])), check_every=1),
    OurMethod(
        "ADVI",
        DESCENTS,
        lambda s: _descent("advi", s),
        check_every=5,
    ),
)

PEERS: tuple[PeerMethod, ...] = (
    PeerMethod("NumPyro SVI", DESCENTS, "numpyro svi", ("jax", "numpyro", "optax")),
    PeerMethod("BlackJAX full-rank VI", DESCENTS, "blackjax fullrank", ("jax", "blackjax", "optax")),
    PeerMethod("BlackJAX pathfinder", SINGLE, "blackjax pathfinder", ("jax", "blackjax")),
    PeerMethod("BlackJAX multi-path pathfinder", MULTI, "blackjax multipath", ("jax", "blackjax")),
)


def setting_text(setting: Setting) -> str:
    """A setting in words: "learning rate 0.03, 10 draws"."""
    parts = []
    for key, value in setting.items():
        before = key in ("learning_rate", "batch", "history", "tolerance")
        name = key.removesuffix("s") if value == 1 else key.replace("_", " ")
        parts.append(f"{name} {value:g}" if before else f"{value:g} {name}")
    return ", ".join(parts)
