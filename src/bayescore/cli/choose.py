"""From words to objects: the target, family and method that a command line names."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from bayescore.checks import nearest, unknown_name
from bayescore.cli.errors import UserError
from bayescore.families import (
    FAMILIES,
    DiagonalGaussian,
    Family,
    FullGaussian,
    GaussianMixture,
    LowRankGaussian,
    PlanarFlow,
    ZukoFlow,
)
from bayescore.families import by_name as family_by_name
from bayescore.methods import METHODS, Method

__all__ = ["AUTO", "choose_family", "choose_method"]

AUTO = "auto"

#: the family that a size belongs to, and the size it has unless the user says
_SIZES = {"components": ("mixture",), "rank": ("low-rank",), "layers": ("planar", "zuko")}


def choose_family(
    name: str | None, dim: int, *, scale: float | None, seed: int, automatic: bool, **sizes: int | None
) -> Family | None:
    """The start q0 of that name; a size that belongs to another family is refused.

    None leaves the family to an automatic fit; every other method gets a full Gaussian.
    """
    if name is None and automatic and scale is None and not any(sizes.values()):
        return None
    name = name or "full"
    scale = 1.0 if scale is None else scale
    kind = family_by_name(name)
    for size, owners in _SIZES.items():
        if sizes.get(size) is not None and name not in owners:
            raise UserError(f"--{size} belongs to --family {' or '.join(owners)}; the family here is {name}")
    makers: dict[type[Family], Callable[[], Family]] = {
        FullGaussian: lambda: FullGaussian.init(dim, scale=scale),
        DiagonalGaussian: lambda: DiagonalGaussian.init(dim, scale=scale),
        LowRankGaussian: lambda: LowRankGaussian.init(dim, sizes.get("rank") or min(10, dim), scale=scale),
        GaussianMixture: lambda: GaussianMixture.init(
            dim, sizes.get("components") or 5, scale=scale, seed=seed
        ),
        PlanarFlow: lambda: PlanarFlow.init(dim, sizes.get("layers") or 4, scale=scale, seed=seed),
        ZukoFlow: lambda: ZukoFlow.init(dim, transforms=sizes.get("layers") or 3, scale=scale, seed=seed),
    }
    assert set(makers) == set(FAMILIES.values())
    return makers[kind]()


def choose_method(
    name: str, *, samples: int | None, learning_rate: float | None, settings: Sequence[str]
) -> Method | str:
    """The method of that name with its hyper-parameters; `settings` are words of the form key=value."""
    if name == AUTO:
        given = {"--samples": samples, "--learning-rate": learning_rate, "--set": settings or None}
        for option in (option for option, value in given.items() if value is not None):
            raise UserError(
                f"{option} belongs to one method, and auto chooses its own; name one: --method proximal"
            )
        return AUTO
    if name not in METHODS:
        raise unknown_name("method", name, [AUTO, *METHODS])
    kind = METHODS[name]
    known = {field.name for field in dataclasses.fields(kind)}
    chosen: dict[str, Any] = {}
    if samples is not None:
        chosen["samples" if "samples" in known else "batch"] = samples
    if learning_rate is not None:
        if "learning_rate" not in known:
            raise UserError(f"{kind.__name__} has no learning rate; leave --learning-rate out")
        chosen["learning_rate"] = learning_rate
    hints = get_type_hints(kind)
    for word in settings:
        key, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"--set takes key=value; got {word!r}")
        if key not in known:
            guess = nearest(key, known)
            hint = f"did you mean {guess!r}? " if guess else ""
            raise UserError(f"{kind.__name__} has no {key!r}; {hint}it has {', '.join(sorted(known))}")
        if key in chosen:
            raise UserError(f"{key} is given twice; leave one of them out")
        chosen[key] = _value(key, text, hints[key])
    return kind(**chosen)


def _value(key: str, text: str, hint: Any) -> Any:
    """The value a word stands for, of a kind that the hyper-parameter takes."""
    kinds = set(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else {hint}
    lower = text.strip().lower()
    if types.NoneType in kinds and lower == "none":
        return None
    if bool in kinds and lower in ("true", "false"):
        return lower == "true"
    for number in (int, float):
        if number in kinds or (number is int and float in kinds):
            try:
                return number(text)
            except ValueError:
                continue
    if str in kinds:
        return text
    names = {int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "none"}
    wanted = [word for kind, word in names.items() if kind in kinds]
    raise UserError(f"{key} takes {' or '.join(wanted)}; got {text!r}")
