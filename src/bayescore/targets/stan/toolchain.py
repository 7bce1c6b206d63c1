"""The tools that compile a Stan program: `httpstan`'s stanc and headers, and a C++ compiler."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Toolchain", "declared", "find_compiler", "find_toolchain", "run_compiler", "translate"]

log = logging.getLogger(__name__)

COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",  # two models in one process share no symbol
    "-w",
    "-D_REENTRANT",
    "-DBOOST_DISABLE_ASSERTS",
    "-DBOOST_PHOENIX_NO_VARIADIC_EXPRESSION",
    "-DSTAN_THREADS",
)
#: let gcc collect garbage less often: this saves a sixth of the compile time for some memory
GCC_FLAGS = ("--param", "ggc-min-expand=200", "--param", "ggc-min-heapsize=1000000")
LIBRARIES = ("tbb", "sundials_cvodes", "sundials_idas", "sundials_kinsol", "sundials_nvecserial")


@dataclass(frozen=True)
class Toolchain:
    """Paths and versions of the tools."""

    root: Path
    version: str
    compiler: tuple[str, ...]
    compiler_version: str

    @property
    def is_gcc(self) -> bool:
        """Whether the compiler is GNU's, and takes its flags and its precompiled headers."""
        return any(word in self.compiler_version for word in ("g++", "gcc", "GCC"))

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of every compilation."""
        extra = () if "clang" in self.compiler_version else GCC_FLAGS
        return (*FLAGS, *extra, f"-I{self.root / 'include'}")

    @property
    def link_flags(self) -> tuple[str, ...]:
        """The flags for linking a shared library, after its object files."""
        folder = self.root / "lib"
        return (f"-L{folder}", f"-Wl,-rpath,{folder}", *(f"-l{name}" for name in LIBRARIES))

    @property
    def identity(self) -> str:
        """Everything a compiled library depends on besides its source."""
        parts = (self.version, self.compiler_version, platform.machine(), *self.flags, *self.link_flags)
        return "\n".join(parts)


def find_toolchain() -> Toolchain:
    """The toolchain of this machine; the error says what to install."""
    spec = importlib.util.find_spec("httpstan")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("Stan programs are compiled with httpstan's files: pip install 'bayescore[stan]'")
    root = Path(spec.submodule_search_locations[0])
    command, said = find_compiler()
    return Toolchain(root, importlib.metadata.version("httpstan"), command, said)


def find_compiler() -> tuple[tuple[str, ...], str]:
    """The C++ compiler, from $CXX or the PATH, as a command, and its version; an error says how to get it."""
    chosen = os.environ.get("CXX")
    names = [shlex.split(chosen)] if chosen else [[name] for name in COMPILERS]
    compiler = next((command for command in names if command and shutil.which(command[0])), None)
    if compiler is None:
        sought = f"CXX={chosen!r} names none" if chosen else f"none of {', '.join(COMPILERS)} is on the PATH"
        raise RuntimeError(
            f"a Stan program needs a C++ compiler, and {sought}; install one (Debian: apt install g++; "
            "Fedora: dnf install gcc-c++; conda: conda install gxx; macOS: xcode-select --install)"
        )
    said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    return tuple(compiler), said.stdout.partition("\n")[0]


def translate(toolchain: Toolchain, program: str, file_name: str, include: Path | None) -> str:
    """The C++ of a Stan program; a wrong program raises ValueError with stanc's own message."""
    options = ("--print-cpp", "--name=bayescore_model", f"--filename-in-msg={file_name}")
    done = _stanc(toolchain, program, include, *options)
    if done.returncode:
        raise ValueError(
            f"{file_name} is not a program that the Stan compiler accepts:\n{done.stderr.strip()}"
        )
    if done.stderr.strip():
        log.warning("the Stan compiler on %s: %s", file_name, done.stderr.strip())
    # stanc writes its flags into the C++, with the folder of the includes: without this, the same program in
    # another folder would be another cache entry.
    return re.sub(r'"stancflags = (?:[^"\\]|\\.)*"', '"stancflags ="', done.stdout)


def declared(toolchain: Toolchain, program: str, include: Path | None, block: str) -> list[str]:
    """The names that a program declares, as "inputs" or "parameters"."""
    return list(json.loads(_stanc(toolchain, program, include, "--info").stdout)[block])


def _stanc(
    toolchain: Toolchain, program: str, include: Path | None, *options: str
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "program.stan")
        source.write_text(program, encoding="utf-8")
        where = () if include is None else (f"--include-paths={include}",)
        command = [str(toolchain.root / "stanc"), f"--o={folder}/program.cpp", *options, *where, str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def run_compiler(toolchain: Toolchain, *arguments: str) -> None:
    """Call the compiler; if it fails, raise an error with its message."""
    done = subprocess.run([*toolchain.compiler, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        first = "\n".join([line for line in lines if "error" in line.lower()][:10] or lines[:10])
        raise RuntimeError(f"{toolchain.compiler[0]} ended with code {done.returncode}:\n{first}")
