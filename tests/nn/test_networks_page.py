"""The page on networks: its code runs as it stands, its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bayescore.metrics import evaluate

PAGE = (Path(__file__).parents[2] / "docs" / "networks.md").read_text()


def test_the_code_of_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "networks"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
            exec(compile(code, "networks.md", "exec"), names)
    assert "updates" in capsys.readouterr().out


def test_the_page_names_every_score() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    table = PAGE[PAGE.index("## Metrics") :].replace("..._floor95", "all_class_ece_floor95")
    assert all(f"`{name}`" in table for name in evaluate(probs, torch.tensor([0, 1])))
