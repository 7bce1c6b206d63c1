"""The script of the release checks: bounds, and what it says of a check that fails or cannot be made."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("requirement", "bound"),
    [
        ("numpy>=1.26", ("numpy", "1.26")),
        ("arviz>=0.20,<1", ("arviz", "0.20")),
        ("httpstan==4.13.*", ("httpstan", "4.13.*")),
    ],
)
def test_a_requirement_is_pinned_at_its_lower_bound(requirement, bound):
    assert release.lowest(requirement) == bound


def test_every_dependency_of_users_has_one_lower_bound_that_is_tried():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, pins = release.lowest_pins(stated)
    assert {"lightning", "ray", "sklearn", "stan", "text", "transformers", "vision"} <= set(extras)
    _, bound = release.lowest(next(each for each in stated["dependencies"] if each.startswith("torch>=")))
    assert {f"torch=={bound}", "timm==1.0.3"} <= set(pins)
    stated["optional-dependencies"]["other"] = ["torch>=99"]
    with pytest.raises(AssertionError, match=f"torch has two bounds, {bound} and 99"):
        release.lowest_pins(stated)


def test_a_check_does_not_see_this_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    assert release.run(sys.executable, "-c", "import os; print('PYTHONPATH' in os.environ)") == "False\n"


def test_a_python_that_is_not_there_leaves_its_check_out():
    with pytest.raises(release.LeftOut, match=r"there is no python3\.99 here"):
        release.python("3.99")


def test_a_failed_check_is_shown_with_the_end_of_its_output(monkeypatch, capsys):
    def fails(folder):
        release.run(sys.executable, "-c", "print('why'); raise SystemExit(3)")

    def absent(folder):
        raise release.LeftOut("no such thing here")

    monkeypatch.setattr(release, "CHECKS", {"one": fails, "two": absent, "three": lambda folder: "fine"})
    assert release.main(["--only", "one", "two", "three"]) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert "why" in said
    assert "no such thing here" in said
    assert "fine" in said
