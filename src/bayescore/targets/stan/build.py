"""From a Stan program to a loaded shared library, through the cache.

The library consists of two object files: the program's C++ and the layer (layer.cpp). The layer is compiled
once per toolchain, together with the first program.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bayescore.targets.stan.cache import cache_folder, discard, fetch
from bayescore.targets.stan.toolchain import Toolchain, find_toolchain, run_compiler, translate

__all__ = ["build_library"]

log = logging.getLogger(__name__)

LAYER = Path(__file__).with_name("layer.cpp")


def build_library(
    program: str,
    file_name: str,
    include: Path | None,
    cache_dir: str | os.PathLike[str] | None,
    before: Callable[[], None],
) -> ctypes.CDLL:
    """The library of a program, compiled if the cache does not hold it.

    `before` is called before it is compiled, and may raise.
    """
    toolchain = find_toolchain()
    cpp = translate(toolchain, program, file_name, include)  # holds the text of included files too
    folder = cache_folder(cache_dir)
    layer = LAYER.read_text(encoding="utf-8")
    name = f"{_key(cpp, layer, toolchain.identity)}.so"

    def make(out: Path) -> None:
        before()
        _compile(out, cpp, layer, toolchain, folder, file_name)

    for attempt in (1, 2):
        path = fetch(folder, name, make)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            discard(path)
            if attempt == 2:
                raise RuntimeError(f"the compiled program {path} cannot be loaded: {error}") from error
            log.warning("the cache entry %s cannot be loaded (%s) and is made anew", path, error)
    raise AssertionError("unreachable")


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _compile(out: Path, cpp: str, layer: str, toolchain: Toolchain, folder: Path, label: str) -> None:
    with _progress(label), tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as pool:
        layer_object = pool.submit(_layer_object, layer, toolchain, folder)
        source, program_object = Path(scratch, "program.cpp"), Path(scratch, "program.o")
        source.write_text(cpp, encoding="utf-8")
        run_compiler(toolchain, *toolchain.flags, "-c", str(source), "-o", str(program_object))
        objects = (str(program_object), str(layer_object.result()))
        run_compiler(toolchain, "-shared", *objects, "-o", str(out), *toolchain.link_flags)


def _layer_object(layer: str, toolchain: Toolchain, folder: Path) -> Path:
    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch, "layer.cpp")
            source.write_text(layer, encoding="utf-8")
            run_compiler(toolchain, *toolchain.flags, "-c", str(source), "-o", str(out))

    return fetch(folder, f"layer-{_key(layer, toolchain.identity)}.o", make)


@contextmanager
def _progress(label: str) -> Iterator[None]:
    """A log line before and after, and a live line if standard error is a terminal."""
    log.info("compiling %s (about half a minute, once)", label)
    began = time.perf_counter()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            bar.add_task(f"compiling {label} (about half a minute, once)", total=None)
            yield
    else:
        yield
    log.info("compiled %s in %.1f s", label, time.perf_counter() - began)
