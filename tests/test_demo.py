"""The demonstration: three networks on equal terms, a table and a picture."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import demo

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def readers():
    return demo.demonstrate(epochs=2)


def test_the_unseen_digits_are_never_shown_in_training():
    train, test, unseen = demo.digits()
    assert int(train.y.max()) < demo.KNOWN
    assert int(test.y.max()) < demo.KNOWN
    assert int(unseen.y.min()) >= demo.KNOWN


def test_table_fits_eighty_columns(readers):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo.make_table(readers))
    text = console.export_text()
    assert "…" not in text
    for name in demo.METHODS:
        assert name in text


def test_main_writes_a_small_picture(readers, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "demonstrate", lambda: readers)
    demo.main()
    picture = tmp_path / demo.PLACE
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200_000
    assert "OOD AUROC" in capsys.readouterr().out
