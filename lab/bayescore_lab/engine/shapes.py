"""Whether a value read from JSON has the kinds that were expected; the error says where it has not.

A shape is one of
    str, bool, dict   a value of this kind
    int               a whole number, True and False excluded
    float             a number, whole or not, True and False excluded
    (a, b)            one of these kinds
    [shape]           a list of such values
    {"name": shape}   an object with at least these fields
    Each(shape)       an object with any fields, of such values
    OneOf(a, b)       one of these words, or None where it is among them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Each", "OneOf", "check_shape"]

_NAMES = {str: "a string", bool: "true or false", dict: "an object", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Each:
    """An object with any fields, whose values have one shape."""

    shape: Any


class OneOf:
    """One of several words."""

    def __init__(self, *words: str | None) -> None:
        self.words = words


def check_shape(value: Any, shape: Any, where: str) -> None:
    """Raise ValueError unless `value` has the shape; `where` names it in the message."""
    if isinstance(shape, dict):
        _check_kind(value, (dict,), where)
        for name, inner in shape.items():
            if name not in value:
                raise ValueError(f"{where} lacks {name!r}")
            check_shape(value[name], inner, f"{where}[{name!r}]")
    elif isinstance(shape, Each):
        _check_kind(value, (dict,), where)
        for name, entry in value.items():
            check_shape(entry, shape.shape, f"{where}[{_short(name)}]")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} is {_short(value)}; expected a list")
        for place, entry in enumerate(value):
            check_shape(entry, shape[0], f"{where}[{place}]")
    elif isinstance(shape, OneOf):
        if not isinstance(value, str | None) or value not in shape.words:
            words = ", ".join(map(repr, shape.words))
            raise ValueError(f"{where} is {_short(value)}; expected one of {words}")
    else:
        _check_kind(value, shape if isinstance(shape, tuple) else (shape,), where)


def _check_kind(value: Any, kinds: tuple[type, ...], where: str) -> None:
    if not any(_is(value, kind) for kind in kinds):
        expected = " or ".join(_NAMES[kind] for kind in kinds)
        raise ValueError(f"{where} is {_short(value)}; expected {expected}")


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _short(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
