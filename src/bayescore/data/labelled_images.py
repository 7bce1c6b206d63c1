"""Labelled images: MNIST, Fashion-MNIST, and scikit-learn's digits, which are not downloaded.

Pixels are standardised with the mean and sd of the training images of the set itself:
    x = (pixel/white - mean) / sd                                                                         (1)
Out-of-distribution images must be standardised like the data they are compared with: `like=`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from bayescore.checks import unknown_name
from bayescore.data.files import Source, read

__all__ = ["IMAGE_SETS", "Images", "images", "raw_images"]


@dataclass(frozen=True)
class Images:
    """Standardised images (n, height, width) in float32 and their labels (n,)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor) -> Images:
        return Images(self.x[index], self.y[index])


@dataclass(frozen=True)
class _Scale:
    mean: float
    sd: float


IMAGE_SETS = {
    "mnist": _Scale(0.1307, 0.3081),
    "fashion_mnist": _Scale(0.2860, 0.3530),
    "digits": _Scale(0.3053, 0.3761),
}
#: the addresses of a set, and its licence
_PUBLISHED = {
    "mnist": (
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        "not stated there; the data are Y. LeCun's and C. Cortes'",
    ),
    "fashion_mnist": (("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",), "MIT"),
}
_SHA256 = {
    "mnist/train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "mnist/train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "mnist/t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "mnist/t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "fashion_mnist/t10k-images-idx3-ubyte.gz": (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
    ),
    "fashion_mnist/t10k-labels-idx1-ubyte.gz": (
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
    ),
}
_SIZES = {  # a header of 4 bytes and 4 for each dimension, and one byte for each pixel or label
    "train-images-idx3-ubyte.gz": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte.gz": 8 + 60_000,
    "t10k-images-idx3-ubyte.gz": 16 + 10_000 * 28 * 28,
    "t10k-labels-idx1-ubyte.gz": 8 + 10_000,
}
_DIGITS_TEST = 597  # the last third in the order of the file: other writers than the first 1,200


def images(name: str, part: str = "train", *, like: str | None = None) -> Images:
    """A part of a set of labelled images.

    Arguments:
        name: "mnist", "fashion_mnist" (its test part only) or "digits".
        part: "train" or "test".
        like: the set whose mean and sd standardise the pixels (1), `name` itself by default.
    """
    if name not in IMAGE_SETS:
        raise unknown_name("image set", name, IMAGE_SETS)
    if like is not None and like not in IMAGE_SETS:
        raise unknown_name("image set", like, IMAGE_SETS)
    pixels, labels = raw_images(name, part)
    scale = IMAGE_SETS[like or name]
    return Images((pixels - scale.mean) / scale.sd, labels)  # (1)


def raw_images(name: str, part: str) -> tuple[Tensor, Tensor]:
    """Images (n, height, width) from 0, black, to 1, white, and their labels."""
    if part not in ("train", "test"):
        raise ValueError(f"part must be 'train' or 'test'; got {part!r}")
    return _digits(part) if name == "digits" else _idx_pair(name, part)


def _digits(part: str) -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("the digits come with scikit-learn: pip install 'bayescore[data]'") from None
    data = load_digits()
    pixels = torch.as_tensor(data.images, dtype=torch.float32) / 16
    labels = torch.as_tensor(data.target, dtype=torch.int64)
    rows = slice(None, -_DIGITS_TEST) if part == "train" else slice(-_DIGITS_TEST, None)
    return pixels[rows], labels[rows]


def _idx_pair(name: str, part: str) -> tuple[Tensor, Tensor]:
    stem = "train" if part == "train" else "t10k"
    found = []
    for kind in ("images-idx3", "labels-idx1"):
        path = f"{name}/{stem}-{kind}-ubyte.gz"
        if path not in _SHA256:
            raise ValueError(f"only the test part of {name!r} is registered; got part={part!r}")
        places, licence = _PUBLISHED[name]
        file = path.split("/")[1]
        addresses = tuple(place + file for place in places)
        found.append(read(Source(path, _SHA256[path], _SIZES[file], addresses, licence)))
    return parse_idx(found[0]).float() / 255, parse_idx(found[1]).long()


def parse_idx(content: bytes) -> Tensor:
    """An array of bytes in the idx format: 0, 0, type 8, the number of dimensions, their sizes, the bytes."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError("the content is not an idx file of bytes")
    start = 4 + 4 * content[3]
    header = content[4:start]
    shape = struct.unpack(f">{len(header) // 4}I", header[: len(header) // 4 * 4])
    if len(content) - start != math.prod(shape) or not 1 <= len(shape) <= 3:
        raise ValueError(
            f"the content is not a whole idx file: its header names {content[3]} dimensions {shape}, "
            f"and {len(content) - start} bytes follow"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(shape)
