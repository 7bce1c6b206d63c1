"""The target that a word names: a ready-made one, or a log density in a user's own file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from torch import Tensor

from bayescore.checks import nearest
from bayescore.cli.errors import UserError
from bayescore.targets import LogDensity, NoisyScore, Target
from bayescore.targets import by_name as target_by_name

__all__ = ["choose_target"]


def choose_target(word: str, dim: int | None, seed: int, noise: float | None) -> Target:
    """A target by name, or `path/to/file.py:function`; with noisy scores where `noise` is given."""
    target = _from_file(word, dim) if _is_file(word) else target_by_name(word, dim, seed)
    return target if noise is None else NoisyScore(target, noise)


def _is_file(word: str) -> bool:
    return word.partition(":")[0].endswith(".py") or ":" in word or "/" in word


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
