"""Files damaged at random, JSON with other values, and files with another header whose checksum is right."""

from __future__ import annotations

import copy
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bayescore.io import _checksum

__all__ = [
    "INSIDE",
    "OUTSIDE",
    "check_that_damage_is_refused",
    "header_of",
    "mutate",
    "mutated",
    "read_or_refused",
    "with_header",
    "write_zip",
]


def header_of(path: Path) -> dict[str, Any]:
    """The JSON header of a file of ours."""
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["json"])


def with_header(path: Path, header: object, rename: str | None = None) -> None:
    """Give a file another header, or one of its tensors another name, and the checksum that goes with it."""
    tensors = load_file(path)
    if rename is not None:
        tensors["somewhere.else"] = tensors.pop(rename)
    text = header if isinstance(header, str) else json.dumps(header)
    save_file(tensors, path, {"json": text, "sha256": _checksum(text, tensors)})


def check_that_damage_is_refused(path: Path, load: Callable[[], object], flips: int, cuts: int) -> None:
    """A file with one flipped bit, or cut short, is refused by one sentence that names it."""
    data, rng = path.read_bytes(), random.Random(0)
    assert load() is not None
    damaged = [data[: rng.randrange(len(data))] for _ in range(cuts)]
    for _ in range(flips):
        copy, place = bytearray(data), rng.randrange(8 * len(data))
        copy[place // 8] ^= 1 << place % 8
        damaged.append(bytes(copy))
    for content in damaged:
        path.write_bytes(content)
        assert read_or_refused(path, load) is None


def read_or_refused(path: Path, load: Callable[[], Any]) -> Any:
    """What `load` returns; None if it refuses the file by one sentence that names it."""
    try:
        return load()
    except ValueError as error:
        refusal = error
    assert type(refusal) is ValueError
    assert str(refusal).startswith(f"{path} ")
    assert "\n" not in str(refusal)
    return None


def mutated(header: dict[str, Any], rng: random.Random) -> str:
    """The text of a header in which one or two random places are something else."""
    deep = rng.choice([50, 5000, 200_000])
    strange = [
        None, True, 0, -1, 17, 0.5, -0.5, 10**30, -(10**30), 10**400, 2**53 + 1, 1e308, "", "nan", "x", "1_0",
        "\ud800", [], {}, [[]], {"name": "bam"}, [1] * 20, "DEEP", "HUGE", "NAN", "DIGITS",
    ]  # fmt: skip
    header = json.loads(json.dumps(header))
    for _ in range(rng.choice([1, 1, 2])):
        place: Any = header
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = rng.choice(keys)
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
                break
            place = place[key]
        what = rng.choice(["delete", "change", "change", "change", "add", "double"])
        if what == "delete":
            del place[key]
        elif what == "change":
            place[key] = copy.deepcopy(rng.choice(strange))
        elif isinstance(place, dict):
            place["another"] = copy.deepcopy(rng.choice(strange))
        else:
            place.append(copy.deepcopy(place[key] if what == "double" else rng.choice(strange)))
        if not header:
            break
    text = json.dumps(header)
    nested = {'"DEEP"': "[" * deep + "]" * deep, '"HUGE"': "1e999", '"NAN"': "NaN", '"DIGITS"': "9" * 5000}
    for word, value in nested.items():
        text = text.replace(word, value)
    return text


# -- any file of JSON, zipped or not -----------------------------------------------------------------------


def write_zip(path: Path, text: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(path.stem, text)


STRANGE: list[Any] = [
    None, True, "text", "../../../secret", "\ud800", "\0", "x" * 5000, [], {}, [[]], [[1], [2, 3]], -1, 0,
    0.5, 10**30, 10**400, -(10**30), 1e308, 1e-320, float("nan"), float("inf"),
    [None], ["1"], {"1": 2}, [[[1.0]]], "<script>alert(1)</script>", "NaN", "-Infinity",
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    found = [(value, key) for key, _ in items]
    for _, part in items:
        if isinstance(part, dict | list):
            found += places(part)
    return found


def change_value(rng: random.Random, value: Any) -> str:
    container, key = rng.choice(places(value))
    container[key] = copy.deepcopy(rng.choice(STRANGE))
    return json.dumps(value)


def delete_key(rng: random.Random, value: Any) -> str:
    container, key = rng.choice(places(value))
    del container[key]
    return json.dumps(value)


def rename_key(rng: random.Random, value: Any) -> str:
    objects = [(c, k) for c, k in places(value) if isinstance(c, dict)]
    container, key = rng.choice(objects)
    names = [
        "",
        "beta[0]",
        "beta[1",
        "a[99999999999999999999]",
        "b[1,1,1]",
        "a\nb",
        "data",
        "x" * 5000,
        "9[9]",
    ]
    container[rng.choice(names)] = container.pop(key)
    return json.dumps(value)


def nest(rng: random.Random, value: Any) -> str:
    depth = rng.choice([2, 40, 130, 900, 5000, 100_000])
    container, key = rng.choice(places(value))
    container[key] = "HERE"
    return json.dumps(value).replace('"HERE"', "[" * depth + "1" + "]" * depth, 1)


def replace_whole(rng: random.Random, value: Any) -> str:
    return rng.choice(
        ["", "null", "[]", "{}", "[{}]", "3", '"text"', "9" * 5000, "[[1]]", "[{}, {}]", "\x00", "{"]
    )


def flip_bytes(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_the_directory(rng: random.Random, content: bytes) -> bytes:
    """A change in the last bytes, where a zip file says what it holds."""
    changed = bytearray(content)
    changed[-1 - rng.randrange(min(90, len(changed)))] = rng.randrange(256)
    return bytes(changed)


def truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def insert(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + rng.randbytes(rng.choice([1, 4, 100])) + content[at:]


INSIDE: list[Callable[[random.Random, Any], str]] = [
    change_value,
    delete_key,
    rename_key,
    nest,
    replace_whole,
]
OUTSIDE: list[Callable[[random.Random, bytes], bytes]] = [flip_bytes, flip_the_directory, truncate, insert]


def mutate(rng: random.Random, file: Path) -> str:
    """Change the file in one way; returns which."""
    if rng.random() < 0.4:
        outside = rng.choice(OUTSIDE)
        file.write_bytes(outside(rng, file.read_bytes()))
        return outside.__name__
    inside = rng.choice(INSIDE)
    if file.suffix != ".zip":
        file.write_text(inside(rng, json.loads(file.read_text())), encoding="utf-8")
        return inside.__name__
    with zipfile.ZipFile(file) as archive:
        value = json.loads(archive.read(archive.namelist()[0]))
    write_zip(file, inside(rng, value))
    return inside.__name__
