"""The demonstration: networks on equal terms, tables, sentences and pictures."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import demo

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def found():
    return demo.demonstrate(seeds=2, epochs=2, say=lambda line: None)


@pytest.fixture(scope="module")
def curves():
    return demo.gap_curves(epochs=5)


def test_the_unseen_digits_are_never_shown_in_training():
    rows = demo.digits(0)
    assert int(rows.y.max()) < demo.KNOWN
    assert int(rows.y_test.max()) < demo.KNOWN
    assert len(rows.unseen) > 100
    assert not torch.equal(rows.x, demo.digits(1).x)


def test_no_training_point_of_the_curve_is_in_the_gap():
    assert float(demo.gap_data()[0].abs().min()) > 1


def test_every_network_is_scored_on_every_seed(found):
    for networks in found.values():
        assert tuple(networks) == demo.NETWORKS
        assert all(len(scores) == 2 for scores in networks.values())


@pytest.mark.parametrize("task", demo.TASKS)
def test_tables_fit_eighty_columns(task, found):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo.make_table(found[task]))
    text = console.export_text()
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for name in demo.NETWORKS:
        assert name in text


def test_the_interval_is_students():
    mean, half = demo.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert half == pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=1e-3)


def test_sentences_say_better_worse_or_neither():
    def networks(ours: list[float], others: list[float]):
        empty = torch.empty(0)
        made = {name: [demo.Score(empty, empty, {"nll": v}, 1.0) for v in others] for name in demo.NETWORKS}
        made[demo.OURS] = [demo.Score(empty, empty, {"nll": v}, 1.0) for v in ours]
        return made

    assert ", better" in demo.differences(networks([0.1, 0.2, 0.1], [0.3, 0.4, 0.31]))[0]
    assert ", worse" in demo.differences(networks([0.3, 0.4, 0.31], [0.1, 0.2, 0.1]))[0]
    assert "no difference" in demo.differences(networks([0.1, 0.4, 0.3], [0.3, 0.1, 0.3]))[0]


def test_main_writes_small_pictures(found, curves, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "demonstrate", lambda say: found)
    monkeypatch.setattr(demo, "gap_curves", lambda: curves)
    demo.main()
    for place in (demo.PLACE, demo.GAP_PLACE):
        picture = tmp_path / place
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 200_000
    assert "OOD AUROC" in capsys.readouterr().out
