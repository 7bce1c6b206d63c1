"""The gallery of the documentation: a script becomes a picture, its output and its code."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
GALLERY = runpy.run_path(str(ROOT / "docs" / "gallery.py"))

SCRIPT = '''"""A line

It rises.
"""

from matplotlib.figure import Figure

figure = Figure()
figure.subplots().plot([1, 2])
print("risen")
'''


def test_a_script_becomes_its_title_text_picture_output_and_code(tmp_path):
    script = tmp_path / "line.py"
    script.write_text(SCRIPT)
    text, picture = GALLERY["section"](script)
    assert text.startswith(
        "## A line\n\nIt rises.\n\n![A line](images/gallery/line.png)\n\n```text\nrisen\n```"
    )
    assert "    figure.subplots().plot([1, 2])\n" in text
    assert '"""' not in text
    assert picture.startswith(b"\x89PNG")


def test_a_script_that_fails_stops_the_build_by_its_name(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text('"""A title"""\n\nraise ValueError("no data")\n')
    with pytest.raises(PluginError, match=r"gallery/broken\.py failed: ValueError\('no data'\)"):
        GALLERY["section"](script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_script_has_a_title_a_text_and_a_figure(script):
    code = script.read_text()
    title, blank, text = code.removeprefix('"""').split("\n", 2)
    assert title
    assert not blank
    assert len(text.partition('"""')[0].split()) > 10
    assert "\nfigure = " in code
