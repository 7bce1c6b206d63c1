"""The report: complete, without a network, and as wide as the screen it is read on."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from toy_experiment import EXPERIMENT, TWIN

from bayescore_lab.engine import Table, build_report, draw, plan

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=10000",
]

#: a page that holds the report in a frame of the wanted width and writes down what it finds there
FRAME = """<!doctype html><body style="margin:0">
<iframe id="frame" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>
document.getElementById("frame").addEventListener("load", event => {{
  const inside = event.target.contentDocument, root = inside.documentElement;
  const boxed = node => node.closest(".wide") && !node.matches(".wide");
  const wide = [...inside.body.querySelectorAll("*")].filter(
    node => !boxed(node) && node.getBoundingClientRect().right > root.clientWidth + 0.5);
  const images = [...inside.images];
  document.body.insertAdjacentHTML("beforeend", "<pre id=found>" + JSON.stringify({{
    client: root.clientWidth, scroll: root.scrollWidth,
    wide: wide.map(node => node.tagName + "." + node.className),
    images: images.length, loaded: images.filter(image => image.naturalWidth > 0).length,
    scrolling: [...inside.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth).length,
    headings: inside.querySelectorAll("h1, h2, h3").length}}) + "</pre>");
}});
</script>"""


def install_chromium() -> str | None:
    """Try to have a browser; the reason where that fails."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "there is no Chromium, and only root with apt-get could install it"
    for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        run = subprocess.run(["apt-get", "-q", *words], capture_output=True, text=True, timeout=600)
        if run.returncode:
            return f"there is no Chromium, and apt-get {words[0]} failed: {run.stderr.strip()[-200:]}"
    return None


@pytest.fixture(scope="session")
def chromium() -> str:
    if not any(map(shutil.which, CHROMIUM)) and (reason := install_chromium()):
        pytest.skip(reason)
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("apt-get installed no Chromium that is known by name")
    return found


@pytest.fixture
def measure(chromium, tmp_path):
    """What a browser of a given width sees of a page."""

    def look(page: str, width: int) -> dict:
        frame = tmp_path / f"frame{width}.html"
        frame.write_text(FRAME.format(width=width, page=html.escape(page, quote=True)))
        profile = f"--user-data-dir={tmp_path / f'profile{width}'}"
        command = [chromium, *FLAGS, profile, "--window-size=1400,1000", "--dump-dom", frame.as_uri()]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return json.loads(html.unescape(re.search(r"<pre id=\"found\">(.*?)</pre>", run.stdout, re.S)[1]))

    return look


def wide_tables(records):
    """Tables and words that no phone has room for."""
    columns = [f"a long column heading {place}" for place in range(14)]
    rows = [[f"{place / 7}" for place in range(14)]] * 3
    return [*EXPERIMENT.tables(records), Table("W" * 120, columns, rows, name="wide", note="n" * 200)]


@pytest.fixture(scope="session")
def drawn(recorded, tmp_path_factory) -> Path:
    """Artefacts of two experiments without any records."""
    out = Path(shutil.copytree(recorded, tmp_path_factory.mktemp("drawn") / "out"))
    draw(plan(replace(EXPERIMENT, tables=wide_tables), "paper"), out)
    shutil.copytree(out / "toy", out / "toy-twin")
    summary = out / "toy-twin" / "summary.json"
    text = summary.read_text().replace('"experiment": "toy"', '"experiment": "toy-twin"')
    summary.write_text(text.replace(EXPERIMENT.location, TWIN.location).replace(EXPERIMENT.title, TWIN.title))
    for records in out.glob("*/records.jsonl"):
        records.unlink()
    return out


@pytest.fixture(scope="session")
def page(drawn) -> str:
    return build_report(drawn).read_text()


def test_the_report_is_built_from_artefacts_without_records(page):
    for piece in (
        "Claims and verdicts",
        "What the paper prints",
        "How it was run",
        "bayescore reproduce toy",
    ):
        assert piece in page
    for verdict in ("reproduced", "partly", "not reproduced here"):
        assert f"</span> {verdict}</span>: 2" in page
    assert page.index("Claims and verdicts") < page.index("data:image/")
    assert page.count("Rule: ") == 6


def test_experiments_come_in_the_order_of_the_paper(page):
    assert page.index('id="toy"') < page.index('id="toy-twin"')


def test_the_page_holds_everything_and_asks_nobody(page):
    assert "<script" not in page
    assert "http://" not in re.sub(r"data:[^\"]*", "", page)
    assert "https://" not in re.sub(r"data:[^\"]*", "", page)
    assert set(re.findall(r'(?:src|href)="([^"]{1,5})', page)) <= {"data:", "#toy", "#toy-"}


def test_text_is_escaped(page):
    assert "&lt;against&gt;" in page
    assert "<against>" not in page


def test_print_and_dark_have_their_styles(page):
    assert "@media print" in page
    assert "prefers-color-scheme: dark" in page


def test_paper_is_shown_where_it_was_drawn_and_quick_where_not(drawn, tmp_path):
    out = Path(shutil.copytree(drawn, tmp_path / "out"))
    shutil.copytree(out / "toy", out / "toy" / "quick")
    summary = out / "toy" / "quick" / "summary.json"
    summary.write_text(summary.read_text().replace('"profile": "paper"', '"profile": "quick"'))
    assert "profile quick" not in build_report(out).read_text()
    (out / "toy" / "summary.json").unlink()
    assert "profile quick" in build_report(out).read_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overflows_and_wide_things_scroll_in_their_box(measure, page, width):
    found = measure(page, width)
    assert found["client"] in range(width - 20, width + 1)  # a scroll bar may take its share
    assert found["scroll"] <= found["client"]
    assert found["wide"] == []
    assert found["images"] == found["loaded"] == 2
    assert found["headings"] >= 10
    assert found["scrolling"] >= 2


def test_the_measurement_notices_an_overflow(measure, page):
    found = measure(page.replace("<main>", '<main><div style="width:1000px">x</div>'), 390)
    assert found["scroll"] >= 1000
    assert found["wide"] == ["DIV."]
