"""Files damaged at random, and files with another header whose checksum is right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bayescore.io import _checksum

__all__ = ["check_that_damage_is_refused", "header_of", "mutated", "read_or_refused", "with_header"]


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
            place[key] = rng.choice(strange)
        elif isinstance(place, dict):
            place["another"] = rng.choice(strange)
        else:
            place.append(place[key] if what == "double" else rng.choice(strange))
        if not header:
            break
    text = json.dumps(header)
    nested = {'"DEEP"': "[" * deep + "]" * deep, '"HUGE"': "1e999", '"NAN"': "NaN", '"DIGITS"': "9" * 5000}
    for word, value in nested.items():
        text = text.replace(word, value)
    return text
