"""Where a record says it comes from."""

from __future__ import annotations

import getpass
import platform
import subprocess

import pytest

from bayescore_lab.engine import provenance


@pytest.fixture
def repository(tmp_path):
    source = tmp_path / "src" / "package"
    source.mkdir(parents=True)
    (source / "code.py").write_text("a = 1\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    return source


def test_commit_is_that_of_the_source_and_says_when_it_was_changed(repository):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True).stdout
    assert provenance.commit(repository) == head[:12]
    (repository.parent / "notes.txt").write_text("outside the package")
    assert provenance.commit(repository) == head[:12]
    (repository / "code.py").write_text("a = 2\n")
    assert provenance.commit(repository) == f"{head[:12]}-dirty"


def test_a_package_installed_inside_a_foreign_repository_has_no_commit(repository):
    installed = repository.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "code.py").write_text("a = 1\n")
    assert provenance.commit(installed) == "unknown"


def test_without_git_the_commit_is_unknown(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.commit(repository) == "unknown"


def test_without_a_repository_the_commit_is_unknown(tmp_path):
    assert provenance.commit(tmp_path) == "unknown"


def test_versions_and_machine_name_what_matters_and_nobody():
    assert {"python", "numpy", "torch"} <= provenance.versions().keys()
    machine = provenance.machine()
    assert machine["cores"] >= 1
    assert platform.node() not in str(machine)
    assert getpass.getuser() not in str(machine).split()
