"""The report: complete, without a network, and as wide as the screen it is read on."""

from __future__ import annotations

import copy
import html
import json
import logging
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from toy_experiment import EXPERIMENT, TWIN

from bayescore_lab.engine import Table, build_report, draw, plan
from bayescore_lab.engine.report import read_summaries

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
        assert f"</span> {verdict} <b>2</b></label>" in page
    assert page.index("Claims and verdicts") < page.index("data:image/")
    assert page.count("Rule: ") == 6


def test_the_first_screen_is_one_table_of_claims_with_the_papers_number_and_ours(page):
    table = page[page.index("<table") : page.index("</table>")]
    assert re.findall(r'<th scope="col">(\w+)</th>', table) == ["place", "claim", "paper", "ours", "verdict"]
    assert page.index("<table") < page.index("<nav")
    ours = re.findall(r'<td data-name="ours">(.*?)</td>', table)
    assert len(ours) == table.count('class="fold"') == 6
    assert all(ours)


def test_every_part_of_a_rule_and_of_its_outcome_has_a_line_of_its_own(page):
    parts = re.findall(r"<p[^>]*>\((\d)\) ", page)
    assert len(parts) > 2
    assert set(parts) == {"1", "2"}
    assert not re.search(r"<p[^>]*>[^<]*[.:] \(\d\) ", page)


def test_claims_come_in_the_order_of_the_papers_cases(drawn, tmp_path):
    out = Path(shutil.copytree(drawn, tmp_path / "out"))
    file = out / "toy" / "summary.json"
    summary = json.loads(file.read_text())
    places = ["Sec. 5.1.2, case 10", "Sec. 5.1.2, case 9", "Sec. 5.1.1"]
    for claim, place in zip(summary["claims"], places, strict=True):
        claim["location"] = place
    file.write_text(json.dumps(summary))
    found = re.findall(r'<td class="place">(.*?)</td>', build_report(out).read_text())
    assert [place for place in found if place in places] == places[::-1]


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


@pytest.fixture
def attacked(drawn, tmp_path, caplog):
    """Change the first of two summaries with a function; the page, and what was said about it."""

    def attack(change) -> tuple[str, str]:
        out = Path(shutil.copytree(drawn, tmp_path / "out"))
        file = out / "toy" / "summary.json"
        summary = json.loads(file.read_text())
        changed = change(summary)
        file.write_text(json.dumps(summary) if changed is None else changed)
        with caplog.at_level(logging.WARNING):
            return build_report(out).read_text(), caplog.text

    return attack


def leaves(value, path=()):
    """The places of all values in a tree of JSON."""
    yield path
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(entry, dict | list):
            yield from leaves(entry, (*path, key))
        else:
            yield (*path, key)


def put(summary, path, value):
    for key in path[:-1]:
        summary = summary[key]
    summary[path[-1]] = value


def test_no_value_of_a_summary_reaches_the_page_as_html(drawn, tmp_path):
    out = Path(shutil.copytree(drawn, tmp_path / "out"))
    file, attack = out / "toy" / "summary.json", '"><script>alert(1)</script>'
    summary = json.loads(file.read_text())
    summary["versions"][0][attack] = attack
    summary["machine"][0][attack] = attack
    summary["settings"][attack] = attack
    texts = [path for path in leaves(summary) if path and isinstance(value_at(summary, path), str)]
    for path in texts:
        if path[-1] not in ("verdict", "file"):
            put(summary, path, attack)
    file.write_text(json.dumps(summary))
    page = build_report(out).read_text()
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 50
    assert "<script" not in page


def value_at(summary, path):
    for key in path:
        summary = summary[key]
    return summary


@pytest.mark.parametrize("name", ["runs", "seeds", "failures", "finished", "score_calls", "seconds"])
def test_markup_in_place_of_a_number_leaves_the_summary_out(attacked, name):
    page, said = attacked(lambda summary: summary.update({name: "<img src=x onerror=alert(1)>"}))
    assert "<img src=x" not in page
    sentence = "toy/summary.json is not a summary that `bayescore reproduce` wrote and is left out "
    sentence += f"(the summary['{name}'] is"
    assert sentence in said
    assert html.escape(sentence.removeprefix("toy/")) in page
    assert 'id="toy"' not in page
    assert 'id="toy-twin"' in page  # the rest goes on


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/secret", "a/../figure", "..\\secret", "fig\0ure", "C:x", "absent"]
)
def test_a_figure_from_outside_the_folder_is_left_out_with_a_sentence(attacked, tmp_path, name):
    for end in ("svg", "png"):
        (tmp_path / f"secret.{end}").write_text("a secret")
    page, said = attacked(lambda summary: put(summary, ("figures", 0, "file"), name))
    assert page.count("data:image/") == 1  # that of the twin
    assert "is left out: " in said
    assert "is left out: " in page


def test_a_figure_that_is_a_link_is_left_out(attacked, drawn, tmp_path):
    def link(summary):
        (tmp_path / "secret").write_text("a secret")
        for end in ("svg", "png"):
            file = tmp_path / "out" / "toy" / f"figure.{end}"
            file.unlink()
            file.symlink_to(tmp_path / "secret")

    page, said = attacked(link)
    assert page.count("data:image/") == 1
    assert "is a symbolic link where a regular file is expected" in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: "[" * 100_000, "nested more than 64 levels deep"),
        (lambda s: "[" * 5_000 + "]" * 5_000, "nested more than 64 levels deep"),
        (lambda s: "", "Expecting value"),
        (lambda s: "[]", "the summary is a list; expected an object"),
        (lambda s: s.pop("claims") and None, "the summary lacks 'claims'"),
        (
            lambda s: put(s, ("claims", 0, "verdict"), "maybe"),
            "['verdict'] is 'maybe'; expected one of 'reproduced'",
        ),
        (lambda s: put(s, ("claims", 0, "verdict"), ["partly"]), "['verdict'] is a list; expected one of"),
        (lambda s: put(s, ("tables", 0, "cells"), 3), "['cells'] is 3; expected a list"),
        (lambda s: put(s, ("seeds",), 10**300), "a whole number has 997 bits"),
        (lambda s: put(s, ("title",), "\ud800"), "a character that is not in Unicode"),
        (lambda s: s["figures"].append(s["figures"][0]), "two of its figures are one file"),
    ],
)
def test_a_summary_of_the_wrong_kinds_is_left_out_and_the_rest_is_shown(attacked, change, reason):
    page, said = attacked(change)
    assert reason in said
    assert 'id="toy"' not in page
    assert 'id="toy-twin"' in page


def test_any_value_of_a_summary_may_be_of_any_kind_without_a_traceback(drawn, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(drawn / "toy", out / "toy")
    file = out / "toy" / "summary.json"
    summary = json.loads(file.read_text())
    summary["tables"], summary["claims"] = summary["tables"][:1], summary["claims"][:1]
    shown = 0
    for path in [path for path in leaves(summary) if path]:
        for value in (None, True, -1, 2**70, "NaN", "²", "9" * 5000, [], {}, [[1]], {"a": None}):
            changed = copy.deepcopy(summary)
            put(changed, path, value)
            file.write_text(json.dumps(changed))
            summaries, refused = read_summaries(out)
            assert len(summaries) + len(refused) == 1
            if not refused:
                shown += 1
                build_report(out)
    assert shown > 20


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_summary_that_may_never_end_is_not_read(drawn, tmp_path, make):
    out = Path(shutil.copytree(drawn, tmp_path / "out"))
    (out / "toy" / "summary.json").unlink()
    make(out / "toy" / "summary.json")
    assert "where a regular file is expected; put a copy in its place" in build_report(out).read_text()


def test_a_summary_that_is_too_large_is_not_read(drawn, tmp_path):
    out = Path(shutil.copytree(drawn, tmp_path / "out"))
    with (out / "toy" / "summary.json").open("ab") as file:
        file.truncate(10**12)  # sparse: it takes no room on the disk
    assert "has more than the 16,000,000 bytes that are read); draw it again" in build_report(out).read_text()
