"""`bayescore doctor`: what this machine has for bayescore, and what is missing for each extra.

Its output belongs into a report of a problem: it names no file of the user's but the cache folder.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from bayescore.cli.terminal import console

__all__ = ["doctor_command", "extras", "unmet"]

#: what the extras are for, in the order in which they are shown
PURPOSES = {
    "plot": "pictures",
    "arviz": "export to ArviZ",
    "stan": "Stan programs",
    "flows": "normalising flows of zuko",
    "data": "data sets by name",
    "sklearn": "estimators for scikit-learn",
    "laplace": "Laplace approximations",
    "vision": "pretrained networks on pictures",
    "text": "pretrained networks on texts",
    "lightning": "training by Lightning",
    "transformers": "training by Hugging Face's Trainer",
    "tensorboard": "logs for TensorBoard",
    "ray": "many fits on a cluster",
    "docs": "this documentation",
}


def doctor_command() -> None:
    """Show versions, devices, caches and the compiler, and what is missing for each extra."""
    table = Table(box=SIMPLE, show_header=False, show_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, found in _facts():
        table.add_row(name, Text(found))
    table.add_section()
    for name, requirements in extras().items():
        problems = [problem for line in requirements if (problem := unmet(line))]
        purpose = PURPOSES[name]
        if problems:
            remedy = f"{', '.join(problems)}: pip install 'bayescore[{name}]'"
            table.add_row(name, Text.assemble(f"{purpose}: ", ("missing ", "yellow"), remedy))
        else:
            table.add_row(
                name, Text.assemble(f"{purpose}: ", ("there", "green"), f" ({_versions(requirements)})")
            )
    console().print(table)


def _facts() -> Iterator[tuple[str, str]]:
    yield "bayescore", f"{metadata.version('bayescore')}{_lab()}"
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "libraries", _versions(_requirements(""))
    yield "devices", _devices()
    yield "compiler", _compiler()
    yield "cache", _cache()
    yield (
        "data folder",
        os.environ.get("BAYESCORE_DATA") or "BAYESCORE_DATA is not set; data sets go to the cache",
    )


def _lab() -> str:
    try:
        return f", bayescore-lab {metadata.version('bayescore-lab')}"
    except metadata.PackageNotFoundError:
        return "; bayescore-lab (reproduce, report, bench) is not installed"


def _devices() -> str:
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as problem:  # a broken installation is what a doctor is for
        return f"torch cannot be imported: {problem}"
    found = [f"CPU with {os.cpu_count()} cores, {torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        found += [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    elif torch.version.cuda:
        found += [f"no GPU, though torch is built for CUDA {torch.version.cuda}"]
    else:
        found += ["no GPU: torch is built without CUDA"]
    if torch.backends.mps.is_available():
        found += ["MPS"]
    return "; ".join(found)


def _compiler() -> str:
    from bayescore.targets.stan.toolchain import find_compiler

    try:
        command, version = find_compiler()
    except (RuntimeError, OSError, ValueError) as problem:
        return f"none; without one, large networks are updated by slower kernels. {problem}"
    return f"{' '.join(command)}: {version}"


def _cache() -> str:
    from bayescore.caches import cache_place, private_folder

    root = cache_place("data").parent
    if not root.exists():
        return f"{root}, which does not exist yet"
    try:
        private_folder(root, "set BAYESCORE_CACHE to a folder of yours")
    except PermissionError as problem:
        return f"not usable: {problem}"
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.is_symlink()]
    return (
        f"{root}: {', '.join(f'{folder.name} {_size(folder) / 1e6:.1f} MB' for folder in folders) or 'empty'}"
    )


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


# -- requirements ----------------------------------------------------------------------------------------


def extras() -> dict[str, list[str]]:
    """The requirements of each extra that users install, as the installed distribution states them."""
    stated = metadata.metadata("bayescore").get_all("Provides-Extra") or ()
    return {name: _requirements(name) for name in PURPOSES if name in stated}


def _requirements(extra: str) -> list[str]:
    """The lines "name>=1.2,<2" of an extra, or of the library itself."""
    found = []
    for line in metadata.requires("bayescore") or ():
        wanted, _, marker = line.partition(";")
        named = re.search(r"extra == ['\"]([\w-]+)", marker)
        if (named[1] if named else "") == extra:
            found.append(wanted.strip())
    return found


def unmet(requirement: str) -> str:
    """What is missing for a requirement "name>=1.2,<2", or nothing."""
    name, bounds = _parts(requirement)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return requirement
    return "" if all(_within(version, *bound) for bound in bounds) else f"{requirement} (there is {version})"


def _parts(requirement: str) -> tuple[str, list[tuple[str, str]]]:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return name[0], re.findall(r"([<>=!~]=?)\s*([\w.*]+)", requirement[name.end() :])


def _within(version: str, sign: str, bound: str) -> bool:
    """Whether a version keeps a bound; releases only, as our requirements have them."""
    if sign == "==":
        return re.fullmatch(re.escape(bound).replace(r"\*", ".*"), version) is not None
    a, b = (tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3])) for text in (version, bound))
    return a >= b if sign == ">=" else a < b


def _versions(requirements: list[str]) -> str:
    found = []
    for line in requirements:
        name = _parts(line)[0]
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} is missing")
    return ", ".join(found)
