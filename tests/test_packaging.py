"""The installed distribution: its version, its dependencies, its command."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

import bayescore

ROOT = Path(__file__).resolve().parents[1]

IMPORT_ALL_WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
for name in ("arviz", "blackjax", "jax", "matplotlib", "numpyro", "scipy", "zuko"):
    sys.modules[name] = None
import bayescore
for module in pkgutil.walk_packages(bayescore.__path__, "bayescore."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def distribution(requirement: str) -> str:
    """The normalised name a requirement or a pin starts with."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_version_is_the_one_in_pyproject(project):
    assert bayescore.__version__ == metadata.version("bayescore") == project["version"]


def test_package_ships_its_type_marker():
    assert resources.files("bayescore").joinpath("py.typed").is_file()


def test_console_command_loads():
    (command,) = metadata.entry_points(group="console_scripts", name="bayescore")
    assert callable(command.load())


def test_every_module_imports_without_the_extras():
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL_WITHOUT_EXTRAS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_dependency_of_tests_and_demo_is_pinned(project, pins):
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    for name in ("arviz", "data", "dev", "docs", "flows", "laplace", "plot", "stan"):
        wanted += extras[name]
    names = {distribution(requirement) for requirement in wanted} - {"bayescore"}
    assert names <= {distribution(pin) for pin in pins}


def test_constraints_are_exact_and_sorted(pins):
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert pins == sorted(pins, key=str.lower)
