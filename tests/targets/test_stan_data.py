"""The data of a Stan program as JSON: what is hostile or damaged ends in a sentence, before Stan sees it."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bayescore.targets.stan.data import data_text


def deep(depth: int) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value", [deep(5_000), LOOP], ids=["deep", "loop"])
def test_data_that_are_nested_too_deeply_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="nested too deeply, or a list holds itself"):
        data_text({"y": value})


def test_numbers_beyond_those_of_the_machine_are_refused() -> None:
    for value in (10**400, -(10**400), [1, [10**5000]]):
        with pytest.raises(ValueError, match="'y' must be numbers up to 1e308; got one of about"):
            data_text({"y": value})
    assert data_text({"y": 10**300}) == ('{"y": 1' + "0" * 300 + "}", {"y"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"y": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b'{"y": ' + b"9" * 5000 + b"}", "is not readable JSON"),
        (b'{"y": Inf', "is not readable JSON"),
        (b'{"y": nan}', "is not readable JSON"),
        (b'{"y": [1]\xff}', "is not text in UTF-8"),
        (b"", "is not readable JSON"),
        (b"[1]", "must hold a JSON object.*it holds a list"),
        (b"NaN", "must hold a JSON object.*it holds a float"),
    ],
)
def test_a_hostile_file_is_refused_with_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "data.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"data\.json.*{words}|{words}") as caught:
        data_text(file)
    assert type(caught.value) is ValueError
    assert "data.json" in str(caught.value)


def test_a_text_in_place_of_a_path_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="there is no data file at"):
        data_text(json.dumps({"y": list(range(5000))}))


def test_files_larger_than_the_limit_are_refused_before_they_are_read(tmp_path: Path) -> None:
    plain, packed = tmp_path / "data.json", tmp_path / "data.json.zip"
    with plain.open("wb") as file:
        file.truncate(257 * 2**20)  # a hole, which takes no room on the disk
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain, "data.json")
    for path in (plain, packed):
        tracemalloc.start()
        with pytest.raises(ValueError, match="holds at least 269,484,032 bytes, and at most 268,435,456"):
            data_text(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**21


def test_a_file_that_would_take_much_more_memory_than_room_is_refused(tmp_path: Path) -> None:
    packed = tmp_path / "data.json.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.json", '{"y": [' + "[]," * 6_000_000 + "0]}")
    assert packed.stat().st_size < 50_000
    tracemalloc.start()
    with pytest.raises(ValueError, match="about 6,000,004 lists, objects and strings, and at most 5,000,000"):
        data_text(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 2**20
