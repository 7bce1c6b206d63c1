"""The experiment in the documentation works as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bayescore_lab.engine import draw, find_experiments, plan, run_plans

PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"


@pytest.mark.usefixtures("in_process")
def test_the_printed_file_is_found_run_and_drawn(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    area = tmp_path / "printed_package" / "area"
    area.mkdir(parents=True)
    for folder in (area, area.parent):
        (folder / "__init__.py").write_text("")
    (area / "pi.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        grid = plan(find_experiments("printed_package")["pi"])
        assert run_plans([grid], tmp_path / "out", 1).failures == ()
        drawn = draw(grid, tmp_path / "out")
    finally:
        for name in [name for name in sys.modules if name.startswith("printed_package")]:
            del sys.modules[name]
    assert len(drawn.records) == 16
    assert {"table.md", "figure.svg"} <= set(drawn.files)
