"""The two distributions, the library and the lab: their versions, dependencies, contents and commands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata, resources
from pathlib import Path

import pytest

import bayescore

ROOT = Path(__file__).resolve().parents[1]

IMPORT_ALL_WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
for name in ("arviz", "blackjax", "jax", "matplotlib", "numpyro", "scipy", "sklearn", "zuko"):
    sys.modules[name] = None
import bayescore
def ignore(name):  # a package that is its extra
    assert name == "bayescore.sklearn", name
for module in pkgutil.walk_packages(bayescore.__path__, "bayescore.", ignore):
    if not module.name.endswith("__main__") and module.name != "bayescore.sklearn":
        importlib.import_module(module.name)
try:
    import bayescore.sklearn
except ImportError as problem:
    assert "bayescore[sklearn]" in str(problem), problem
else:
    raise AssertionError("scikit-learn was found")
"""


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def lab() -> dict:
    return tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def distribution(requirement: str) -> str:
    """The normalised name a requirement or a pin starts with."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_version_is_the_one_in_pyproject(project):
    assert bayescore.__version__ == metadata.version("bayescore") == project["version"]


def test_library_and_lab_have_the_same_version(project, lab):
    assert lab["project"]["version"] == project["version"]


def test_each_wheel_holds_one_package(lab):
    library = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for config, package in ((library, "src/bayescore"), (lab, "bayescore_lab")):
        assert config["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": [package]}


def test_library_never_imports_the_lab(project):
    mentions = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "bayescore_lab" for name in names), path
        if "bayescore_lab" in text:
            mentions.add(path.relative_to(ROOT / "src").as_posix())
    assert mentions == {"bayescore/cli/__init__.py"}  # which looks for its commands by name
    assert not any(distribution(line) == "bayescore-lab" for line in project["dependencies"])


def test_package_ships_its_type_marker():
    assert resources.files("bayescore").joinpath("py.typed").is_file()


def test_console_command_loads():
    (command,) = metadata.entry_points(group="console_scripts", name="bayescore")
    assert callable(command.load())


def test_every_module_imports_without_the_extras():
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL_WITHOUT_EXTRAS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_dependency_of_tests_and_demo_is_pinned(project, lab, pins):
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    for name in (
        "arviz",
        "data",
        "dev",
        "docs",
        "flows",
        "laplace",
        "lightning",
        "plot",
        "stan",
        "tensorboard",
        "text",
        "transformers",
        "vision",
    ):
        wanted += extras[name]
    wanted += lab["project"]["dependencies"]
    wanted += [line for lines in lab["project"]["optional-dependencies"].values() for line in lines]
    names = {distribution(requirement) for requirement in wanted} - {"bayescore"}
    assert names <= {distribution(pin) for pin in pins}


def test_constraints_are_exact_and_sorted(pins):
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert pins == sorted(pins, key=str.lower)


def sources(folder: Path) -> set[str]:
    """The files of a package below its parent folder, without what Python compiled."""
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "package"), [(".", "src/bayescore"), ("lab", "lab/bayescore_lab")])
def test_wheel_holds_the_files_of_its_package_and_no_others(tmp_path, folder, package):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run = subprocess.run([*command, "-w", tmp_path, ROOT / folder], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == sources(ROOT / package)


@pytest.mark.slow
def test_sdist_holds_what_the_tests_need(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    (file,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("src/bayescore", "lab/bayescore_lab", "tests", "examples", "docs"):
        parent = Path(folder).parent.as_posix().removeprefix(".")
        found = {name for name in names if name.startswith(f"{folder}/")}
        assert {name.removeprefix(parent).removeprefix("/") for name in found} == sources(ROOT / folder)
    needed = {
        "pyproject.toml",
        "lab/pyproject.toml",
        "constraints.txt",
        "Makefile",
        "mkdocs.yml",
        "README.md",
    }
    assert needed | {"LICENSE", "CITATION.cff", "results/mnist-tuning/table.csv"} <= names
