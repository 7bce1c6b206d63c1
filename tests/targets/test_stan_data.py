"""The data of a Stan program as JSON: what is hostile or damaged ends in a sentence, before Stan sees it."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bayescore.reading import json_memory
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
        file.truncate(129 * 2**20)  # a hole, which takes no room on the disk
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain, "data.json")
    for path in (plain, packed):
        tracemalloc.start()
        with pytest.raises(ValueError, match="holds at least 135,266,304 bytes, and at most 134,217,728"):
            data_text(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**21


@pytest.mark.parametrize("part", ["[],", "{},", '{"a":1},', '"ab",', "1.5,", "[[0]],"])
def test_what_would_take_much_more_room_in_memory_than_in_a_file_is_refused(
    tmp_path: Path, part: str
) -> None:
    packed = tmp_path / "data.json.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.json", '{"y": [' + part * 9_000_000 + "0]}")
    assert packed.stat().st_size < 150_000
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"could take [\d,]+ MB, and at most 300 MB are read"):
        data_text(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.1 * 9_000_000 * len(part)  # the bytes and the text


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * 50_000 + "0]",
        "[" + "[1]," * 50_000 + "0]",
        "[" + "{}," * 50_000 + "0]",
        "[" + '{"a":1.5},' * 50_000 + "0]",
        "[" + '{"a":{}},' * 50_000 + "0]",
        "[" + "1.5," * 50_000 + "0]",
        "[" + "9" * 40 + ",1" * 50_000 + "]",
        json.dumps([f"{n:x}" for n in range(50_000)]),
        json.dumps({f"{n:x}": 0.5 for n in range(50_000)}),
        json.dumps(["\u00e9\U0001f4a5" * 50_000], ensure_ascii=False),
    ],
    ids=lambda text: text[1:9],
)
def test_the_estimate_of_memory_is_an_upper_bound(text: str) -> None:
    tracemalloc.start()
    value = json.loads(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert value
    assert peak < json_memory(text) * (4 if not text.isascii() else 1) + 10_000


def test_a_long_text_beyond_ascii_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_bytes(b'{"y": "' + b" " * 2**25 + "\U0001f4a5".encode() + b'"}')
    with pytest.raises(ValueError, match="at most 33,554,432 are read of a text with characters beyond"):
        data_text(file)


@pytest.mark.parametrize("word", ["NaN", '"NaN"'])
def test_data_that_are_not_a_number_are_named(tmp_path: Path, word: str) -> None:
    file = tmp_path / "data.json"
    file.write_text(f'{{"n": 2, "y": [1.0, {word}], "s": [[0.5]]}}')
    with pytest.warns(UserWarning, match="the data y hold NaN, and a density of NaN is rejected everywhere"):
        data_text(file)
    with pytest.warns(UserWarning, match="the data y hold NaN"):
        data_text({"n": 2, "y": [1.0, float("nan")], "NaN": 3})
    assert data_text({"NaN": 3}) == ('{"NaN": 3}', {"NaN"})
