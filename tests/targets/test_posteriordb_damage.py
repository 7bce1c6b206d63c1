"""Damaged and hostile PosteriorDB folders: every one is refused with a sentence, or gives valid data."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bayescore.targets.posterior_db import Folder, posteriordb
from bayescore.targets.posterior_db.target import FURTHER, NATIVE

SERIES = [0.3, 1.1, -0.4, 0.9, 2.2, -1.3, 0.5, 0.1, 1.7, -0.8]
DATA: dict[str, dict[str, Any]] = {
    "arK": {"K": 2, "T": 10, "y": SERIES},
    "blr": {
        "N": 5,
        "D": 2,
        "X": [[1.0, 2.0], [0.5, -1.0], [2.0, 0.1], [0.0, 1.0], [1.5, 1.5]],
        "y": SERIES[:5],
    },
    "diamonds": {"N": 4, "K": 2, "X": [[1, 2.0], [1, -1.0], [1, 0.1], [1, 3.0]], "Y": SERIES[:4]},
    "eight_schools_noncentered": {"J": 3, "y": [28, 8, -3], "sigma": [15, 10, 16]},
    "garch11": {"T": 10, "y": SERIES, "sigma1": 0.5},
    "gp_pois_regr": {"N": 3, "x": [-10, 0, 10], "k": [40, 3, 9], "y": [0.0] * 3},
    "gp_regr": {"N": 3, "x": [-10, 0, 10], "k": [40, 3, 9], "y": [0.3, 1.0, -1.0]},
    "logearn_interaction": {
        "N": 4,
        "earn": [5e4, 6e4, 2e4, 9e4],
        "height": [60, 70, 65, 72],
        "male": [0, 1, 0, 1],
    },
    "low_dim_gauss_mix": {"N": 10, "y": SERIES},
}


def write_zip(path: Path, text: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(path.stem, text)


def columns(values: dict[str, torch.Tensor], chain: int) -> dict[str, list[float]]:
    found = {}
    for name, value in values.items():
        if value.dim() == 2:
            found[name] = value[chain].tolist()
        else:
            found |= {f"{name}[{i + 1}]": value[chain, :, i].tolist() for i in range(value.shape[2])}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few posteriors, laid out as the database is."""
    root = tmp_path_factory.mktemp("posteriordb")
    for name in ("posteriors", "data", "reference_draws"):
        (root / name).mkdir()
    for model, data in DATA.items():
        target = (NATIVE.get(model) or FURTHER[model]).from_data(data)
        points = torch.randn(
            2, 5, target.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        values = target.to_posterior(0.3 * points)["posterior"]
        values.pop("theta_trans" if model.startswith("eight") else "f_tilde", None)
        description = {
            "name": f"small-{model}",
            "keywords": ["small"],
            "model_name": model,
            "data_name": model,
            "reference_posterior_name": f"small-{model}",
            "dimensions": dict.fromkeys(values, 1),
        }
        (root / "posteriors" / f"small-{model}.json").write_text(json.dumps(description, indent=2))
        write_zip(root / "data" / f"{model}.json.zip", json.dumps(data))
        draws = [columns(values, chain) for chain in range(2)]
        write_zip(root / "reference_draws" / f"small-{model}.json.zip", json.dumps(draws))
    return root


def load(folder: Path, model: str) -> None:
    """All that a user reads from a posterior."""
    target = posteriordb(f"small-{model}", folder)
    if target.has_reference:
        assert all(value.isfinite().all() for value in target.reference_draws.values())
        assert target.reference_points.shape[-1] == target.dim
    value, score = target.log_prob_and_score(torch.zeros(target.dim, dtype=torch.float64))
    assert value.shape == ()
    assert score.shape == (target.dim,)
    assert len(target.names) == target.dim


def problem(folder: Path, model: str) -> Exception | None:
    try:
        load(folder, model)
    except Exception as error:
        return error
    return None


def test_a_whole_folder_is_read(whole: Path) -> None:
    for model in DATA:
        load(whole, model)


# -- mutations -----------------------------------------------------------------------------------

STRANGE: list[Any] = [
    None, True, "text", "../../../secret", "\ud800", "\0", "x" * 5000, [], {}, [[]], [[1], [2, 3]], -1, 0,
    0.5, 10**30, 10**400, -(10**30), 1e308, 1e-320, float("nan"), float("inf"),
    [None], ["1"], {"1": 2}, [[[1.0]]],
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
    container[key] = rng.choice(STRANGE)
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


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 500), marks=pytest.mark.slow)], ids=["100", "400 more"]
)
def test_mutated_folders_are_refused_with_a_sentence_or_give_valid_data(
    whole: Path, tmp_path: Path, seeds: range
) -> None:
    refused = 0
    for seed in seeds:
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(whole, folder)
        model = rng.choice(sorted(DATA))
        names = (
            f"posteriors/small-{model}.json",
            f"data/{model}.json.zip",
            f"reference_draws/small-{model}.json.zip",
        )
        name = rng.choice(names)
        kind = mutate(rng, folder / name)
        error = problem(folder, model)
        assert error is None or type(error) in (ValueError, FileNotFoundError), (
            seed,
            kind,
            name,
            repr(error),
        )
        assert error is None or len(str(error).split()) > 5, (seed, kind, name, repr(error))
        refused += error is not None
        shutil.rmtree(folder)
    assert refused > len(seeds) / 3


# -- hostile files -------------------------------------------------------------------------------


def test_a_description_cannot_lead_out_of_the_folder(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "db"
    shutil.copytree(whole, folder)
    (tmp_path / "secret.json").write_text('{"K": 2, "y": [1, 2, 3, 4, 5, 6]}')
    file = folder / "posteriors" / "small-arK.json"
    description = json.loads(file.read_text())
    for key in ("data_name", "model_name", "reference_posterior_name"):
        file.write_text(json.dumps({**description, key: "../../secret"}))
        with pytest.raises(ValueError, match=rf"names of files.*{key}"):
            posteriordb("small-arK", folder)


def write_bomb(path: Path) -> None:
    """10 GB of zeros in a zip file of 10 MB: a deflated block of zeros, repeated."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    content = head + block * (10 * 1024 - 1) + compressor.flush()
    name, size = b"bomb.json", 10 * 2**30
    sizes = struct.pack("<HHQQ", 1, 16, size, len(content))  # ZIP64
    start = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 8, 0, 33, 0, 2**32 - 1, 2**32 - 1, len(name), 20)
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 8, 0, 33, 0, 2**32 - 1, 2**32 - 1, len(name), 20, 0, 0, 0, 0, 0
    )
    body, directory = start + name + sizes + content, entry + name + sizes
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(directory), len(body), 0)
    path.write_bytes(body + directory + end)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "hidden"])
def test_a_bomb_is_refused_before_memory_is_used(whole: Path, tmp_path: Path, declared: bool) -> None:
    folder = tmp_path / "db"
    shutil.copytree(whole, folder)
    bomb = folder / "data" / "arK.json.zip"
    write_bomb(bomb)
    if not declared:  # the directory says 100 bytes
        bomb.write_bytes(bomb.read_bytes().replace(struct.pack("<Q", 10 * 2**30), struct.pack("<Q", 100)))
    assert 9e6 < bomb.stat().st_size < 12e6
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=r"holds at least 10,737,418,240 bytes" if declared else "not a whole zip"
    ):
        posteriordb("small-arK", folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_a_pipe_in_a_folder_is_not_waited_for(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "db"
    shutil.copytree(whole, folder)
    os.mkfifo(folder / "posteriors" / "pipe.json")
    assert "pipe" in Folder(folder).names
    with pytest.raises(FileNotFoundError, match=r"there is no file at .*pipe\.json"):
        posteriordb("pipe", folder)
