"""Training, validation and test data: parts of one permutation per seed, so that they never overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.data.labelled_images import Images
from bayescore.data.pictures import Pictures
from bayescore.data.tables import Table
from bayescore.data.texts import Texts
from bayescore.rng import generator

__all__ = ["Parts", "Split", "parts", "split"]

Labelled = TypeVar("Labelled", Pictures, Texts, Table)
STRATIFIED_BELOW = 100  # with fewer images than this, every class is drawn equally often


@dataclass(frozen=True)
class Split:
    """Disjoint images to train on and to validate with."""

    train: Images
    validation: Images


def split(data: Images, count: int, seed: int, validation: int = 5000) -> Split:
    """`count` random images to train on; of the rest, `validation` (or all, if fewer) to validate with.

    Fewer than 100 images are drawn class by class, equally many of each, so that no class is missing.
    """
    check_count("count", count)
    check_count("validation", validation)
    if count >= len(data):
        raise ValueError(f"count must leave images to choose by: at most {len(data) - 1}; got {count}")
    order = torch.randperm(len(data), generator=generator(seed, purpose="split"))
    chosen, rest = order[:count], order[count:]
    if count < STRATIFIED_BELOW:
        labels = data.y[order]
        classes = labels.unique()
        # the rank of an image is its number within its class: low ranks hold equally many of each class
        rank = torch.empty_like(labels)
        for k in classes:
            rank[labels == k] = torch.arange(int((labels == k).sum()))
        taken = torch.argsort(rank, stable=True)[:count]
        mask = torch.ones(len(order), dtype=torch.bool)
        mask[taken] = False
        chosen, rest = order[taken], order[mask]
    return Split(data[chosen], data[rest[:validation]])


@dataclass(frozen=True)
class Parts(Generic[Labelled]):
    """Disjoint data to train on, to choose by and to test with."""

    train: Labelled
    validation: Labelled
    test: Labelled


def parts(
    data: Labelled, seed: int = 0, *, validation: float | None = None, test: float = 0.2
) -> Parts[Labelled]:
    """The parts that the data name, and the others from one permutation.

    Arguments:
        data: pictures, texts or a table.
        validation: the share of the training data to choose by: a half, as in the paper, if the data name a
            test part, and otherwise 0.2.
        test: the share of all data to test with, if the data name no test part.

    What is drawn is drawn class by class, and the first of every class is always learned from.
    """
    known = data.part or ("",) * len(data)
    rng = generator(seed, purpose="split")

    def rows_of(*words: str) -> Tensor:
        return torch.tensor([i for i, part in enumerate(known) if part in words], dtype=torch.long)

    named = {word: rows_of(word) for word in ("validation", "test")}
    rest = rows_of("", "train")
    share = validation if validation is not None else (0.5 if len(named["test"]) else 0.2)
    for name, value in (("validation", share), ("test", test)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is a share and must lie strictly between 0 and 1; got {value!r}")
    if not len(named["test"]):
        named["test"], rest = _drawn(data.y, rest, test, rng)
    if not len(named["validation"]):
        named["validation"], rest = _drawn(data.y, rest, share, rng)
    for name, rows in {
        "to learn from": rest,
        **{f"for the {word} part": named[word] for word in named},
    }.items():
        if not len(rows):
            few = f"{len(data)} data of {len(data.y.unique())} classes" if data.classes else f"{len(data)}"
            raise ValueError(f"no data are left {name}: {few} are too few to be divided")
    return Parts(data[rest], data[named["validation"]], data[named["test"]])


def _drawn(y: Tensor, rows: Tensor, share: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A share of every class of the rows, but never all, and the other rows, both in random order."""
    order = rows[torch.randperm(len(rows), generator=rng)]
    # the place of a row within its class, from above 0 to 1: the lowest ones hold a share of every class
    place = torch.empty(len(order))
    for label in y[order].unique():
        mine = y[order] == label
        place[mine] = torch.arange(1, int(mine.sum()) + 1) / mine.sum()
    count = min(round(share * len(order)), int((place < 1).sum()))  # the last of every class is never taken
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[place.argsort(stable=True)[:count]] = True
    return order[chosen], order[~chosen]
