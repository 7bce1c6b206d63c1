"""Pictures: from a folder, a table or a name to a fine-tuned network, its folder, and predictions.

Where the first stages of the network are frozen, what they make of every picture and of its mirror image is
computed once; otherwise every batch is a new random view of its pictures (data/views.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.data.batches import Batches
from bayescore.data.pictures import Pictures, new_pictures
from bayescore.data.splitting import Parts
from bayescore.data.views import View
from bayescore.finetune.training import (
    FineTuning,
    TrainedModel,
    fine_tune,
    prediction_rows,
    seeded,
    trained_model,
)
from bayescore.model_folder import SavedModel
from bayescore.models.networks import Classifier, image_classifier
from bayescore.models.stages import FrozenStages
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.prediction import ClassPrediction

__all__ = ["ImageModel", "image_batches", "load_images", "predict_new", "train_images"]

AT_ONCE = 100  # pictures in a forward pass when predicting


def train_images(
    parts: Parts[Pictures],
    net: str = "small",
    settings: FineTuning | None = None,
    *,
    weights: str | Path | None = None,
    size: int | None = None,
    freeze: int = 0,
    adapters: int = 0,
    augment: bool = True,
    outside: Pictures | None = None,
    device: str | torch.device = "cpu",
    arguments: dict[str, Any] | None = None,
    **options: Any,
) -> TrainedModel:
    """Fine-tune a network on pictures and score it on the test part.

    Arguments:
        parts: of `bayescore.data.parts`.
        net, weights, freeze, adapters, arguments: of `bayescore.models.image_classifier`.
        size: side of the network's input, at most that of the pictures; None: theirs.
        augment: show random views in training; with frozen stages, the picture or its mirror image.
        outside: pictures of another kind, for the AUROCs.
        options: of `nn.fit`: checkpoint, progress, on_epoch, ...
    """
    train = parts.train
    side = size or train.pixels.shape[-1]
    channels = train.pixels.shape[1]
    settings = settings or FineTuning(pretrained=weights is not None)
    extra = {**(arguments or {}), **({"channels": channels} if net in ("small", "mlp") else {})}

    def make() -> Classifier:
        head = "random" if settings.method == "ensemble" else "zero"
        found = image_classifier(
            net, len(train.classes), size=side, weights=weights, head=head, freeze=freeze, adapters=adapters,
            **extra,
        )  # fmt: skip
        found.module.to(device)
        return found

    with seeded(settings.seed):
        first = make()
    if channels != len(first.scale["mean"]):
        raise ValueError(f"{net} takes {len(first.scale['mean'])} channels, and the pictures have {channels}")
    view = View(side, train.pixels.shape[-1], first.scale["mean"], first.scale["sd"])
    stem = first.module if isinstance(first.module, FrozenStages) else None
    posterior, fits = fine_tune(
        make,
        lambda seed: image_batches(train, view, settings.batch_size, seed, augment, stem),
        image_batches(parts.validation, view, AT_ONCE, stem=stem),
        settings,
        plain=image_batches(train, view, AT_ONCE, stem=stem),
        **options,
    )
    model = ImageModel(posterior, view, train.classes, stem)
    description = {
        "kind": "images",
        "network": net,
        "arguments": first.arguments,
        "preprocessing": view.config(),
        "outputs": list(train.classes),
    }
    return trained_model(
        posterior,
        fits,
        description,
        settings,
        lambda p: model.predict(p, settings.draws),
        parts.test,
        outside,
    )


def image_batches(
    pictures: Pictures,
    view: View,
    batch_size: int,
    seed: int | None = None,
    augment: bool = False,
    stem: FrozenStages | None = None,
) -> Batches:
    """Batches of what a network sees: views, or what its frozen stages make of them."""
    if stem is None:

        def views(rows: Tensor, rng: torch.Generator | None) -> Tensor:
            pixels = pictures.pixels[rows]
            return view(pixels) if rng is None or not augment else view.augment(pixels, rng)

        return Batches(views, pictures.y, batch_size, seed)
    plain = stem.features(view(pictures.pixels))
    both = torch.stack([plain, stem.features(view(pictures.pixels.flip(-1)))]) if augment else plain[None]

    def features(rows: Tensor, rng: torch.Generator | None) -> Tensor:
        side = torch.zeros_like(rows) if rng is None else torch.randint(len(both), rows.shape, generator=rng)
        return both[side, rows]

    return Batches(features, pictures.y, batch_size, seed)


@dataclass(frozen=True)
class ImageModel:
    """A posterior, and what it takes of a picture."""

    posterior: Posterior
    view: View
    classes: tuple[str, ...]
    stem: FrozenStages | None

    def predict(self, pictures: Pictures, draws: int = 30, seed: int = 0) -> ClassPrediction:
        """The prediction for pictures, whose labels are not looked at."""
        shown = [self._inputs(part) for part in pictures.pixels.split(AT_ONCE)]
        found: ClassPrediction = self.posterior.predict(
            torch.cat(shown), draws, seed=seed, batch_size=AT_ONCE
        )
        return found

    def _inputs(self, pixels: Tensor) -> Tensor:
        x = self.view(pixels)
        return x if self.stem is None else self.stem.features(x)


def load_images(saved: SavedModel) -> ImageModel:
    """The model in a folder."""
    about = saved.description
    view = View.of(about.preprocessing)
    with seeded(0):
        network = image_classifier(about.network, **about.arguments)
    posterior = saved.posterior(network.module)
    stem = network.module if isinstance(network.module, FrozenStages) else None
    return ImageModel(posterior, view, tuple(about.outputs), stem)


def predict_new(saved: SavedModel, new: Path, draws: int, seed: int) -> list[dict[str, str | int | float]]:
    """Predictions for a picture, a folder of pictures, or a CSV of paths."""
    model = load_images(saved)
    pictures = new_pictures(new, model.view.stored, model.view.channels)
    prediction = model.predict(pictures, draws, seed)
    return prediction_rows("file", pictures.names, prediction, list(model.classes))
