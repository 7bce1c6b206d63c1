"""From a Stan program to a loaded shared library, through the cache.

The library consists of two object files: the program's C++ and the layer (layer.cpp). The layer, and Stan's
headers where the disk has room, are compiled once per toolchain, together with the first program.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bayescore.targets.stan.cache import cache_folder, discard, fetch
from bayescore.targets.stan.toolchain import Toolchain, find_toolchain, run_compiler, translate

__all__ = ["build_library"]

log = logging.getLogger(__name__)

HEADER = "#include <stan/model/model_header.hpp>\n"
HEADER_ROOM = 8_000_000_000  # bytes free on the disk of the cache, below which no header is precompiled
FIRST_SECONDS = 60.0  # that a compilation is expected to take before one is known
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
    with _progress(label, folder / f"seconds-{_key(toolchain.identity)}"):
        header = _header_flags(toolchain, folder)
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as pool:
            layer_object = pool.submit(_layer_object, layer, toolchain, folder, header)
            source, program_object = Path(scratch, "program.cpp"), Path(scratch, "program.o")
            source.write_text(cpp, encoding="utf-8")
            run_compiler(toolchain, *toolchain.flags, *header, "-c", str(source), "-o", str(program_object))
            objects = (str(program_object), str(layer_object.result()))
            run_compiler(toolchain, "-shared", *objects, "-o", str(out), *toolchain.link_flags)


def _layer_object(layer: str, toolchain: Toolchain, folder: Path, header: Sequence[str]) -> Path:
    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch, "layer.cpp")
            source.write_text(layer, encoding="utf-8")
            run_compiler(toolchain, *toolchain.flags, *header, "-c", str(source), "-o", str(out))

    return fetch(folder, f"layer-{_key(layer, toolchain.identity)}.o", make)


def _header_flags(toolchain: Toolchain, folder: Path) -> tuple[str, ...]:
    """The flags that include Stan's headers precompiled; none where that is not possible.

    The precompiled header takes 0.8 GB in the cache. It is made once, with the first program, where the disk
    has room for ten of them; every program after that compiles in about half the time.
    """
    name = f"header-{_key(HEADER, toolchain.identity)}.hpp"
    known = (folder / f"{name}.gch").is_file()
    if not toolchain.is_gcc or not (known or shutil.disk_usage(folder).free > HEADER_ROOM):
        return ()

    def write(out: Path) -> None:
        out.write_text(HEADER, encoding="utf-8")

    header = fetch(folder, name, write)

    def make(out: Path) -> None:
        run_compiler(toolchain, *toolchain.flags, "-x", "c++-header", str(header), "-o", str(out))

    fetch(folder, f"{name}.gch", make)
    return ("-include", str(header))  # gcc takes the .gch beside it


@contextmanager
def _progress(label: str, record: Path) -> Iterator[None]:
    """A live line if standard error is a terminal, else a log line every ten seconds.

    What the last compilation took is kept in `record`, and tells how long this one will take.
    """
    expected = _seconds(record)
    log.info("compiling %s (about %.0f s, once)", label, expected)
    began = time.perf_counter()
    with _shown(f"compiling {label} (once)", expected, began):
        yield
    taken = time.perf_counter() - began
    record.write_text(f"{taken:.0f}", encoding="ascii")
    log.info("compiled %s in %.1f s", label, taken)


def _seconds(record: Path) -> float:
    try:
        return float(record.read_text(encoding="ascii")[:20])
    except (OSError, ValueError):
        return FIRST_SECONDS


@contextmanager
def _shown(words: str, expected: float, began: float) -> Iterator[None]:
    done = threading.Event()

    def tell() -> None:
        while not done.wait(10.0):
            log.info("%s: %.0f s of about %.0f s", words, time.perf_counter() - began, expected)

    def move() -> None:
        while not done.wait(0.5):
            bar.update(task, completed=min(time.perf_counter() - began, 0.99 * expected))

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(words, total=expected)
        bar.start()
        thread = threading.Thread(target=move, daemon=True)
    else:
        thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if sys.stderr.isatty():
            bar.stop()
