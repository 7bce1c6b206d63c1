"""Pictures: from a folder, a table or a name to a fine-tuned network, its folder, and predictions.

Where the first stages of the network are frozen, what they make of every picture and of its mirror image is
computed once; otherwise every batch is a new random view of its pictures (data/views.py). Pictures lie in
memory with their channels last, in which order the convolutions of a CPU are up to twice as fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.caches import cache_place, private_folder
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
from bayescore.io import read_tensors, write_tensors
from bayescore.model_folder import SavedModel
from bayescore.models.networks import Classifier, image_classifier
from bayescore.models.stages import FrozenStages
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.prediction import ClassPrediction

__all__ = ["ImageModel", "image_batches", "load_images", "predict_new", "train_images"]

FORMAT = "bayescore-features-2"
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
    cached: bool = False,
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
        cached: keep what frozen stages make of the pictures in the cache, for other runs.
        outside: pictures of another kind, for the AUROCs.
        options: of `nn.fit`: checkpoint, progress, callbacks, ...
    """
    train = parts.train
    side = size or train.pixels.shape[-1]
    channels = train.pixels.shape[1]
    settings = settings or FineTuning(pretrained=weights is not None)
    extra = {**(arguments or {}), **({"channels": channels} if net in ("small", "mlp") else {})}

    def make() -> Classifier:
        head = "zero" if settings.pretrained and settings.method != "ensemble" else "random"
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
        lambda seed: image_batches(train, view, settings.batch_size, seed, augment, stem, cached),
        image_batches(parts.validation, view, AT_ONCE, stem=stem, cached=cached),
        settings,
        plain=lambda: image_batches(train, view, AT_ONCE, stem=stem, cached=cached),
        **options,
    )
    model = ImageModel(posterior, view, train.classes, stem, cached)
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
    cached: bool = False,
) -> Batches:
    """Batches of what a network sees: views, or what its frozen stages make of them."""
    if stem is None:

        def views(rows: Tensor, rng: torch.Generator | None) -> Tensor:
            pixels = pictures.pixels[rows]
            return channels_last(view(pixels) if rng is None or not augment else view.augment(pixels, rng))

        return Batches(views, pictures.y, batch_size, seed)
    sides = [pictures.pixels, pictures.pixels.flip(-1)] if augment else [pictures.pixels]
    both = torch.stack([_features(stem, view, pixels, cached) for pixels in sides])

    def features(rows: Tensor, rng: torch.Generator | None) -> Tensor:
        side = torch.zeros_like(rows) if rng is None else torch.randint(len(both), rows.shape, generator=rng)
        return channels_last(both[side, rows])

    return Batches(features, pictures.y, batch_size, seed)


def channels_last(x: Tensor) -> Tensor:
    """The same pictures or maps, with their channels last in memory; other shapes as they are."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _features(stem: FrozenStages, view: View, pixels: Tensor, cached: bool) -> Tensor:
    """What the frozen stages make of pictures, from the cache if they were computed before and are kept."""
    if not cached:
        return torch.cat([stem.features(channels_last(view(part))) for part in pixels.split(AT_ONCE)])
    key = sha256(f"{FORMAT} {view}".encode())
    for value in (*stem.stem.state_dict().values(), pixels):
        key.update(f"{value.dtype} {tuple(value.shape)}".encode())
        key.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    folder = private_folder(cache_place("features"), "set BAYESCORE_CACHE to a folder of yours")
    place = folder / f"{key.hexdigest()[:32]}.safetensors"
    if not place.is_file():
        write_tensors(place, {"format": FORMAT}, {"x": _features(stem, view, pixels, cached=False)})
    return read_tensors(place, FORMAT)[1]["x"]


@dataclass(frozen=True)
class ImageModel:
    """A posterior, and what it takes of a picture."""

    posterior: Posterior
    view: View
    classes: tuple[str, ...]
    stem: FrozenStages | None
    cached: bool = False

    def predict(self, pictures: Pictures, draws: int = 30, seed: int = 0) -> ClassPrediction:
        """The prediction for pictures, whose labels are not looked at."""
        if self.stem is None:
            x = self.view(pictures.pixels)
        else:
            x = _features(self.stem, self.view, pictures.pixels, self.cached)
        found: ClassPrediction = self.posterior.predict(
            channels_last(x), draws, seed=seed, batch_size=AT_ONCE
        )
        return found


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
