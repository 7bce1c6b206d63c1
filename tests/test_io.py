"""Files: whole or not at all, private while they are written, and readable only as what they are."""

from __future__ import annotations

import os
import stat
import threading

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bayescore.io import MAX_HEADER, read_tensors, refusing_damage, replacing, write_bytes, write_tensors
from file_damage import with_header


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_the_block_has_ended(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with replacing(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_file_that_cannot_be_moved_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_bytes(tmp_path / "folder", b"content")
    assert names(tmp_path) == ["folder"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to save file in; make it"):
        write_bytes(tmp_path / "nowhere" / "file", b"content")


@pytest.mark.parametrize("name", ["file.tmp", "file.part", ".file.tmp", "file~", ".bayescore-file", "file"])
def test_a_planted_link_is_not_followed(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    write_bytes(folder / "file", b"content")
    assert victim.read_text() == "mine"
    assert (folder / "file").read_bytes() == b"content"
    assert not (folder / "file").is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_file_is_written_where_only_its_owner_can_go(tmp_path):
    with replacing(tmp_path / "file") as part:
        part.write_text("content")
        assert part.parent.parent == tmp_path  # the same file system: the move is one step
        assert stat.S_IMODE(part.parent.stat().st_mode) == 0o700
    with replacing(tmp_path / "file") as again:
        again.write_text("content")
    assert again.parent != part.parent


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_any_new_file(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "file", b"content")
        write_tensors(tmp_path / "tensors", {}, {"x": torch.ones(2)})
        (tmp_path / "plain").write_text("content")
    finally:
        os.umask(before)
    for name in ("file", "tensors", "plain"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


def test_writers_of_one_file_never_fail_and_a_reader_sees_whole_contents(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 50_000 for number in range(2)]
    problems: list[BaseException] = []
    path.write_bytes(contents[0])

    def write(content):
        try:
            for _ in range(60):
                write_bytes(path, content)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        seen.add(path.read_bytes())
    for thread in threads:
        thread.join()
    assert problems == []
    assert seen <= set(contents)
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


def test_tensors_and_header_come_back_as_they_were(tmp_path):
    header = {"format": "toy", "version": 3, "names": ["a", "é"], "nested": {"x": None, "y": 0.1}}
    tensors = {
        "double": torch.randn(3, 4, dtype=torch.float64),
        "half": torch.randn(5).bfloat16(),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "empty": torch.zeros(0, 2),
        "scalar": torch.tensor(2.5),
        "needs gradient": torch.ones(2, requires_grad=True),
    }
    shared = tensors["double"][0]
    write_tensors(tmp_path / "file", header, {**tensors, "shared": shared})
    found, read = read_tensors(tmp_path / "file", "toy")
    assert found == header
    assert read.keys() == {*tensors, "shared"}
    for name, tensor in {**tensors, "shared": shared}.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_header_that_is_no_json_is_refused_before_anything_is_written(tmp_path, number):
    with pytest.raises(ValueError, match="JSON"):
        write_tensors(tmp_path / "file", {"format": "toy", "loss": number}, {})
    assert names(tmp_path) == []


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
    write_tensors(tmp_path / "a", {"format": "f", "one": np.int64(3), "two": np.float32(0.5)}, {})
    assert read_tensors(tmp_path / "a", "f")[0] == {"format": "f", "one": 3, "two": 0.5}


def test_another_format_is_refused(tmp_path):
    write_tensors(tmp_path / "file", {"format": "toy"}, {"x": torch.ones(2)})
    with pytest.raises(ValueError, match="its format is 'toy', not 'other'"):
        read_tensors(tmp_path / "file", "other")
    write_tensors(tmp_path / "bare", {}, {"x": torch.ones(2)})
    with pytest.raises(ValueError, match="its format is None, not 'toy'"):
        read_tensors(tmp_path / "bare", "toy")


def test_a_header_that_is_no_object_is_refused(tmp_path):
    write_tensors(tmp_path / "file", {}, {"x": torch.ones(2)})
    with_header(tmp_path / "file", [1, 2])
    with pytest.raises(ValueError, match="its header is a list, not an object"):
        read_tensors(tmp_path / "file", "toy")


def test_a_safetensors_file_of_another_program_is_refused(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "file")
    with pytest.raises(ValueError, match="it has no JSON header"):
        read_tensors(tmp_path / "file", "toy")


def test_a_file_without_a_checksum_is_refused(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "file", {"json": '{"format": "toy"}'})
    with pytest.raises(ValueError, match="it has no checksum to show that it is whole; write it again"):
        read_tensors(tmp_path / "file", "toy")


def test_every_single_flipped_bit_is_refused(tmp_path):
    tensors = {"a": torch.tensor([1.0, 2.0]), "b": torch.arange(3), "c": torch.zeros(0)}
    write_tensors(tmp_path / "file", {"format": "toy", "names": ["a", "é"]}, tensors)
    data = (tmp_path / "file").read_bytes()
    for place in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        (tmp_path / "file").write_bytes(damaged)
        with pytest.raises((ValueError, SafetensorError)):
            read_tensors(tmp_path / "file", "toy")


def test_tensors_that_changed_places_or_kinds_are_refused(tmp_path):
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    write_tensors(tmp_path / "file", {"format": "toy"}, {"a": one, "b": two})
    data = (tmp_path / "file").read_bytes()
    for old, new in ((b'"a"', b'"c"'), (b'"F32"', b'"I32"'), (b"[2]", b"[1,2]"), (b'"a"', b'"A"')):
        assert old in data
        found = data.replace(old, new)
        size = int.from_bytes(data[:8], "little") + len(found) - len(data)
        (tmp_path / "file").write_bytes(size.to_bytes(8, "little") + found[8:])
        with pytest.raises(ValueError, match="do not match their checksum; take an undamaged copy"):
            read_tensors(tmp_path / "file", "toy")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_header_with_a_number_that_json_or_a_float_cannot_hold_is_refused(tmp_path, number):
    write_tensors(tmp_path / "file", {}, {})
    with_header(tmp_path / "file", f'{{"format": "toy", "loss": {number}}}')
    with pytest.raises(ValueError, match=f"its header holds .*{number}"):
        read_tensors(tmp_path / "file", "toy")


def test_a_header_beyond_64_mb_is_neither_written_nor_read(tmp_path):
    size = 64 * 2**20
    assert size == MAX_HEADER
    with pytest.raises(ValueError, match=r"header has .* bytes, more than the 67,108,864 that a file may"):
        write_tensors(tmp_path / "file", {"format": "toy", "text": "x" * size}, {})
    assert names(tmp_path) == []
    (tmp_path / "file").write_bytes((size + 1).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="more than the 67,108,864 that a file may have"):
        read_tensors(tmp_path / "file", "toy")


@pytest.mark.parametrize(
    "header",
    [
        '"__metadata__":{' + ",".join(f'"{n:x}":""' for n in range(3_000_000)) + "}",
        ",".join(f'"{n:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(500_000)),
        '"__metadata__":{"sha256":"","json":"' + "[]," * 10_000_000 + '"}',
    ],
    ids=["metadata", "tensors", "json"],
)
def test_a_header_that_would_fill_the_memory_is_refused_before_it_is_parsed(tmp_path, header):
    content = f"{{{header}}}".encode()
    assert len(content) < MAX_HEADER
    (tmp_path / "file").write_bytes(len(content).to_bytes(8, "little") + content)
    with pytest.raises(ValueError, match=r"its header holds .* could take [\d,]+ MB, and at most 300 MB"):
        read_tensors(tmp_path / "file", "toy")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("mean"), "it lacks 'mean'"),
        (RecursionError("maximum recursion depth"), "its header is nested too deeply"),
        (OverflowError("int too large"), "int too large"),
        (RuntimeError("first line\nsecond line"), "first line"),
        (AttributeError(), "AttributeError"),
        (SafetensorError("InvalidHeader"), "InvalidHeader"),
    ],
)
def test_whatever_a_damaged_file_raises_becomes_one_sentence(error, reason):
    with pytest.raises(ValueError, match="is not a readable toy") as caught, refusing_damage("file", "toy"):
        raise error
    assert str(caught.value) == (
        f"file is not a readable toy (damaged, cut short, or written by something else): {reason}"
    )
    assert caught.value.__cause__ is error


def test_the_same_content_is_always_the_same_bytes(tmp_path):
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2), "é": torch.zeros(0)}
    files = set()
    for number in range(20):
        write_tensors(tmp_path / "file", {"format": "toy", "x": "é"}, tensors)
        files.add((tmp_path / "file").read_bytes())
        assert read_tensors(tmp_path / "file", "toy")[0] == {"format": "toy", "x": "é"}, number
    assert len(files) == 1


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(tmp_path, monkeypatch):
    path, opened = tmp_path / "file", []

    def write(number):
        write_tensors(path, {"format": "toy", "number": number}, {"a": torch.full((1000,), float(number))})

    def open_and_replace(*words, **options):
        """safe_open opens the file twice: its header and its numbers may be those of two files."""
        opened.append(words)
        if len(opened) <= 3:
            write(len(opened))
            raise SafetensorError("a header of one file and numbers of another")
        return safe_open(*words, **options)

    write(0)
    monkeypatch.setattr("bayescore.io.safe_open", open_and_replace)
    header, tensors = read_tensors(path, "toy")
    assert header["number"] == 3
    assert bool((tensors["a"] == 3).all())

    def fail(*_, **__):
        opened.append(())
        raise SafetensorError("damage")

    monkeypatch.setattr("bayescore.io.safe_open", fail)
    opened.clear()
    with pytest.raises(SafetensorError, match="damage"):
        read_tensors(path, "toy")
    assert len(opened) == 1
