"""The page on Stan programs runs as it stands."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stan.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_the_page_runs_and_finds_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schools.stan").write_text(blocks("stan")[0])
    Path("schools.json").write_text(blocks("json")[0])
    page: dict = {"__name__": "stan"}
    for code in blocks("python"):
        exec(compile(code, str(PAGE), "exec"), page)
    assert page["fit"].khat.value < 0.7
    assert page["again"].elbo.value - page["fit"].elbo.value == pytest.approx(math.log(2), abs=0.15)
    assert page["comparison"].mean_error < 0.2
    assert page["better"].posterior["theta"].shape == (1, 4000, 8)
