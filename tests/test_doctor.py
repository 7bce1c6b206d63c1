"""`bayescore doctor`: every extra has its line, and what is missing is named with its remedy."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bayescore.cli import app
from bayescore.cli.doctor import PURPOSES, unmet

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str, **env: str) -> str:
    result = CliRunner(env=env).invoke(app, ["doctor", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_extra_that_users_install_has_its_purpose():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(PURPOSES) == set(stated) - {"all", "dev"}


def test_it_names_versions_devices_compiler_and_caches(tmp_path):
    said = run(BAYESCORE_CACHE=str(tmp_path / "cache"))
    words = " ".join(said.split())  # a long path breaks the line
    for piece in (metadata.version("bayescore"), metadata.version("torch"), "CPU with", "not exist yet"):
        assert piece in words
    rows = [line.split()[0] for line in said.splitlines() if line[1:2].strip()]
    assert rows[:7] == ["bayescore", "Python", "libraries", "devices", "compiler", "cache", "data"]


def test_the_cache_is_measured_by_kind(tmp_path):
    (tmp_path / "stan").mkdir(mode=0o700)
    (tmp_path / "stan" / "model").write_bytes(bytes(2_500_000))
    assert "stan 2.5 MB" in " ".join(run(BAYESCORE_CACHE=str(tmp_path)).split())


def test_a_cache_that_others_can_write_is_called_unusable(tmp_path):
    tmp_path.chmod(0o777)
    assert "not usable" in run(BAYESCORE_CACHE=str(tmp_path))


def test_a_missing_compiler_is_said_with_its_remedy(tmp_path):
    said = " ".join(run(CXX="no-such-compiler", BAYESCORE_CACHE=str(tmp_path / "cache")).split())
    assert "CXX='no-such-compiler' names none" in said


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch, tmp_path):
    known = metadata.version

    def version(name: str) -> str:
        if name == "arviz":
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr("bayescore.cli.doctor.metadata.version", version)
    said = " ".join(run(BAYESCORE_CACHE=str(tmp_path / "cache")).split())
    assert "missing arviz" in said
    assert "pip install 'bayescore[arviz]'" in said


@pytest.mark.parametrize(
    ("version", "requirement", "met"),
    [
        ("0.20.1", "arviz>=0.20,<1", True),
        ("1.0.0", "arviz>=0.20,<1", False),
        ("0.9", "arviz>=0.20,<1", False),
        ("4.13.2", "httpstan==4.13.*", True),
        ("4.14.0", "httpstan==4.13.*", False),
        ("2.13.0+cpu", "torch>=2.6", True),
        ("2.6.0rc1", "torch>=2.6", True),
    ],
)
def test_a_version_is_held_to_its_bounds(monkeypatch, version, requirement, met):
    monkeypatch.setattr("bayescore.cli.doctor.metadata.version", lambda name: version)
    assert unmet(requirement) == ("" if met else f"{requirement} (there is {version})")
