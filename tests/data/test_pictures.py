"""Pictures, tables, parts, views and batches."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import bayescore.data as data
from bayescore.data.pictures import Pictures, decode

Image = pytest.importorskip("PIL.Image")


def image(path, colour=(200, 0, 0), size=(20, 10), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    for name, colour in {"a": (200, 0, 0), "b": (0, 200, 0)}.items():
        for i in range(10):
            image(tmp_path / "root" / name / f"{i}.png", colour, (10 + i, 30 - i))
    return tmp_path / "root"


def test_a_folder_is_one_tensor_of_bytes(folder):
    found = data.read_pictures(folder, 16)
    assert found.pixels.shape == (20, 3, 16, 16)
    assert found.pixels.dtype == torch.uint8
    assert found.classes == ("a", "b")
    assert found.y.tolist() == [0] * 10 + [1] * 10
    assert found.pixels[0, :, 8, 8].tolist() == [200, 0, 0]
    assert found.pixels[10, :, 8, 8].tolist() == [0, 200, 0]


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA", "1", "LA", "I;16"])
def test_pictures_of_every_mode_are_read_in_colour_and_grey(tmp_path, mode):
    kind = "tif" if mode in ("CMYK", "I;16") else "png"
    path = tmp_path / f"x.{kind}"
    source = (
        Image.new("I;16", (20, 10)) if mode == "I;16" else Image.new("RGB", (20, 10), (9, 9, 9)).convert(mode)
    )
    source.save(path)
    assert decode(path.read_bytes(), 8).shape == (3, 8, 8)
    assert decode(path.read_bytes(), 8, 1).shape == (1, 8, 8)


@pytest.mark.parametrize(("kind", "mode"), [("png", np.uint16), ("tif", np.uint16), ("tif", np.int32)])
def test_a_picture_of_16_bits_keeps_its_shades(tmp_path, kind, mode):
    shades = np.zeros((8, 8), mode)
    shades[:, 4:] = 40_000
    Image.fromarray(shades).save(tmp_path / f"x.{kind}")
    found = decode((tmp_path / f"x.{kind}").read_bytes(), 8)
    assert found[:, 4, 0].tolist() == [0, 0, 0]
    assert found[:, 4, 7].tolist() == [40_000 >> 8] * 3


@pytest.mark.parametrize("shades", [np.full((8, 8), 0.5, np.float32), np.full((8, 8), 70_000, np.int32)])
def test_a_picture_whose_white_is_unknown_is_refused(tmp_path, shades):
    Image.fromarray(shades).save(tmp_path / "x.tif")
    with pytest.raises(ValueError, match="save it with 8 or 16 bits"):
        decode((tmp_path / "x.tif").read_bytes(), 8)


def test_a_photograph_is_turned_upright(tmp_path):
    half = np.zeros((10, 20, 3), np.uint8)
    half[:, :10] = 255  # white on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.fromarray(half).save(tmp_path / "x.png", exif=exif)
    shown = decode((tmp_path / "x.png").read_bytes(), 10)[0]
    assert shown[:3].float().mean() > 200
    assert shown[-3:].float().mean() < 50


@pytest.mark.parametrize("cut", [0, 10, 60, 200])
def test_a_file_that_was_cut_is_a_sentence(tmp_path, cut):
    path = image(tmp_path / "x.jpg", size=(64, 64))
    with pytest.raises(ValueError, match="it is"):
        decode(path.read_bytes()[:cut], 8)


def test_any_damage_to_a_picture_is_read_or_a_sentence(tmp_path):
    rng = np.random.default_rng(0)
    for kind in ("png", "jpg", "gif", "bmp", "tif"):
        whole = image(tmp_path / f"x.{kind}", size=(32, 32)).read_bytes()
        for _ in range(30):
            copy = bytearray(whole)
            copy[rng.integers(len(copy))] ^= 1 << rng.integers(8)
            try:
                assert decode(bytes(copy), 8).shape == (3, 8, 8)
            except ValueError as problem:
                assert str(problem).startswith("it ")  # noqa: PT017


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="too many pixels"):
        decode(image(tmp_path / "x.png", size=(200, 200)).read_bytes(), 8)


def test_problems_are_named_and_skipped_or_refused(folder):
    (folder / "a" / "x.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"1 file is no readable picture.*x\.png: it is no picture"):
        found = data.read_pictures(folder, 8)
    assert len(found) == 20
    assert len(found.skipped) == 1
    with pytest.raises(ValueError, match=r"x\.png"):
        data.read_pictures(folder, 8, problems="refuse")


def test_a_class_without_a_readable_picture_is_left_out(folder):
    (folder / "empty").mkdir()
    (folder / "empty" / "x.png").write_bytes(b"no picture")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*1 file is no readable picture")
        with pytest.warns(UserWarning, match="no picture of the class 'empty' can be decoded"):
            found = data.read_pictures(folder, 8)
    assert found.classes == ("a", "b")


def test_decoded_pictures_are_kept_in_the_cache_while_the_files_are_the_same(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "cache"))
    one = data.read_pictures(folder, 8, cached=True)
    with monkeypatch.context() as patch:
        patch.setattr("bayescore.data.pictures.decode", None)  # would raise
        again = data.read_pictures(folder, 8, cached=True)
    assert torch.equal(one.pixels, again.pixels)
    image(folder / "a" / "0.png", (0, 0, 99), (40, 40))
    assert not torch.equal(data.read_pictures(folder, 8, cached=True).pixels, one.pixels)


def test_folders_of_parts_are_kept_apart(tmp_path):
    for part in ("train", "val", "test"):
        for name in ("a", "b"):
            for i in range(3):
                image(tmp_path / "root" / part / name / f"{i}.png")
    parts = data.parts(data.read_pictures(tmp_path / "root", 8))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (6, 6, 6)
    assert all("/val/" in name for name in parts.validation.names)


def labelled(counts, part=()):
    y = torch.cat([torch.full((n,), i) for i, n in enumerate(counts)])
    names = tuple(str(i) for i in range(len(y)))
    return Pictures(torch.zeros(len(y), 1, 1, 1), y, tuple("abc")[: len(counts)], names, part)


def test_parts_are_disjoint_cover_all_and_repeat_under_a_seed():
    every = labelled([50, 30, 1])
    parts = data.parts(every, seed=3)
    names = [*parts.train.names, *parts.validation.names, *parts.test.names]
    assert sorted(names, key=int) == list(every.names)
    assert data.parts(every, seed=3).test.names == parts.test.names
    assert data.parts(every, seed=4).test.names != parts.test.names
    assert 2 in parts.train.y.tolist()  # the only one of its class is learned from
    assert set(parts.test.y.tolist()) == {0, 1}


def test_the_official_training_part_is_halved_exactly():
    part = ("train",) * 61 + ("test",) * 20
    parts = data.parts(labelled([50, 30, 1], part))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (31, 30, 20)


def test_too_few_data_are_refused():
    with pytest.raises(ValueError, match="2 data of 2 classes are too few to be divided"):
        data.parts(labelled([1, 1]))


def test_the_middle_of_a_picture_is_seen_and_standardised():
    view = data.View(4, 6, (0.5,), (0.25,))
    pixels = torch.zeros(1, 1, 6, 6, dtype=torch.uint8)
    pixels[..., 1:5, 1:5] = 255
    assert torch.allclose(view(pixels), torch.full((1, 1, 4, 4), 2.0))
    assert data.View.of(view.config()) == view


def test_augmented_views_repeat_under_a_seed_and_stay_within_the_range():
    view = data.View(8, 12)
    pixels = torch.randint(
        0, 256, (16, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    one, again, other = (view.augment(pixels, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    low, high = (view._standardised(torch.full((1, 3, 1, 1), v)) for v in (0.0, 255.0))
    assert bool((one >= low - 1e-5).all())
    assert bool((one <= high + 1e-5).all())


def test_without_chance_an_augmented_view_is_the_whole_picture(monkeypatch):
    view = data.View(12, 12)
    pixels = torch.randint(0, 256, (2, 3, 12, 12), dtype=torch.uint8)
    middle = torch.tensor([1.0, 0.5, 0.5, 0.5, 1.0, 0.5])  # all of the area, square, not mirrored, not turned
    monkeypatch.setattr(torch, "rand", lambda shape, generator: middle[:, None].expand(shape))
    assert torch.allclose(view.augment(pixels, torch.Generator()), view(pixels), atol=1e-4)


def test_batches_cover_all_rows_and_repeat_under_a_seed():
    y = torch.arange(10)
    batches = data.Batches(lambda rows, rng: rows.float(), y, 4, seed=0)
    one, two = (torch.cat([labels for _, labels in batches]) for _ in range(2))
    assert sorted(one.tolist()) == y.tolist()
    assert not torch.equal(one, two)
    again = data.Batches(lambda rows, rng: rows.float(), y, 4, seed=0)
    assert torch.equal(torch.cat([labels for _, labels in again]), one)
    assert len(batches) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("text,label\n", "no row below its header"),
        ("", "is empty"),
        ("text,label\na,b,c\n", r"line 2: 3 cells where the header has 2 columns"),
        ("text,label\n,x\n", "line 2: the column 'text' is empty"),
        ("text,label\na,x\nb,x\n", "one class only, 'x'"),
        ("words,label\na,x\n", "has no column 'text'"),
        ("text,label,split\na,x,train\nb,y,nowhere\n", "line 3: a part is train, validation or test"),
    ],
)
def test_a_table_that_is_no_table_of_texts_is_a_sentence(tmp_path, text, sentence):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        data.read_texts(tmp_path / "x.csv")


def test_numbers_are_classes_in_their_order(tmp_path):
    (tmp_path / "x.csv").write_text("text,label\n" + "".join(f"t{i},{i}\n" for i in (10, 2, 1, 2)))
    found = data.read_texts(tmp_path / "x.csv")
    assert found.classes == ("1", "2", "10")
    assert found.y.tolist() == [2, 1, 0, 1]


def test_named_sets_are_read_from_the_archives(monkeypatch, tmp_path):
    import zipfile

    folder = tmp_path / "dtd10"
    folder.mkdir()
    rows = ["file,label,class"]
    with zipfile.ZipFile(folder / "dtd10_96px_jpeg.zip", "w") as archive:
        for label, name in enumerate(("banded", "bumpy")):
            for i in range(120):
                path = image(tmp_path / "x.jpg", (90 * label, 0, 0), (96, 96))
                archive.writestr(f"{name}_{i}.jpg", path.read_bytes())
                rows.append(f"{name}_{i}.jpg,{label},{name}")
    (folder / "labels.csv").write_text("\n".join(rows))
    monkeypatch.setenv("BAYESCORE_DATA", str(tmp_path))
    found = data.named_pictures("dtd10", 8)
    parts = data.parts(found)
    assert [len(p) for p in (parts.train, parts.validation, parts.test)] == [80, 80, 80]
    assert parts.test.y.bincount().tolist() == [40, 40]
    with pytest.raises(ValueError, match="did you mean 'pets'"):
        data.named_pictures("pet")
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "cache"))
    with pytest.raises((FileNotFoundError, ImportError), match="'aircraft'"):
        data.named_pictures("aircraft")
