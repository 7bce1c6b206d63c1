"""Data files: the folder, the cache, the check of their content, and what is said when they are missing."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import tracemalloc
from pathlib import Path

import pytest
import torch

from bayescore.data import images, split
from bayescore.data.files import Source, read
from bayescore.data.labelled_images import Images, parse_idx

CONTENT = b"\x00\x00\x08\x01\x00\x00\x00\x03\x01\x02\x03"
SOURCE = Source("set/file.gz", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), ())


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name in ("data", "cache"):
        (tmp_path / name / "set").mkdir(parents=True)
    (tmp_path / "cache" / "data" / "set").mkdir(parents=True)
    monkeypatch.setenv("BAYESCORE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_users_folder_comes_before_the_cache(folders):
    (folders / "data" / SOURCE.path).write_bytes(gzip.compress(CONTENT))
    (folders / "cache" / "data" / SOURCE.path).write_bytes(b"never read")
    assert read(SOURCE) == CONTENT


def test_the_cache_serves_without_a_folder(folders, monkeypatch):
    monkeypatch.delenv("BAYESCORE_DATA")
    (folders / "cache" / "data" / SOURCE.path).write_bytes(gzip.compress(CONTENT, 1))
    assert read(SOURCE) == CONTENT


@pytest.mark.parametrize("damage", ["not gzip", "cut off", "another content"])
def test_a_damaged_file_is_refused_by_name(folders, damage):
    bad = {
        "not gzip": b"no gzip",
        "cut off": gzip.compress(CONTENT)[:-6],
        "another content": gzip.compress(b"another"),
    }
    (folders / "data" / SOURCE.path).write_bytes(bad[damage])
    with pytest.raises(ValueError, match=r"file\.gz is not .*remove it"):
        read(SOURCE)


def test_a_compressed_bomb_is_refused_before_memory_is_used(folders):
    with gzip.open(folders / "data" / SOURCE.path, "wb") as file:
        for _ in range(1000):
            file.write(bytes(2**20))  # 1 GB of zeros in 1 MB
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"holds at least .* bytes, and at most 11 are expected; remove it"):
        read(SOURCE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_a_file_that_is_nowhere_names_the_remedy(folders):
    with pytest.raises(FileNotFoundError, match="set BAYESCORE_DATA"):
        read(SOURCE)


def test_a_download_that_does_not_match_never_enters_the_cache(folders, monkeypatch):
    pooch = pytest.importorskip("pooch")
    place = folders / "cache" / "data" / SOURCE.path

    def retrieve(address, known_hash, fname, path):
        (Path(path) / fname).write_bytes(gzip.compress(b"another"))
        assert not place.exists()

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    source = Source(SOURCE.path, SOURCE.sha256, SOURCE.size, ("https://example.org/file.gz",))
    with pytest.raises(FileNotFoundError, match=r"example\.org.*file\.gz is not the file it should be"):
        read(source)
    assert list(place.parent.iterdir()) == []


def test_the_licence_is_said_before_a_download(folders, monkeypatch, caplog):
    pooch = pytest.importorskip("pooch")

    def retrieve(address, known_hash, fname, path):
        assert "set/file.gz, at most 0.0 MB" in caplog.text
        assert "its licence: CC BY 4.0" in caplog.text
        (Path(path) / fname).write_bytes(gzip.compress(CONTENT))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    source = Source(SOURCE.path, SOURCE.sha256, SOURCE.size, ("https://example.org/f.gz",), "CC BY 4.0")
    assert read(source) == CONTENT
    caplog.clear()
    assert read(source) == CONTENT
    assert not caplog.text  # it is in the cache


def test_a_download_is_kept_in_the_cache(folders, monkeypatch):
    pooch = pytest.importorskip("pooch")
    addresses = []

    def retrieve(address, known_hash, fname, path):
        addresses.append(address)
        if len(addresses) == 1:
            raise OSError("no network")
        (Path(path) / fname).write_bytes(gzip.compress(CONTENT))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setenv("BAYESCORE_CACHE", str(folders / "new"))
    source = Source(
        SOURCE.path, SOURCE.sha256, SOURCE.size, ("https://one.org/file.gz", "https://two.org/file.gz")
    )
    assert read(source) == read(source) == CONTENT
    assert addresses == list(source.addresses)
    assert [path.name for path in (folders / "new" / "data" / "set").iterdir()] == ["file.gz"]


def test_idx_bytes_become_an_array():
    assert parse_idx(CONTENT).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="not an idx"):
        parse_idx(b"hello")
    cut, longer = CONTENT[:6], CONTENT + b"1"
    empty, many = b"\x00\x00\x08\x00", b"\x00\x00\x08\xff" + b"\xff" * 1020
    for bad in (cut, longer, CONTENT[:-1], empty, many):
        with pytest.raises(ValueError, match="not a whole idx file"):
            parse_idx(bad)


def test_unknown_sets_and_parts_are_refused():
    with pytest.raises(ValueError, match="mnist"):
        images("minst")
    with pytest.raises(ValueError, match="'train' or 'test'"):
        images("digits", "validation")
    with pytest.raises(ValueError, match="only the test part"):
        images("fashion_mnist", "train")


def test_digits_are_standardised_and_need_no_download():
    pytest.importorskip("sklearn")
    train, test = images("digits"), images("digits", "test")
    assert (len(train), len(test)) == (1200, 597)
    assert abs(float(train.x.mean())) < 0.01
    assert abs(float(train.x.std()) - 1) < 0.01


def made(count, classes=10):
    return Images(torch.arange(count, dtype=torch.float32), torch.arange(count) % classes)


@pytest.mark.parametrize("count", [60, 300])
def test_a_split_never_overlaps_and_repeats_by_seed(count):
    one, again, other = (split(made(1000), count, seed, validation=400) for seed in (0, 0, 1))
    assert len(one.train) == count
    assert len(one.validation) == 400
    assert not set(one.train.x.tolist()) & set(one.validation.x.tolist())
    assert torch.equal(one.train.x, again.train.x)
    assert not torch.equal(one.train.x, other.train.x)


def test_few_images_hold_every_class_equally_often():
    parts = split(made(1000), 60, 3)
    assert torch.bincount(parts.train.y).tolist() == [6] * 10


def test_a_split_leaves_images_to_choose_by():
    with pytest.raises(ValueError, match="at most 99"):
        split(made(100), 100, 0)


def test_a_path_without_an_ending_stands_for_its_compressed_forms(folders):
    source = Source("set/file", SOURCE.sha256, SOURCE.size)
    (folders / "data" / "set" / "file.xz").write_bytes(lzma.compress(CONTENT))
    assert read(source) == CONTENT


@pytest.mark.parametrize("damage", ["cut off", "not xz"])
def test_a_damaged_xz_file_is_refused_by_name(folders, damage):
    whole = lzma.compress(CONTENT)
    (folders / "data" / "set" / "file.xz").write_bytes(whole[:-20] if damage == "cut off" else CONTENT)
    with pytest.raises(ValueError, match=r"file\.xz is not a whole xz file .*remove it"):
        read(Source("set/file.xz", SOURCE.sha256, SOURCE.size))


def test_an_xz_file_cannot_ask_for_gigabytes(folders):
    filters = [
        {"id": lzma.FILTER_LZMA2, "dict_size": 1536 * 2**20, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}
    ]
    try:
        packed = lzma.compress(CONTENT, filters=filters)
    except MemoryError:
        pytest.skip("making such a file takes more memory than there is")
    (folders / "data" / "set" / "file.xz").write_bytes(packed)
    with pytest.raises(ValueError, match=r"file\.xz is not a whole xz file"):
        read(Source("set/file.xz", SOURCE.sha256, SOURCE.size))


def test_an_xz_bomb_is_refused(folders):
    (folders / "data" / "set" / "file.xz").write_bytes(lzma.compress(bytes(2**24)))
    with pytest.raises(ValueError, match="at most 11 are expected"):
        read(Source("set/file.xz", SOURCE.sha256, SOURCE.size))
