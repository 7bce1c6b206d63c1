"""From words to objects: the target, family and method named on a command line.

A target is a ready-made one, a Stan program, a posterior of PosteriorDB, or a function in a file.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Union, get_args, get_origin, get_type_hints

from rich.console import Console
from torch import Tensor

from bayescore.checks import nearest, unknown_name
from bayescore.cli.names import AUTO
from bayescore.cli.terminal import UserError
from bayescore.families import (
    FAMILIES,
    CouplingFlow,
    DiagonalGaussian,
    Family,
    FullGaussian,
    GaussianMixture,
    LowRankGaussian,
    PlanarFlow,
    SpikedGaussian,
    ZukoFlow,
)
from bayescore.families import by_name as family_by_name
from bayescore.initial.finding import Start, can_search, find_start
from bayescore.methods import METHODS, Method
from bayescore.targets import LogDensity, NoisyScore, Stan, Target, posteriordb
from bayescore.targets import by_name as target_by_name

__all__ = [
    "TargetOptions",
    "choose_family",
    "choose_method",
    "choose_target",
    "load_function",
    "search_start",
]

POSTERIOR = "posteriordb:"

#: for each size option, the families it applies to
_SIZES = {
    "components": ("mixture",),
    "rank": ("low-rank", "spiked"),
    "layers": ("planar", "coupling", "zuko"),
}


# -- target


@dataclass(frozen=True)
class TargetOptions:
    """The options of a target on the command line."""

    word: str
    dim: int | None = None
    seed: int = 0
    noise: float | None = None
    data: Path | None = None
    data_folder: Path | None = None
    program: Path | None = None

    @property
    def is_stan(self) -> bool:
        return self.word.endswith(".stan")

    @property
    def is_posterior(self) -> bool:
        return self.word.startswith(POSTERIOR)

    @property
    def is_model(self) -> bool:
        return self.is_stan or self.is_posterior

    @property
    def is_function(self) -> bool:
        return self.word.partition(":")[0].endswith(".py") or ":" in self.word or "/" in self.word


def choose_target(options: TargetOptions, *, quiet: bool = False) -> Target:
    """The target, with noisy scores if `noise` is given."""
    _check_options(options)
    target = _find(options, quiet)
    return target if options.noise is None else NoisyScore(target, options.noise)


def _check_options(options: TargetOptions) -> None:
    """Refuse an option that does not apply to this kind of target."""
    for option, given, fits, owner in (
        ("--data", options.data, options.is_stan, "a Stan program"),
        ("--data-folder", options.data_folder, options.is_posterior, f"{POSTERIOR}NAME"),
        ("--program", options.program, options.is_posterior, f"{POSTERIOR}NAME"),
        ("--dim", options.dim, not options.is_model, "a function or a ready-made target"),
    ):
        if given is not None and not fits:
            raise UserError(f"{option} belongs to {owner}; the target here is {options.word}")


def _find(options: TargetOptions, quiet: bool) -> Target:
    if options.is_model:
        with _announced_compile(quiet), _compiler_messages():
            if options.is_stan:
                return Stan(options.word, options.data)
            name = options.word.removeprefix(POSTERIOR)
            return posteriordb(name, options.data_folder, program=options.program)
    if options.is_function:
        return _from_file(options.word, options.dim)
    return target_by_name(options.word, options.dim, options.seed)


@contextmanager
def _compiler_messages() -> Iterator[None]:
    """Report the compiler's errors to the user, with their line breaks."""
    try:
        yield
    except (ValueError, RuntimeError) as problem:
        raise UserError(str(problem), verbatim=True) from problem


@contextmanager
def _announced_compile(quiet: bool) -> Iterator[None]:
    """Announce a compilation on standard error, unless a terminal shows a live line for it."""
    log = logging.getLogger("bayescore.targets.stan")
    handler, level = _StandardError(), log.level
    handler.setLevel(logging.WARNING if quiet or sys.stderr.isatty() else logging.INFO)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _StandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        Console(file=sys.stderr).print(record.getMessage(), soft_wrap=True, highlight=False, markup=False)


def _from_file(word: str, dim: int | None) -> Target:
    path, name = _place(word, "a density")
    if dim is None:
        raise UserError(f"how many dimensions does {name} have? Say it with --dim")
    return LogDensity(_with_line_numbers(load_function(word, "a density"), path), dim)


def _place(word: str, what: str) -> tuple[Path, str]:
    place, _, name = word.rpartition(":")
    if not place or not name:
        raise UserError(f"{what} in a file is named path/to/file.py:function; got {word!r}")
    return Path(place), name


def load_function(word: str, what: str) -> Callable[..., Any]:
    """The function that path/to/file.py:function names."""
    path, name = _place(word, what)
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    module = _load(path)
    function = getattr(module, name, None)
    if not callable(function):
        guess = nearest(name, [key for key, value in vars(module).items() if callable(value)])
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise UserError(f"there is no function {name!r} in {path}{hint}")
    return function


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise UserError(f"{path} cannot be imported: {_where(problem, path)}") from problem
    finally:
        sys.path.pop(0)
    return module


def _with_line_numbers(function: Callable[[Tensor], Tensor], path: Path) -> Callable[[Tensor], Tensor]:
    """The same function; an error in it is reported with its line."""

    def log_density(x: Tensor) -> Tensor:
        try:
            return function(x)
        except Exception as problem:
            given = f"given points of the shape {tuple(x.shape)}"
            raise UserError(f"{function.__name__}, {given}, failed: {_where(problem, path)}") from problem

    return log_density


def _where(problem: Exception, path: Path) -> str:
    """The problem in one line, with the last line of the user's file that led to it."""
    text = f"{type(problem).__name__}: {str(problem) or 'no message'}"
    if isinstance(problem, SyntaxError):
        return f"line {problem.lineno}, {text}"
    frames = [
        f for f in traceback.extract_tb(problem.__traceback__) if Path(f.filename).resolve() == path.resolve()
    ]
    return f"line {frames[-1].lineno}, {text}" if frames else text


# -- family and method


def choose_family(
    name: str | None, dim: int, *, scale: float | None, seed: int, automatic: bool, **sizes: int | None
) -> Family | None:
    """The family q0 of that name; a size that belongs to another family is refused.

    Without a name an automatic fit chooses the family itself (None); every other method gets a full Gaussian.
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
        SpikedGaussian: lambda: SpikedGaussian.init(dim, sizes.get("rank") or min(10, dim), scale=scale),
        GaussianMixture: lambda: GaussianMixture.init(
            dim, sizes.get("components") or 5, scale=scale, seed=seed
        ),
        PlanarFlow: lambda: PlanarFlow.init(dim, sizes.get("layers") or 4, scale=scale, seed=seed),
        CouplingFlow: lambda: CouplingFlow.init(dim, sizes.get("layers") or 4, scale=scale, seed=seed),
        ZukoFlow: lambda: ZukoFlow.init(dim, transforms=sizes.get("layers") or 3, scale=scale, seed=seed),
    }
    assert set(makers) == set(FAMILIES.values())
    return makers[kind]()


def search_start(target: Target, family: Family | None, seed: int) -> Family | Start | None:
    """A start near a mode of the target if it can be searched, else the family itself."""
    if family is None or not can_search(target, family):
        return family
    return find_start(target, family, seed=seed)


def choose_method(name: str, *, draws: int | None, lr: float | None, settings: Sequence[str]) -> Method | str:
    """The method of that name with its hyper-parameters; `settings` are words of the form key=value."""
    if name == AUTO:
        given = {"--draws": draws, "--lr": lr, "--set": settings or None}
        for option in (option for option, value in given.items() if value is not None):
            raise UserError(
                f"{option} belongs to one method, and auto chooses its own; name one: --method descent"
            )
        return AUTO
    if name not in METHODS:
        raise unknown_name("method", name, [AUTO, *METHODS])
    kind = METHODS[name]
    known = {field.name for field in dataclasses.fields(kind)}
    chosen: dict[str, Any] = {}
    if draws is not None:
        chosen["draws"] = draws
    if lr is not None:
        if "lr" not in known:
            raise UserError(f"{kind.__name__} has no learning rate; leave --lr out")
        chosen["lr"] = lr
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
    """The value of a hyper-parameter from its text, of a type that it takes."""
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
