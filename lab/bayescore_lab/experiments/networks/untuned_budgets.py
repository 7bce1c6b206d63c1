"""How long each task of the untuned comparison is trained, the same for every method."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUDGETS", "DRAWS", "MEMBERS", "Budget"]

DRAWS = 32  # of the weights, in a prediction
MEMBERS = 5  # networks of an ensemble


@dataclass(frozen=True)
class Budget:
    """What every method may spend on a task.

    Arguments:
        epochs, batch_size: of training; the rate falls along a cosine.
        seeds: how many are run.
        plain, sampled: measured seconds of a run of AdamW, and of a method that draws weights; only the order
            of the runs and the expected time depend on them.
        warmup: share of the steps in which the rate rises to its full value.
        shared_split: whether all seeds have the same data; then the networks that AdamW trains for the seeds
            are the members of one ensemble, and nothing is trained for it.
        members: of an ensemble that trains its own.
        ensembles: how many seeds have one, if not all.
    """

    epochs: int
    batch_size: int
    seeds: int
    plain: float
    sampled: float
    warmup: float = 0.0
    shared_split: bool = False
    members: int = MEMBERS
    ensembles: int | None = None


BUDGETS = {
    "breast cancer": Budget(100, 32, 10, 1.2, 3),
    "wine": Budget(100, 32, 10, 0.4, 1),
    "diabetes": Budget(100, 32, 10, 1, 2.5),
    "moons": Budget(100, 32, 10, 0.7, 1.7),
    "gap curve": Budget(200, 32, 10, 0.8, 2),
    "yacht": Budget(200, 32, 20, 1.8, 4.5),
    "digits 200": Budget(100, 32, 10, 0.7, 1.7),
    "MNIST 600": Budget(60, 50, 5, 5, 15),
    "LeNet-5 Fashion-MNIST": Budget(12, 128, 3, 65, 100, warmup=0.05, shared_split=True),
    "EfficientNet-Lite0 Pets": Budget(4, 32, 3, 80, 145, shared_split=True),
    "adapters on a frozen base": Budget(60, 32, 5, 1.3, 2.2),
    "GRU": Budget(150, 32, 5, 18, 20, ensembles=1),
    "concrete": Budget(100, 32, 20, 3, 7),
    "power plant": Budget(15, 64, 20, 2, 5),
    "airfoil": Budget(60, 32, 20, 2.6, 6),
    "wine quality, red": Budget(60, 32, 20, 2.7, 6.5),
    "protein": Budget(40, 64, 5, 2.9, 7),
    "digits 1000": Budget(60, 32, 10, 2, 5),
    "MNIST 6000": Budget(20, 128, 5, 11, 25),
    "MobileNetV2 Pets": Budget(4, 32, 3, 30, 65, shared_split=True),
    "MiniLM Rotten Tomatoes": Budget(5, 16, 3, 60, 220, members=3, ensembles=1),
    "causal transformer": Budget(15, 32, 3, 32, 48, shared_split=True),
    "wine quality, white": Budget(40, 64, 5, 3, 7),
    "wankara": Budget(60, 32, 10, 1, 2.5),
    "treasury": Budget(60, 32, 10, 2, 4),
    "vowel": Budget(60, 32, 10, 2, 4),
    "balance": Budget(60, 32, 10, 1, 2.5),
    "digits 500, convolutions": Budget(40, 32, 10, 2, 4),
    "Fashion-MNIST 3000": Budget(30, 64, 5, 10, 25),
    "EfficientNet-Lite0 Flowers": Budget(6, 32, 3, 40, 80, shared_split=True),
    "MobileNetV2 DTD": Budget(8, 32, 3, 12, 25, shared_split=True),
    "causal transformer, sentences": Budget(15, 32, 3, 32, 48, shared_split=True),
}
