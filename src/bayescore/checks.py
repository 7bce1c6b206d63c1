"""Checks of user input: shapes, counts, names and memory, with errors a user can act on.

torch is imported where a check needs it: the command line checks names and counts without waiting for it.
"""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "KnownKeywords",
    "available_memory",
    "check_count",
    "check_keywords",
    "check_memory",
    "check_number",
    "check_shape",
    "nearest",
    "unknown_name",
]

#: names that other libraries use, and the names of the same thing here, of which one is a choice
SYNONYMS = {
    "learning_rate": ("lr",),
    "step_size": ("lr",),
    "samples": ("draws",),
    "num_samples": ("draws",),
    "adam": ("plain",),
    "adamw": ("plain",),
    "bce": ("bernoulli",),
    "binary_cross_entropy": ("bernoulli",),
    "classification": ("categorical", "classes"),
    "cross_entropy": ("categorical",),
    "softmax": ("categorical",),
    "mse": ("gaussian",),
    "normal": ("gaussian",),
    "regression": ("gaussian", "values"),
    "max_epochs": ("epochs",),
    "num_epochs": ("epochs",),
    "early_stopping": ("patience",),
    "val_loader": ("validation",),
    "validation_data": ("validation",),
    "verbose": ("progress",),
}
LISTED, ALIKE_LISTED = 60, 10  # names that a sentence lists, and of more than these, the nearest
ALIKE, SAME = 0.55, 0.8  # least similarity of a misspelt name, and of a synonym


def check_shape(name: str, value: Tensor, trailing: tuple[int | str, ...]) -> None:
    """Raise unless the last dimensions of `value` are the given ones; a string matches any size."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must hold floating point numbers; got {value.dtype}")
    want = "(..., " + ", ".join(map(str, trailing)) + ")"
    tail = value.shape[max(0, value.dim() - len(trailing)) :]
    fits = len(tail) == len(trailing) and all(
        isinstance(w, str) or w == n for w, n in zip(trailing, tail, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must have the shape {want}; got {tuple(value.shape)}")
    if not torch.isfinite(value).all():
        raise ValueError(f"{name} must be finite; {int((~torch.isfinite(value)).sum())} entries are not")


def check_count(name: str, value: int, least: int = 1, most: int | None = None) -> None:
    """Raise unless `value` is a whole number of at least `least`, and at most `most` if that is given."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number; got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most:,}; got {_shortened(value)}")


def _shortened(value: int) -> str:
    """A whole number in digits, if there are not too many."""
    return str(value) if int(value).bit_length() < 1000 else f"a number of {value.bit_length()} bits"


def check_number(name: str, value: float, what: str = "be positive", zero: bool = False) -> None:
    """Raise unless `value` is a finite positive number (or zero, if `zero` allows it)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must {what}; got {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must {what}; got {value}")


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most similar to `word`, if any is similar enough."""
    ours = list(choices)
    synonyms = {other: name for other, names in SYNONYMS.items() for name in names if name in ours}
    if same := difflib.get_close_matches(word.lower(), synonyms, n=1, cutoff=SAME):
        return synonyms[same[0]]
    found = difflib.get_close_matches(word.lower(), ours, n=1, cutoff=ALIKE)
    return found[0] if found else None


def unknown_name(kind: str, word: str, choices: Iterable[str], also: Iterable[str] = ()) -> ValueError:
    """The error for an unknown name; it suggests the nearest name, of the choices or of `also`."""
    word, choices = str(word), sorted(choices)
    hint = nearest(word, [*choices, *also])
    guess = f"did you mean {hint!r}? " if hint else ""
    listed = ", ".join(choices)
    if len(choices) > LISTED:
        alike = sorted(difflib.get_close_matches(word.lower(), choices, n=ALIKE_LISTED, cutoff=0.0))
        listed = f"{len(choices):,} names, such as {', '.join(alike)}"
    return ValueError(f"there is no {kind} called {word!r}; {guess}choose from {listed}")


def check_keywords(kind: type, given: Iterable[str], known: Iterable[str], remedy: str = "") -> None:
    """Raise for the first keyword that a constructor does not have; `remedy` says where others belong."""
    known = list(known)
    for word in given:
        if word not in known:
            where = f"; {remedy}" if remedy and nearest(word, known) is None else ""
            raise TypeError(f"{unknown_name(f'argument of {kind.__name__}', word, known)}{where}")


class KnownKeywords:
    """A base for classes whose constructor says which keyword it meant by one that it does not have.

    It has no constructor of its own, so that signatures are those of `__init__`.
    """

    #: where keywords that are nothing like those of the constructor belong
    _elsewhere: ClassVar[str] = ""

    def __new__(cls, *args: Any, **options: Any) -> Self:  # noqa: ARG004
        known = list(inspect.signature(cls.__init__).parameters)[1:]
        check_keywords(cls, options, known, cls._elsewhere)
        return super().__new__(cls)


def available_memory() -> int:
    """Bytes of main memory that are available now (all of it if the system does not say)."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(what: str, need: int, device: torch.device, remedy: str) -> None:
    """Raise if `need` bytes do not fit into memory; warn if they are more than 1 GB."""
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    size = f"{what} needs about {need / 1e9:.1f} GB"
    if need > free:
        raise MemoryError(f"{size}, and {free / 1e9:.1f} GB are free; {remedy}")
    if need > 1e9:
        warnings.warn(f"{size}; {remedy}", UserWarning, stacklevel=3)
