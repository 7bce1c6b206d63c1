"""The demonstration: three fits on equal terms, a table and a picture."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from bayescore import demo


@pytest.fixture(scope="module")
def fits():
    return demo.demonstrate(steps=20)


def test_all_fits_spend_the_same_scores_on_the_same_target(fits):
    assert list(fits) == ["ProximalScore", "ADVI", "BaM"]
    assert {fit.score_calls for fit in fits.values()} == {20 * demo.SAMPLES}
    assert len({id(fit.target) for fit in fits.values()}) == 1


def test_target_has_five_modes():
    target = demo.demonstrate(steps=1)["BaM"].target
    modes = torch.tensor(demo.MEANS, dtype=torch.float64)
    height = target.log_prob(modes)
    for i in range(len(modes)):
        for j in range(i):
            between = target.log_prob(modes[i].lerp(modes[j], torch.linspace(0.2, 0.8, 25).double()[:, None]))
            assert between.min() < torch.minimum(height[i], height[j])


def test_table_fits_eighty_columns(fits):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo.make_table(fits))
    text = console.export_text()
    assert "…" not in text
    for name in fits:
        assert name in text


def test_main_writes_a_small_picture(fits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "demonstrate", lambda: fits)
    demo.main()
    picture = tmp_path / demo.PLACE
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200_000
    assert "forward KL" in capsys.readouterr().out
