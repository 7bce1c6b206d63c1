"""The target that a word names: a ready-made one, a Stan program, a posterior, or a function in a file."""

from __future__ import annotations

import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rich.console import Console
from torch import Tensor

from bayescore.checks import nearest
from bayescore.cli.errors import UserError
from bayescore.targets import LogDensity, NoisyScore, Stan, Target, posteriordb
from bayescore.targets import by_name as target_by_name

__all__ = ["Source", "choose_target"]

POSTERIOR = "posteriordb:"


@dataclass(frozen=True)
class Source:
    """What the command line says about a target."""

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


def choose_target(source: Source, *, quiet: bool = False) -> Target:
    """The target; with noisy scores where `noise` is given."""
    _check_options(source)
    target = _find(source, quiet)
    return target if source.noise is None else NoisyScore(target, source.noise)


def _check_options(source: Source) -> None:
    """Refuse an option that this target has no use for."""
    for option, given, fits, owner in (
        ("--data", source.data, source.is_stan, "a Stan program"),
        ("--data-folder", source.data_folder, source.is_posterior, f"{POSTERIOR}NAME"),
        ("--program", source.program, source.is_posterior, f"{POSTERIOR}NAME"),
        ("--dim", source.dim, not source.is_model, "a function or a ready-made target"),
    ):
        if given is not None and not fits:
            raise UserError(f"{option} belongs to {owner}; the target here is {source.word}")


def _find(source: Source, quiet: bool) -> Target:
    if source.is_model:
        with _spoken_compile(quiet), _compiler_messages():
            if source.is_stan:
                return Stan(source.word, source.data)
            name = source.word.removeprefix(POSTERIOR)
            return posteriordb(name, source.data_folder, program=source.program)
    if source.is_function:
        return _from_file(source.word, source.dim)
    return target_by_name(source.word, source.dim, source.seed)


@contextmanager
def _compiler_messages() -> Iterator[None]:
    """What the compilers say keeps its lines; a machine that cannot compile is the user's to mend."""
    try:
        yield
    except (ValueError, RuntimeError) as problem:
        raise UserError(str(problem), verbatim=True) from problem


@contextmanager
def _spoken_compile(quiet: bool) -> Iterator[None]:
    """Tell of a compile on standard error; a terminal has a live line for it already."""
    log = logging.getLogger("bayescore.targets.stan")
    handler, level = _Spoken(), log.level
    handler.setLevel(logging.WARNING if quiet or sys.stderr.isatty() else logging.INFO)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Spoken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        Console(file=sys.stderr).print(record.getMessage(), soft_wrap=True, highlight=False, markup=False)


def _from_file(word: str, dim: int | None) -> Target:
    place, _, name = word.rpartition(":")
    if not place or not name:
        raise UserError(f"a density in a file is named path/to/file.py:function; got {word!r}")
    if dim is None:
        raise UserError(f"how many dimensions does {name} have? Say it with --dim")
    path = Path(place)
    if not path.is_file():
        raise UserError(f"there is no file {place}")
    module = _load(path)
    function = getattr(module, name, None)
    if not callable(function):
        guess = nearest(name, [key for key, value in vars(module).items() if callable(value)])
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise UserError(f"there is no function {name!r} in {place}{hint}")
    return LogDensity(_located(function, path), dim)


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


def _located(function: Callable[[Tensor], Tensor], path: Path) -> Callable[[Tensor], Tensor]:
    """The same function; what goes wrong in it is told with its line."""

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
