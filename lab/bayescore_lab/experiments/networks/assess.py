"""How good a posterior is on test images: with the paper's 5 draws, and with 30 as the fair budget.

The 30 draws contain the 5. Fashion-MNIST's images are what a network trained on digits has never seen.
"""

from __future__ import annotations

from dataclasses import replace

from bayescore.metrics import evaluate
from bayescore.nn import ClassPrediction, Posterior
from bayescore_lab.experiments.networks.split import pictures

__all__ = ["assess", "predict_both"]

FEW, MANY = 5, 30
FOREIGN = 2000  # images of Fashion-MNIST
TEST_SEED = 1


def predict_both(posterior: Posterior, x: object) -> tuple[ClassPrediction, ClassPrediction]:
    """The predictions of 5 draws and of 30, the first 5 among them."""
    few: ClassPrediction = posterior.predict(x, FEW, seed=TEST_SEED, batch_size=1000)
    rest: ClassPrediction = posterior.predict(x, MANY - FEW, seed=TEST_SEED + 1, batch_size=1000)
    share = FEW / MANY
    many = replace(
        few,
        draws=MANY,
        probs=few.probs.lerp(rest.probs, 1 - share),
        expected_entropy=few.expected_entropy.lerp(rest.expected_entropy, 1 - share),
    )
    return few, many


def assess(posterior: Posterior, limit: int | None = None) -> dict[str, float]:
    """The metrics of the experiment; those of 30 draws end in _30."""
    test, foreign = pictures("mnist", "test"), pictures("fashion_mnist", "test")
    labels = test.y[:limit]
    predictions = predict_both(posterior, test.x[:limit])
    strange = predict_both(posterior, foreign.x[: limit or FOREIGN])
    found: dict[str, float] = {}
    for ending, known, unknown in zip(("", "_30"), predictions, strange, strict=True):
        found |= {f"{name}{ending}": value for name, value in evaluate(known, labels, unknown).items()}
    return found
