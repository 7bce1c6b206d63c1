"""Records: strict JSON, names of runs, and a file that survives kills, full disks and a second writer."""

from __future__ import annotations

import errno
import json
import math
import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_tools import make_record, read_lines

from bayescore_lab.engine import Records
from bayescore_lab.engine import records as records_module
from bayescore_lab.engine.records import RecordStore, dumps, encode, loads, run_id

FIELDS = "experiment run method seed config metrics trace score_calls seconds status"
FIELDS += " commit versions machine started"


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path)


def test_a_line_has_exactly_the_fields_of_a_record(store):
    store.append(make_record("a"))
    assert " ".join(read_lines(store.path)[0]) == FIELDS


def test_numbers_that_are_none_come_back(store):
    store.append(make_record("a", kl=math.inf))
    store.append(make_record("b", kl=math.nan))
    first, second = RecordStore(store.path.parent).read()
    assert first == make_record("a", kl=math.inf)
    assert math.isnan(second.metrics["kl"])
    assert math.isnan(second.trace["kl"][1])


def test_a_finished_run_is_never_added_twice_and_a_failed_one_may_be_tried_again(store):
    assert store.append(make_record("a", "failed"))
    assert store.append(make_record("a"))
    assert not store.append(make_record("a"))
    assert not RecordStore(store.path.parent).append(make_record("a"))
    assert [record.done for record in store.read()] == [False, True]


@pytest.mark.parametrize("half", [b'{"experiment":"toy","ru', b"{}", b"\0\0\0\0"])
def test_a_half_written_last_line_is_ignored_when_reading_and_cut_off_when_appending(store, half):
    store.append(make_record("a"))
    whole = store.path.read_bytes()
    store.path.write_bytes(whole + half)
    again = RecordStore(store.path.parent)
    assert [record.run for record in again.read()] == ["a"]
    assert again.done() == {"a"}
    assert again.corrupt == {}
    assert store.path.read_bytes() == whole + half
    again.append(make_record("b"))
    assert store.path.read_bytes() == whole + make_record("b").line()


@pytest.mark.parametrize("damage", [b"garbage \xff\r\r", b'{"valid": "json"}', b"", b"\0\0\0"])
def test_a_corrupt_line_in_the_middle_is_reported_by_its_number_and_kept(store, damage):
    for name in "abc":
        store.append(make_record(name))
    lines = store.path.read_bytes().split(b"\n")
    lines[1] = damage
    store.path.write_bytes(b"\n".join(lines))
    again = RecordStore(store.path.parent)
    assert [record.run for record in again.read()] == ["a", "c"]
    assert list(again.corrupt) == [2]
    again.append(make_record("d"))
    assert store.path.read_bytes().split(b"\n")[1] == damage
    assert again.done() == {"a", "c", "d"}


def test_a_last_line_of_another_format_is_reported_and_not_removed(store):
    store.append(make_record("a"))
    with store.path.open("ab") as file:
        file.write(b'{"valid": "json"}\n')
    again = RecordStore(store.path.parent)
    assert [record.run for record in again.read()] == ["a"]
    assert list(again.corrupt) == [2]
    assert len(read_lines(store.path)) == 2


def everything_that_reads(folder):
    store = RecordStore(folder)
    return store.done(), store.read(), store.names()


def test_reading_never_writes_not_even_through_a_link(tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "e"
    precious.write_bytes(b"a\nprecious\n")
    precious.chmod(0o444)
    folder.mkdir()
    (folder / "records.jsonl").symlink_to(precious)
    assert everything_that_reads(folder) == (set(), [], set())
    assert precious.read_bytes() == b"a\nprecious\n"


def a_link(path):
    path.with_name("precious").write_bytes(b"a\nprecious")
    path.symlink_to("precious")


def a_link_to_nothing(path):
    path.symlink_to("precious")


def a_hard_link(path):
    path.with_name("precious").write_bytes(b"a\nprecious")
    path.hardlink_to(path.with_name("precious"))


def a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (a_link, "is a symbolic link where a regular file is expected"),
        (a_link_to_nothing, "is a symbolic link where a regular file is expected"),
        (a_device, "is a symbolic link where a regular file is expected"),
        (a_hard_link, r"has 2 names \(hard links\)"),
        (os.mkfifo, "is a FIFO where a regular file is expected"),
        (os.mkdir, "is a folder where a regular file is expected"),
    ],
)
def test_appending_refuses_what_it_does_not_own_and_leaves_it_alone(store, make, kind):
    make(store.path)
    names = sorted(store.path.parent.iterdir())
    for refuse in (store.check, lambda: store.append(make_record("a"))):
        with pytest.raises(OSError, match=f"{kind}.*; put a copy in its place, move it away, or choose"):
            refuse()
    assert sorted(store.path.parent.iterdir()) == names
    if (precious := store.path.with_name("precious")).exists():
        assert precious.read_bytes() == b"a\nprecious"


def test_appending_refuses_the_file_of_another_user(store, monkeypatch):
    store.append(make_record("a"))
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(OSError, match=f"belongs to another user .number {mine}.; put a copy in its place"):
        store.append(make_record("b"))
    assert RecordStore(store.path.parent).done() == {"a"}


@pytest.mark.parametrize("make", [a_device, os.mkfifo, os.mkdir])
def test_reading_refuses_what_may_never_end(store, make):
    make(store.path)
    for read in (store.read, store.done):
        with pytest.raises(OSError, match=r"is a (device|FIFO|folder) where a regular file is expected"):
            read()


def test_a_line_that_is_too_long_is_left_out_and_never_written(store, monkeypatch):
    store.append(make_record("a"))
    size = len(make_record("a").line())
    with store.path.open("ab") as file:
        file.write(b'{"experiment":"' + b"x" * 3 * size + b'"}\n' + make_record("b").line())
    monkeypatch.setattr(records_module, "SIZE_LIMIT", size)
    again = RecordStore(store.path.parent)
    assert again.done() == {"a", "b"}
    assert again.corrupt == {2: f"it has more than {size:,} bytes"}
    with pytest.raises(OSError, match=f"longer than the {size:,} that are read back; record less"):
        again.append(make_record("a longer name"))


def changed(**fields):
    return (dumps(vars(make_record("x")) | fields) + "\n").encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 100_000 + b"\n", "nested more than 64 levels deep"),
        (b"[" * 100_000 + b"]" * 100_000 + b"\n", "nested more than 64 levels deep"),
        (changed(config={"a": json.loads("[" * 200 + "]" * 200)}), "nested more than 64 levels deep"),
        (
            changed(metrics={"kl": [1.0]}),
            "metrics['kl'] is a list; expected a number or true or false or a str",
        ),
        (changed(metrics={"kl": None}), "metrics['kl'] is None; expected a number"),
        (changed(metrics=[1]), "the record['metrics'] is a list; expected an object"),
        (changed(trace={"kl": 1}), "trace['kl'] is 1; expected a list"),
        (changed(trace={"kl": ["x"]}), "trace['kl'][0] is 'x'; expected a number"),
        (changed(trace={"kl": [1], "score_calls": []}), "the lists of a trace must have one length"),
        (changed(seed=True), "the record['seed'] is True; expected a whole number"),
        (changed(seed=10**400), "a whole number has 1329 bits; expected at most 64"),
        (changed(run=["a"]), "the record['run'] is a list; expected a string"),
        (changed(seconds="long"), "the record['seconds'] is 'long'; expected a number"),
        (changed(status={"state": "undone"}), "['state'] is 'undone'; expected one of 'done', 'failed'"),
        (changed(status={"state": "done"}), "the record['status'] lacks 'ended'"),
        (changed(versions={"python": 3}), "the record['versions']['python'] is 3; expected a string"),
        (changed(more=1), "the record has the unknown field 'more'"),
        (changed(commit="@").replace(b"@", b"\\ud800"), "a character that is not in Unicode"),
        (b"[]\n", "the record is a list; expected an object"),
        (b"{}\n", "the record lacks 'experiment'"),
    ],
)
def test_a_line_of_the_wrong_kinds_is_left_out_with_its_reason_and_the_rest_is_read(store, line, reason):
    store.path.write_bytes(make_record("a").line() + line + make_record("b").line())
    assert store.done() == {"a", "b"}
    assert list(store.corrupt) == [2]
    assert reason in store.corrupt[2]


@pytest.mark.parametrize("accepted", [0, 7])
def test_a_full_disk_leaves_the_file_as_it_was(store, monkeypatch, accepted):
    store.append(make_record("a"))
    before = store.path.read_bytes()
    write = os.write

    def full(file, data):
        if not accepted:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:accepted])

    monkeypatch.setattr(records_module.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        store.append(make_record("b"))
    assert store.path.read_bytes() == before
    monkeypatch.undo()
    assert store.append(make_record("b"))
    assert [record.run for record in store.read()] == ["a", "b"]


def test_many_writers_never_mix_their_lines(tmp_path):
    def write(worker: int) -> None:
        mine = RecordStore(tmp_path)
        for place in range(20):
            mine.append(make_record(f"own {worker} {place}"))
            mine.append(make_record(f"shared {place}"))

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = [line["run"] for line in read_lines(tmp_path / "records.jsonl")]
    assert len(runs) == len(set(runs)) == 4 * 20 + 20


def test_a_file_that_was_replaced_is_read_anew(store):
    store.append(make_record("a"))
    store.append(make_record("b"))
    store.path.write_bytes(make_record("c").line())
    assert store.done() == {"c"}


def test_records_may_be_in_several_files_of_which_one_grows(tmp_path):
    finished = tmp_path / "records-first.jsonl"
    finished.write_bytes(make_record("a").line() + b"nonsense\n")
    store = RecordStore(tmp_path)
    assert store.append(make_record("b"))
    assert store.done() == {"a", "b"}
    assert [record.run for record in store.read()] == ["a", "b"]
    assert [(path, line) for path, line, _ in store.damage] == [(finished, 2)]
    assert finished.read_bytes() == make_record("a").line() + b"nonsense\n"


def test_records_select_by_config_and_read_metrics():
    records = Records([make_record("a", kl=1.0), make_record("b", kl=math.nan)])
    assert list(records.arms) == ["Ours"]
    assert len(records.where(steps=3)) == 2
    assert len(records.where(steps=4)) == 0
    assert records.values("kl", math.inf).tolist() == [1.0, math.inf]
    assert records.values("absent", 0.0).tolist() == [0.0, 0.0]
    assert records.values(lambda record: record.score_calls).tolist() == [2.0, 2.0]
    assert records[:1].seeds == [0]


@given(st.lists(st.floats(), max_size=20))
def test_every_float_survives_the_round_trip_bitwise(values):
    back = loads(dumps(values))
    assert np.array(back, float).tobytes() == np.where(np.isnan(values), math.nan, values).tobytes()


def test_what_is_written_is_strict_json():
    text = dumps({"a": [math.nan, math.inf, -math.inf]})

    def refuse(word):
        raise AssertionError(word)

    assert json.loads(text, parse_constant=refuse) == {"a": ["NaN", "Infinity", "-Infinity"]}


def test_arrays_tensors_and_scalars_become_plain():
    value = {"x": np.float32(0.5), "n": np.int64(3), "b": np.bool_(True), "t": torch.ones(2), "s": (1, 2)}
    assert encode(value) == {"x": 0.5, "n": 3, "b": True, "t": [1.0, 1.0], "s": [1, 2]}


def test_what_json_cannot_hold_is_named():
    with pytest.raises(TypeError, match=r"config\['a'\]\[1\] is a object, which JSON cannot hold"):
        encode({"a": [1, object()]}, "config")


def test_a_run_is_named_by_all_that_defines_it_and_by_nothing_else():
    base = run_id("toy", "Ours", 0, {"a": 1, "b": 2.0})
    assert base == run_id("toy", "Ours", 0, {"b": 2.0, "a": 1})
    others = [("boy", "Ours", 0, {"a": 1, "b": 2.0}), ("toy", "ADVI", 0, {"a": 1, "b": 2.0})]
    others += [("toy", "Ours", 1, {"a": 1, "b": 2.0}), ("toy", "Ours", 0, {"a": 1, "b": 2.5})]
    assert len({base, *(run_id(*other) for other in others)}) == 5
