"""Damaged and hostile PosteriorDB folders: every one is refused with a sentence, or gives valid data."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from bayescore.targets.posterior_db import Folder, posteriordb
from file_damage import mutate
from toy_posteriordb import DATA, load, write_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("posteriordb")
    write_folder(root)
    return root


def problem(folder: Path, model: str) -> Exception | None:
    try:
        load(folder, model)
    except Exception as error:
        return error
    return None


def test_a_whole_folder_is_read(whole: Path) -> None:
    for model in DATA:
        load(whole, model)


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
