"""Photographs by name: Pets, Flowers-102, Aircraft and DTD, and the small sets of handwritten digits.

A copy with 96 pixels a side (an archive of JPEG files and a table of labels) is taken from $BAYESCORE_DATA;
otherwise torchvision's data set of the same name is looked for in $BAYESCORE_DATA or in the cache. Nothing is
downloaded here.

The parts are the official ones, "train" being all that is not "test"; the ten classes of DTD have none, and
40 pictures of each class, drawn with the seed 0, are for training, 40 for validation and 40 for testing.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.caches import cache_place
from bayescore.checks import unknown_name
from bayescore.data.labelled_images import raw_images
from bayescore.data.pictures import Pictures, decode_each, square
from bayescore.operators import declare_vision_operators
from bayescore.reading import read_text
from bayescore.rng import generator

__all__ = ["PICTURE_SETS", "named_pictures"]


@dataclass(frozen=True)
class Archive:
    """An archive of pictures below a data folder, with a table of labels."""

    folder: str
    archive: str
    label: str
    #: the column with the name of the class; None: the label itself
    name: str | None


ARCHIVES = {
    "pets": Archive("oxford_pets", "oxford_pets_96px_jpeg.zip", "class_1to37", "breed"),
    "flowers102": Archive("flowers102", "flowers102_96px_jpeg.zip", "label_1to102", None),
    "dtd10": Archive("dtd10", "dtd10_96px_jpeg.zip", "label", "class"),
}
#: torchvision's class, and for each part of ours its splits
TORCHVISION: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "pets": ("OxfordIIITPet", {"train": ("trainval",), "test": ("test",)}),
    "flowers102": ("Flowers102", {"train": ("train", "val"), "test": ("test",)}),
    "aircraft": ("FGVCAircraft", {"train": ("trainval",), "test": ("test",)}),
    "dtd": ("DTD", {"train": ("train", "val"), "test": ("test",)}),
}
GREY = ("mnist", "digits")
PICTURE_SETS = ("pets", "flowers102", "aircraft", "dtd", "dtd10", *GREY)
PER_CLASS = 40  # of the ten classes of DTD, in each part


def named_pictures(name: str, size: int | None = None) -> Pictures:
    """All pictures of a set, with their parts.

    Arguments:
        size: side in pixels; None: that of the copy, 96 (8 and 28 for digits).
    """
    if name not in PICTURE_SETS:
        raise unknown_name("set of pictures", name, PICTURE_SETS)
    if name in GREY:
        return _grey(name)
    for root in _roots():
        if name in ARCHIVES and (root / ARCHIVES[name].folder / ARCHIVES[name].archive).is_file():
            return _archive(root, name, size or 96)
    if name in TORCHVISION:
        return _torchvision(name, size or 96)
    archive = ARCHIVES[name]
    raise FileNotFoundError(
        f"the pictures of {name!r} are not here: set BAYESCORE_DATA to a folder with "
        f"{archive.folder}/{archive.archive}"
    )


def _roots() -> list[Path]:
    given = os.environ.get("BAYESCORE_DATA")
    return [*([Path(given)] if given else []), cache_place("data")]


def _archive(root: Path, name: str, size: int) -> Pictures:
    source = ARCHIVES[name]
    folder = root / source.folder
    rows = list(csv.DictReader(io.StringIO(read_text(folder / "labels.csv"))))
    labels = [int(row[source.label]) for row in rows]
    first = min(labels)
    names = {label - first: row[source.name or source.label] for label, row in zip(labels, rows, strict=True)}
    with zipfile.ZipFile(folder / source.archive) as archive:
        pixels, kept, skipped = decode_each(
            [Path(row["file"]) for row in rows], lambda path: archive.read(str(path)), size, 3
        )
    if skipped:
        raise ValueError(f"{folder / source.archive} is damaged: {skipped[0]}; replace it")
    y = torch.tensor(labels)[kept] - first
    part = _own_parts(y) if "split" not in rows[0] else [
        "test" if row["split"] == "test" else "train" for row in rows
    ]  # fmt: skip
    files = tuple(row["file"] for row in rows)
    return Pictures(pixels, y, tuple(names[i] for i in range(len(names))), files, tuple(part))


def _own_parts(y: Tensor) -> list[str]:
    """PER_CLASS of every class for each of the three parts."""
    part = [""] * len(y)
    rng = generator(0, purpose="parts")
    for label in y.unique().tolist():
        rows = torch.nonzero(y == label)[:, 0]
        order = rows[torch.randperm(len(rows), generator=rng)].tolist()
        for i, row in enumerate(order):
            part[row] = ("train", "validation", "test")[min(i // PER_CLASS, 2)]
    return part


def _torchvision(name: str, size: int) -> Pictures:
    declare_vision_operators()
    kind, splits = TORCHVISION[name]
    try:
        from torchvision import datasets
    except ImportError:
        raise ImportError(
            f"the pictures of {name!r} are in no data folder, and torchvision, which reads them, is not "
            "installed: pip install 'bayescore[vision]'"
        ) from None
    roots = _roots()
    make: Callable[..., Any] = getattr(datasets, kind)
    for root in roots:
        try:
            found = {part: [make(root=str(root), split=one) for one in ones] for part, ones in splits.items()}
        except RuntimeError:  # not there
            continue
        return _joined(found, size)
    raise FileNotFoundError(
        f"the pictures of {name!r} are not in {' nor in '.join(map(str, roots))}; fetch them with "
        f"torchvision.datasets.{kind}({str(roots[0])!r}, download=True)"
    )


def _joined(found: dict[str, list[Any]], size: int) -> Pictures:
    """All pictures of torchvision's data sets; they are given as pillow's pictures."""
    pixels, labels, part, names = [], [], [], []
    classes: tuple[str, ...] = ()
    for name, sets in found.items():
        for each in sets:
            known = getattr(each, "classes", None)
            classes = tuple(map(str, known)) if known else classes
            for i in range(len(each)):
                picture, label = each[i]
                pixels.append(square(picture, size, 3))
                labels.append(int(label))
                part.append(name)
                names.append(f"{name} {i}")
    y = torch.tensor(labels)
    classes = classes or tuple(str(i) for i in range(int(y.max()) + 1))
    return Pictures(torch.stack(pixels), y, classes, tuple(names), tuple(part))


def _grey(name: str) -> Pictures:
    parts = {part: raw_images(name, part) for part in ("train", "test")}
    pixels = torch.cat([(x * 255).round().to(torch.uint8).unsqueeze(1) for x, _ in parts.values()])
    y = torch.cat([labels for _, labels in parts.values()])
    part = [word for word, (_, labels) in parts.items() for _ in range(len(labels))]
    names = tuple(f"{name} {i}" for i in range(len(y)))
    return Pictures(pixels, y, tuple(str(i) for i in range(10)), names, tuple(part))
