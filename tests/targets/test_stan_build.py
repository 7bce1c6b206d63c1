"""From program to library: the cache, the compiler, and what is said when something is missing."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bayescore.targets.stan import Stan, build, cache
from bayescore.targets.stan.cache import cache_folder, fetch

HERE = Path(__file__).parent
PROGRAM = HERE / "stan" / "everything.stan"
DATA = {"N": 1, "y": [0.5], "mood": 0}

needs_httpstan = pytest.mark.skipif(
    importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed"
)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH")

# Answers --version and otherwise notes the call and writes a library that was compiled before.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "imaginary 1.0"; exit 0; fi
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then out="$2"; fi
  if [ "$1" = -shared ]; then shared=1; fi
  shift
done
sleep 0.2
echo "${shared:-0}" >> "$NOTES"
cp "$LIBRARY" "$out"
"""


# -- the cache alone -----------------------------------------------------------------------------


def run_twice(code: str, *arguments: str) -> None:
    """The code in two processes at once; both must end well."""
    command = [sys.executable, "-c", code, *arguments]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said


def test_two_processes_make_an_entry_once(tmp_path: Path) -> None:
    # The file of the cache alone: it needs the standard library only, so both processes start at once.
    code = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("cache", sys.argv[1])
cache = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache)
folder = Path(sys.argv[2])
def make(out):
    with (folder / "made").open("a") as notes:
        notes.write("x")
    time.sleep(1)
    out.write_text("content")
assert cache.fetch(folder, "entry", make).read_text() == "content"
"""
    run_twice(code, str(cache.__file__), str(tmp_path))
    assert (tmp_path / "made").read_text() == "x"


@pytest.mark.parametrize("damage", ["bytes", "truncation", "seal", "no seal"])
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def make(out: Path) -> None:
        calls.append(out)
        out.write_bytes(b"0123456789")

    path = fetch(tmp_path, "entry", make)
    assert fetch(tmp_path, "entry", make) == path
    assert len(calls) == 1
    seal = tmp_path / "entry.sha256"
    if damage == "bytes":
        path.write_bytes(b"0123456780")
    elif damage == "truncation":
        path.write_bytes(b"")
    elif damage == "seal":
        seal.write_bytes(b"\xff")
    else:
        seal.unlink()
    assert fetch(tmp_path, "entry", make).read_bytes() == b"0123456789"
    assert len(calls) == 2
    assert "damaged and is made anew" in caplog.text


def test_an_entry_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def fail(out: Path) -> None:
        out.write_bytes(b"half")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fetch(tmp_path, "entry", fail)
    assert [file.name for file in tmp_path.iterdir()] == ["entry.lock"]


def test_the_folder_is_the_users_choice_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("BAYESCORE_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "bayescore" / "stan"
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "ours"))
    assert cache_folder() == tmp_path / "ours" / "stan"
    assert cache_folder(tmp_path / "mine") == tmp_path / "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match=r"can be kept in .*; give cache_dir= or set BAYESCORE_CACHE"):
        cache_folder(tmp_path / "file" / "below")


# -- a cache that others could fill ---------------------------------------------------------------


def plant(folder: Path, name: str = "entry") -> Path:
    """An entry whose checksum fits, as an attacker would leave it."""
    content = b"hostile"
    (folder / name).write_bytes(content)
    (folder / f"{name}.sha256").write_text(hashlib.sha256(content).hexdigest())
    return folder / name


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    plant(folder)
    folder.chmod(mode)
    with pytest.raises(
        PermissionError, match=r"can be written by others \(its mode is .*chmod 700.*BAYESCORE_CACHE"
    ):
        cache_folder(folder)
    folder.chmod(0o755)  # what others can only read is no danger
    assert cache_folder(folder) == folder


@needs_httpstan
@needs_compiler
def test_a_planted_library_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda path: loaded.append(path) or pytest.fail("it was loaded"))
    monkeypatch.setattr(build, "_key", lambda *parts: "known")  # the name can be computed by anybody
    folder = tmp_path / "cache"
    folder.mkdir()
    plant(folder, "known.so")
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="who could have planted programs in it"):
        Stan(PROGRAM, DATA, cache_dir=folder)
    assert loaded == []


def test_a_folder_or_an_entry_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache_folder(tmp_path / "cache")
    plant(folder).chmod(0o600)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(PermissionError, match=f"belongs to the user number {me}.*must belong to you"):
        cache_folder(folder)
    with pytest.raises(PermissionError, match=f"belongs to the user number {me}.*remove it"):
        fetch(folder, "entry", lambda out: pytest.fail("the folder is not ours to write"))


def test_a_folder_that_others_could_exchange_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    folder = cache_folder(above / "cache")
    above.chmod(0o777)
    with pytest.raises(PermissionError, match="who could exchange"):
        cache_folder(folder)
    above.chmod(0o1777)  # sticky, as /tmp is: an entry belongs to its owner
    assert cache_folder(folder) == folder


def test_folders_that_are_made_are_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "new" / "root"))
    before = os.umask(0)
    try:
        folder = cache_folder()
        path = fetch(folder, "entry", lambda out: (out.unlink(), out.write_bytes(b"made"))[0])
    finally:
        os.umask(before)
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    for file in (path, *folder.glob("entry.*")):
        assert not stat.S_IMODE(file.stat().st_mode) & 0o022


@pytest.mark.parametrize("name", ["entry", "entry.sha256", "entry.lock"])
@pytest.mark.parametrize("what", ["link", "pipe", "writable"])
def test_links_pipes_and_files_for_others_are_refused(tmp_path: Path, name: str, what: str) -> None:
    folder, victim = cache_folder(tmp_path / "cache"), tmp_path / "victim"
    victim.write_text("precious")
    if name != "entry.lock":
        plant(folder)
        (folder / name).unlink()
    place = folder / name
    if what == "link":
        place.symlink_to(victim)
    elif what == "pipe":
        os.mkfifo(place, 0o600)
    else:
        place.write_text("")
        place.chmod(0o666)
    with pytest.raises(PermissionError, match=rf"{name} (is|can).*remove it"):
        fetch(folder, "entry", lambda out: out.write_bytes(b"made"))
    assert victim.read_text() == "precious"


# -- programs ------------------------------------------------------------------------------------


@needs_httpstan
@needs_compiler
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("parameters { real x; }\nmodel { x ~ normal(0, 1) }\n", ["Syntax error", "line 2, column 25"]),
        (
            "parameters { real x; }\nmodel { x ~ normal(0, y); }\n",
            ["line 2, column 22", "Identifier 'y' not in scope"],
        ),
        ("parameters { real x; }\nmodel { x ~ norml(0, 1); }\n", ["line 2", "norml"]),
        ("#include nowhere.stan\nmodel { }", ["nowhere.stan"]),
    ],
)
def test_a_wrong_program_ends_in_the_compilers_own_words(
    program: str, words: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "wrong.stan"
    file.write_text(program)
    for given in (file, program):
        with pytest.raises(ValueError, match="is not a program that the Stan compiler accepts") as caught:
            Stan(given, cache_dir=tmp_path)
        assert all(word in str(caught.value) for word in words)
        assert ("wrong.stan" if given is file else "the Stan program") in str(caught.value)


@needs_httpstan
@needs_compiler
def test_what_cannot_work_is_refused_before_the_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bayescore.targets.stan.build.run_compiler", lambda *_: pytest.fail("the compiler was called")
    )
    with pytest.raises(ValueError, match="the Stan program has no parameters, so there is nothing to infer"):
        Stan("generated quantities { real x = normal_rng(0, 1); }", cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"everything\.stan does not take these data: missing: y, mood"):
        Stan(PROGRAM, {"N": 1}, cache_dir=tmp_path)


def test_a_program_must_be_a_file_or_a_text(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no Stan program at nowhere\.stan"):
        Stan("nowhere.stan")
    with pytest.raises(TypeError, match=r"path of a \.stan file or its text; got int"):
        Stan(3)


@needs_httpstan
def test_a_machine_without_a_compiler_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        RuntimeError, match=r"none of g\+\+, clang\+\+, c\+\+ is on the PATH; install one .*g\+\+"
    ):
        Stan(PROGRAM, DATA)
    monkeypatch.setenv("CXX", "nowhere++ -m64")
    with pytest.raises(RuntimeError, match=r"CXX='nowhere\+\+ -m64' names none"):
        Stan(PROGRAM, DATA)


def test_a_machine_without_httpstan_is_told_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'bayescore\[stan\]'"):
        Stan(PROGRAM, DATA)


# -- the whole way, with an imaginary compiler ---------------------------------------------------


@pytest.fixture
def imaginary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that copies the real library of PROGRAM; its calls are lines of the returned file."""
    library = Stan(PROGRAM, DATA).model.library._name
    compiler, notes = tmp_path / "imaginary++", tmp_path / "notes"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("NOTES", str(notes))
    monkeypatch.setenv("LIBRARY", library)
    return notes


def links(notes: Path) -> int:
    return notes.read_text().count("1")


@needs_httpstan
@needs_compiler
def test_two_processes_compile_a_program_once(imaginary: Path, tmp_path: Path) -> None:
    code = """
import sys
from bayescore.targets.stan import Stan
assert Stan(sys.argv[1], {"N": 1, "y": [0.5], "mood": 0}, cache_dir=sys.argv[2]).dim == 21
"""
    run_twice(code, str(PROGRAM), str(tmp_path / "cache"))
    assert links(imaginary) == 1


@needs_httpstan
@needs_compiler
def test_a_damaged_library_is_compiled_anew(
    imaginary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    Stan(PROGRAM, DATA, cache_dir=folder)
    (path,) = folder.glob("*.so")
    Stan(PROGRAM, DATA, cache_dir=folder)
    assert links(imaginary) == 1
    whole = path.read_bytes()
    path.unlink()  # a loaded library keeps its file; the damaged one is another
    path.write_bytes(whole[: len(whole) // 2])
    assert Stan(PROGRAM, DATA, cache_dir=folder).dim == 21
    assert links(imaginary) == 2
    assert "damaged and is made anew" in caplog.text


@needs_httpstan
@needs_compiler
def test_a_library_that_does_not_load_is_compiled_once_more_and_then_given_up(
    imaginary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LIBRARY", str(PROGRAM))  # a text, which no process can load
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        Stan(PROGRAM, DATA, cache_dir=tmp_path / "cache")
    assert links(imaginary) == 2
    assert "cannot be loaded" in caplog.text
    assert "and is made anew" in caplog.text


@needs_httpstan
@needs_compiler
def test_another_program_or_compiler_is_another_entry(imaginary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    Stan(PROGRAM, DATA, cache_dir=folder)
    changed = tmp_path / "everything.stan"
    changed.write_text(PROGRAM.read_text() + "\n// a comment changes nothing\n")
    Stan(changed, DATA, cache_dir=folder)
    assert links(imaginary) == 1
    changed.write_text(PROGRAM.read_text().replace("normal(0, 10)", "normal(0, 20)"))
    Stan(changed, DATA, cache_dir=folder)
    assert links(imaginary) == 2
    compiler = Path(os.environ["CXX"])
    compiler.write_text(compiler.read_text().replace("imaginary 1.0", "imaginary 1.1"))
    Stan(PROGRAM, DATA, cache_dir=folder)
    assert links(imaginary) == 3


@needs_httpstan
@needs_compiler
def test_the_compilers_message_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(RuntimeError, match="ended with code 1:\nfatal error: no space left"):
        Stan(PROGRAM, DATA, cache_dir=tmp_path / "cache")


@needs_httpstan
@needs_compiler
def test_a_compile_is_announced(imaginary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="bayescore.targets.stan"):
        Stan(PROGRAM, DATA, cache_dir=tmp_path / "cache")
    assert re.search(r"compiling everything\.stan \(about \d+ s, once\)", caplog.text)
    assert "compiled everything.stan in" in caplog.text
    caplog.clear()
    Stan(PROGRAM, DATA, cache_dir=tmp_path / "cache")
    assert not caplog.text
