"""Labelled pictures of any size and kind, decoded once into one tensor of bytes.

A picture is turned upright (EXIF), converted to RGB or grey, its short side is resized, and the square in its
middle is kept. What cannot be decoded is named, and left out or refused, as the user chooses.

    folder/<class>/<picture>                   a folder per class
    folder/{train,validation,test}/<class>/    the same, with parts that are kept apart
    table.csv                                  a column of paths and one of labels, and perhaps one of parts
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescore.caches import cache_place, private_folder
from bayescore.checks import check_count, unknown_name
from bayescore.data.label_tables import PARTS, PROBLEMS, TABLES, LabelTable, read_label_table
from bayescore.io import read_tensors, write_tensors
from bayescore.reading import read_content

__all__ = ["Pictures", "decode", "decode_all", "decode_each", "new_pictures", "read_pictures", "square"]

LARGEST_FILE = 256 * 2**20
DEEPEST = 2**16 - 1  # white of 16 bits
NAMED = 5  # files that a sentence names
FORMAT = "bayescore-pictures-2"


@dataclass(frozen=True)
class Pictures:
    """Pictures (n, channels, size, size) in bytes, their labels, and where they come from.

    Arguments:
        part: for every picture "train", "validation", "test", or "" if its source does not say.
        skipped: a sentence for every file that was left out.
    """

    pixels: Tensor
    y: Tensor
    classes: tuple[str, ...]
    names: tuple[str, ...]
    part: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> Pictures:
        chosen = rows.tolist()
        part = tuple(self.part[i] for i in chosen) if self.part else ()
        names = tuple(self.names[i] for i in chosen)
        return replace(self, pixels=self.pixels[rows], y=self.y[rows], names=names, part=part)


def read_pictures(
    place: str | Path,
    size: int,
    *,
    channels: int = 3,
    problems: str = "skip",
    cached: bool = False,
) -> Pictures:
    """The pictures of a folder of class folders, or of a CSV of paths and labels.

    Arguments:
        size: side of the square to which every picture is brought.
        channels: 3 for colour, 1 for grey.
        problems: "skip" leaves out what cannot be decoded, or rows of a table without a path or a label, and
            warns; "refuse" raises.
        cached: keep the decoded pictures in the cache, and take them from there while the files are the same.
    """
    check_count("size", size)
    if problems not in PROBLEMS:
        raise unknown_name("treatment of problems", problems, PROBLEMS)
    place = Path(place)
    if place.is_dir():
        files, labels, classes, part, skipped = _folder(place)
    else:
        files, labels, classes, part = _table(place, problems)
        skipped = []
    read = _from_cache if cached else decode_all
    pixels, kept, bad = read(files, size, channels)
    skipped += bad
    if not kept:
        raise ValueError(f"{place} holds no picture that can be decoded{_examples(skipped)}")
    _treat(skipped, place, problems)
    found = Pictures(
        pixels,
        torch.tensor([labels[i] for i in kept]),
        tuple(classes),
        tuple(str(files[i]) for i in kept),
        tuple(part[i] for i in kept) if any(part) else (),
        tuple(skipped),
    )
    return _without_empty_classes(found, place)


def new_pictures(place: str | Path, size: int, channels: int = 3) -> Pictures:
    """Pictures without labels: a file, all files of a folder and its sub-folders, or the paths of a CSV."""
    place = Path(place)
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if not path.is_dir() and not _hidden(path, place))
    elif place.suffix.lower() in TABLES:
        table = read_label_table(place, "path", labelled=False)
        files = [place.parent / value for value in table.values]
    elif place.is_file():
        files = [place]
    else:
        raise FileNotFoundError(f"there is no file or folder {str(place)[:200]} with pictures")
    pixels, kept, skipped = decode_all(files, size, channels)
    if not kept:
        raise ValueError(f"{place} holds no picture that can be decoded{_examples(skipped)}")
    _treat(skipped, place, "skip", labelled=False)
    names = tuple(str(files[i]) for i in kept)
    return Pictures(pixels, torch.full((len(kept),), -1), (), names, (), tuple(skipped))


# -- decoding --------------------------------------------------------------------------------------------


class _NoRangeError(ValueError):
    """A picture is whole, and nobody can say what is white in it."""


def decode(content: bytes, size: int, channels: int = 3) -> Tensor:
    """One picture as bytes (channels, size, size); ValueError says what is wrong with it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ImportError("pictures are decoded by pillow: pip install 'bayescore[vision]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)  # damaged EXIF, palettes with bytes
            with Image.open(io.BytesIO(content)) as picture:
                return square(picture, size, channels)
    except _NoRangeError:
        raise
    except UnidentifiedImageError:
        raise ValueError("it is no picture that pillow knows") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError("it has too many pixels to be a photograph") from None
    except (OSError, SyntaxError, ValueError, TypeError, LookupError, OverflowError, EOFError) as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise ValueError(f"it is damaged ({reason})") from problem


def square(picture: Any, size: int, channels: int) -> Tensor:
    """The square in the middle of one of pillow's pictures, upright, in bytes (channels, size, size)."""
    from PIL import Image, ImageOps

    upright = _of_eight_bits(ImageOps.exif_transpose(picture))
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")
    plain = upright.convert("RGB" if channels == 3 else "L")
    array = np.array(ImageOps.fit(plain, (size, size), Image.Resampling.BICUBIC))
    return torch.from_numpy(array).reshape(size, size, channels).permute(2, 0, 1).contiguous()


def _of_eight_bits(picture: Any) -> Any:
    """The 8 upper bits of a grey picture of 16, which pillow would cut off at 255; others as they are."""
    from PIL import Image

    if picture.mode == "F":
        raise _NoRangeError("its pixels are fractions, whose white is unknown: save it with 8 or 16 bits")
    if not picture.mode.startswith("I"):
        return picture
    array = np.asarray(picture)
    if array.min() < 0 or array.max() > DEEPEST:
        raise _NoRangeError(f"its pixels reach beyond 0 to {DEEPEST:,}: save it with 8 or 16 bits")
    return Image.fromarray((array >> 8).astype(np.uint8))


def decode_all(files: Sequence[Path], size: int, channels: int) -> tuple[Tensor, list[int], list[str]]:
    """The pictures that can be decoded, their positions in `files`, and a sentence for each of the others."""
    return decode_each(files, lambda path: read_content(path, LARGEST_FILE), size, channels)


def decode_each(
    files: Sequence[Path], read: Callable[[Path], bytes], size: int, channels: int
) -> tuple[Tensor, list[int], list[str]]:
    """As `decode_all`, with the function that gives the bytes of a file."""
    pixels = torch.empty((len(files), channels, size, size), dtype=torch.uint8)
    kept: list[int] = []
    skipped = []
    for i, path in enumerate(files):
        try:
            pixels[len(kept)] = decode(read(path), size, channels)
        except (ValueError, FileNotFoundError) as problem:
            skipped.append(f"{path}: {problem}")
        else:
            kept.append(i)
    return pixels[: len(kept)], kept, skipped


def _from_cache(files: Sequence[Path], size: int, channels: int) -> tuple[Tensor, list[int], list[str]]:
    """As `decode_all`, from the cache if these files, of these sizes and times, were decoded before."""
    key = sha256(f"{FORMAT} {size} {channels}".encode())
    for path in files:
        found = path.stat() if path.is_file() else None
        key.update(f"\n{path.absolute()} {found and (found.st_size, found.st_mtime_ns)}".encode())
    folder = private_folder(cache_place("pictures"), "set BAYESCORE_CACHE to a folder of yours")
    place = folder / f"{key.hexdigest()[:32]}.safetensors"
    if place.is_file():
        header, tensors = read_tensors(place, FORMAT)
        return tensors["pixels"], tensors["kept"].tolist(), list(header["skipped"])
    pixels, kept, skipped = decode_all(files, size, channels)
    content = {"pixels": pixels, "kept": torch.tensor(kept, dtype=torch.int64)}
    write_tensors(place, {"format": FORMAT, "skipped": skipped}, content)
    return pixels, kept, skipped


# -- where pictures are ----------------------------------------------------------------------------------


def _folder(place: Path) -> tuple[list[Path], list[int], list[str], list[str], list[str]]:
    """Files, labels, classes, parts, and sentences on files that belong to no class."""
    children = sorted(path for path in place.iterdir() if not path.name.startswith("."))
    folders = [path for path in children if path.is_dir()]
    names = {path.name.lower(): path for path in folders}
    parts = {word: names[word] for word in PARTS if word in names}
    loose = [f"{path}: it is in no folder of a class" for path in children if not path.is_dir()]
    if parts and len(parts) == len(folders):
        inside = {
            PARTS[word]: [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
            for word, folder in parts.items()
        }
    else:
        inside = {"": folders}
    classes = sorted({folder.name for found in inside.values() for folder in found})
    files, labels, part = [], [], []
    for name, found in inside.items():
        for folder in found:
            for path in sorted(folder.rglob("*")):
                if not path.is_dir() and not _hidden(path, folder):  # a link to nowhere is named
                    files.append(path)
                    labels.append(classes.index(folder.name))
                    part.append(name)
    if len(classes) < 2:
        raise ValueError(
            f"{place} has {'one' if classes else 'no'} folder of a class, and at least two are needed: "
            f"put the pictures of every class into a folder of its own, {place.name}/<class>/<picture>"
        )
    return files, labels, classes, part, loose


def _table(place: Path, problems: str) -> tuple[list[Path], list[int], list[str], list[str]]:
    table: LabelTable = read_label_table(place, "path", problems=problems)
    files = [place.parent / value for value in table.values]
    return files, table.labels, table.classes, table.part


def _hidden(path: Path, place: Path) -> bool:
    return any(name.startswith(".") for name in path.relative_to(place).parts)


def _treat(skipped: list[str], place: Path, problems: str, *, labelled: bool = True) -> None:
    if not skipped:
        return
    one = len(skipped) == 1
    files = "1 file is no readable picture" if one else f"{len(skipped)} files are no readable pictures"
    sentence = f"{place}: {files}{' of a class' if labelled else ''}{_examples(skipped)}"
    if problems == "refuse":
        raise ValueError(
            f"{sentence}; mend or remove {'it, or let it' if one else 'them, or let them'} be skipped"
        )
    warnings.warn(f"{sentence}; {'it is' if one else 'they are'} left out", UserWarning, stacklevel=4)


def _examples(skipped: Iterable[str]) -> str:
    sentences = list(skipped)
    more = f"; and {len(sentences) - NAMED} more" if len(sentences) > NAMED else ""
    return f" ({'; '.join(sentences[:NAMED])}{more})" if sentences else ""


def _without_empty_classes(found: Pictures, place: Path) -> Pictures:
    """Leave out classes without a picture that could be decoded, with a warning."""
    present = sorted(set(found.y.tolist()))
    empty = [name for i, name in enumerate(found.classes) if i not in present]
    if len(present) < 2:
        raise ValueError(f"{place} has pictures of one class only, {found.classes[present[0]]!r}")
    if not empty:
        return found
    warnings.warn(
        f"{place}: no picture of the class {', '.join(map(repr, empty))} can be decoded; it is left out",
        UserWarning,
        stacklevel=3,
    )
    new = {old: i for i, old in enumerate(present)}
    y = torch.tensor([new[int(label)] for label in found.y])
    return replace(found, y=y, classes=tuple(found.classes[i] for i in present))
