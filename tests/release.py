"""The checks before a release, in new virtual environments: `make release-check`.

    python tests/release.py                      # all of them
    python tests/release.py --only wheel lowest  # some
    python tests/release.py --keep folder        # leaves the environments there

- `wheel`: wheel and sdist of the library and of the lab are built; each installs into an empty environment,
  and there the command, a fit and a network's step work outside this folder.
- `lowest`: every dependency of the library and of its extras in the lowest version that `pyproject.toml`
  admits, with Python 3.11, and the tests of the library's core.
- `3.12`, `3.13`: an installation with the pinned versions and the tests that take seconds, with that Python.

A check that cannot be made here, because that Python is not installed, is said to be left out; the exit code
is 1 if one failed or was left out. Torch is downloaded for every Python: that is several gigabytes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOG_LINES = 30

#: the tests of `lowest`: what users call, with no tool of the house that needs new versions
CORE = (
    "tests/estimators",
    "tests/families",
    "tests/methods",
    "tests/nn/test_callbacks.py",
    "tests/nn/test_training.py",
    "tests/optim",
    "tests/posteriors",
    "tests/tables",
    "tests/test_cli.py",
    "tests/test_doctor.py",
)

#: extras that are for the people of the house, not for users
OURS = ("all", "dev", "docs")

SMOKE = """
import torch, bayescore as bs
from bayescore.optim import ProximalScore
fit = bs.fit(bs.targets.Gaussian.random(dim=3, seed=0), seed=0)
print(fit.status)
model = torch.nn.Linear(2, 3)
optimizer = ProximalScore(model.parameters(), num_data=8)
for _ in range(3):
    with optimizer.sample():
        torch.nn.functional.cross_entropy(model(torch.ones(8, 2)), torch.ones(8).long()).backward()
    optimizer.step(); optimizer.zero_grad()
print(optimizer.posterior(model).predict(torch.ones(4, 2), draws=3).probs.shape)
"""


class LeftOut(Exception):
    """A check cannot be made on this machine; the text says why."""


class Failed(Exception):
    """A command of a check failed; the text has the end of what it said."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    print("  $", *command, flush=True)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environ, "OMP_NUM_THREADS": "1"},  # each of several test processes has one core
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise Failed("\n".join(done.stdout.splitlines()[-LOG_LINES:]))
    return done.stdout


def python(version: str) -> str:
    """The interpreter of a version, by its name on the PATH."""
    for name in (f"python{version}", sys.executable):
        if found := shutil.which(name):
            said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
            if said.startswith(f"Python {version}."):
                return found
    raise LeftOut(f"there is no python{version} here")


def environment(place: Path, version: str) -> Path:
    """A new virtual environment; its Python."""
    run(python(version), "-m", "venv", place)
    return place / "bin" / "python"


def install(interpreter: Path, *words: str | Path) -> None:
    run(interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)


def project(folder: str = ".") -> dict:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


# -- the checks --------------------------------------------------------------------------------------------


def check_wheel(folder: Path) -> str:
    builder = environment(folder / "builder", "3.11")
    install(builder, "-c", "constraints.txt", "hatchling")
    built = []
    for source in (ROOT, ROOT / "lab"):
        for kind in ("wheel", "sdist"):
            place = folder / "dist" / kind
            run(builder, "-m", "hatchling", "build", "-t", kind, "-d", place, cwd=source)
            built += [path for path in place.iterdir() if path not in built]
    for kind in ("wheel", "sdist"):
        interpreter = environment(folder / f"empty-{kind}", "3.11")
        files = sorted((folder / "dist" / kind).iterdir())
        install(interpreter, "-c", "constraints.txt", *files)
        run(interpreter, "-c", SMOKE, cwd=folder)
        run(interpreter.parent / "bayescore", "doctor", cwd=folder)
        run(interpreter.parent / "bayescore", "reproduce", "list", cwd=folder)
    return ", ".join(f"{path.name} {path.stat().st_size / 1e3:.0f} kB" for path in built)


def lowest(requirement: str) -> tuple[str, str]:
    """The name in a requirement, and its lower bound: "name>=1.2,<2" is ("name", "1.2")."""
    name = re.match(r"[\w.-]+", requirement)
    bound = re.search(r"(?:>=|==)\s*([\w.*]+)", requirement)
    assert name is not None, requirement
    assert bound is not None, f"{requirement} has no lower bound"
    return name[0], bound[1]


def lowest_pins(stated: dict) -> tuple[list[str], list[str]]:
    """The users' extras, and every dependency at its lower bound."""
    extras = {name: lines for name, lines in stated["optional-dependencies"].items() if name not in OURS}
    pins: dict[str, str] = {}
    for line in (*stated["dependencies"], *(line for lines in extras.values() for line in lines)):
        name, bound = lowest(line)
        assert pins.setdefault(name, bound) == bound, f"{name} has two bounds, {pins[name]} and {bound}"
    return list(extras), [f"{name}=={bound}" for name, bound in pins.items()]


def check_lowest(folder: Path) -> str:
    extras, pins = lowest_pins(project())
    constraints = folder / "lowest.txt"
    constraints.write_text("\n".join(pins) + "\n")
    interpreter = environment(folder / "lowest", "3.11")
    install(interpreter, "-c", constraints, f"{ROOT}[{','.join(extras)}]")
    install(interpreter, "-c", constraints, "pytest", "pytest-xdist", "hypothesis", "scipy", "torchmetrics")
    install(interpreter, "--no-deps", ROOT / "lab")  # some tests compare with its references
    tests = [ROOT / name for name in CORE]
    # warnings of old versions are not ours: only errors count here, and deprecations are hidden as they are
    # from users
    filters = ("-W", "default", "-W", "ignore::DeprecationWarning")
    said = run(interpreter, "-m", "pytest", "-q", "-n", "2", *filters, "-m", "not slow", *tests)
    return f"{', '.join(pins)}: {said.splitlines()[-1]}"


def check_python(version: str) -> Callable[[Path], str]:
    def check(folder: Path) -> str:
        place = folder / f"python-{version}"
        said = run("make", "unit", f"PYTHON={python(version)}", f"VENV={place}")
        return said.splitlines()[-1]

    return check


CHECKS: dict[str, Callable[[Path], str]] = {
    "wheel": check_wheel,
    "lowest": check_lowest,
    "3.12": check_python("3.12"),
    "3.13": check_python("3.13"),
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS), help="which checks")
    parser.add_argument("--keep", type=Path, help="a folder for the environments, which stay there")
    chosen = parser.parse_args(words)
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="bayescore-release-"))
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = []
    try:
        for name in chosen.only:
            print(f"== {name} ==", flush=True)
            began = time.monotonic()
            try:
                words_of = ("ok", CHECKS[name](folder))
            except LeftOut as reason:
                words_of = ("left out", str(reason))
            except Failed as problem:
                words_of = ("FAILED", str(problem))
            verdicts.append((name, *words_of, time.monotonic() - began))
    finally:
        if chosen.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n== release check ==")
    for name, verdict, said, seconds in verdicts:
        print(f"{name:8} {verdict:9} {seconds:6.0f} s  {said}")
    return int(any(verdict != "ok" for _, verdict, _, _ in verdicts))


if __name__ == "__main__":
    sys.exit(main())
