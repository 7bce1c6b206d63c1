"""Who runs in the race to a given ELBO, with the same small grid of settings for all that have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bayescore.methods import ADVI, GSM, BaM, Method, ProximalScore

__all__ = ["OURS", "PEERS", "Entry", "Finish", "Own", "Peer", "Setting", "words"]

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
class Finish:
    """How one run ended: the first check at which the goal was reached, or the last one."""

    seconds: float | None  # None where the goal was not reached
    score_calls: int | None  # None where they were not counted
    steps: int
    gap: float  # nats below the best Gaussian
    compile_seconds: float | None = None


@dataclass(frozen=True)
class Entry:
    """A method in the race and the settings it may choose from."""

    name: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Own(Entry):
    """One of our methods."""

    make: Callable[[Setting], Method]
    check_every: int  # steps


@dataclass(frozen=True)
class Peer(Entry):
    """A method of another library, by its name in jax_methods.PEERS."""

    method: str
    modules: tuple[str, ...]


OURS: tuple[Own, ...] = (
    Own(
        "ProximalScore",
        DESCENTS,
        lambda s: ProximalScore(learning_rate=s["learning_rate"], samples=int(s["draws"])),
        check_every=1,
    ),
    Own(
        "ProximalScore, metric=euclidean",
        DESCENTS,
        lambda s: ProximalScore(
            learning_rate=s["learning_rate"], samples=int(s["draws"]), metric="euclidean"
        ),
        check_every=1,
    ),
    Own("BaM", SOLVES, lambda s: BaM(batch=int(s["batch"])), check_every=1),
    Own("GSM", SOLVES, lambda s: GSM(batch=int(s["batch"])), check_every=1),
    Own(
        "ADVI",
        DESCENTS,
        lambda s: ADVI(learning_rate=s["learning_rate"], samples=int(s["draws"])),
        check_every=5,
    ),
)

PEERS: tuple[Peer, ...] = (
    Peer("NumPyro SVI", DESCENTS, "numpyro svi", ("jax", "numpyro", "optax")),
    Peer("BlackJAX full-rank VI", DESCENTS, "blackjax fullrank", ("jax", "blackjax", "optax")),
    Peer("BlackJAX pathfinder", SINGLE, "blackjax pathfinder", ("jax", "blackjax")),
    Peer("BlackJAX multi-path pathfinder", MULTI, "blackjax multipath", ("jax", "blackjax")),
)


def words(setting: Setting) -> str:
    """A setting for people: "learning rate 0.03, 10 draws"."""
    parts = []
    for key, value in setting.items():
        before = key in ("learning_rate", "batch", "history", "tolerance")
        name = key.removesuffix("s") if value == 1 else key.replace("_", " ")
        parts.append(f"{name} {value:g}" if before else f"{value:g} {name}")
    return ", ".join(parts)
