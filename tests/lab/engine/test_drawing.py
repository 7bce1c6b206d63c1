"""Artefacts: made from records alone, small, complete, and the same whenever they are drawn."""

from __future__ import annotations

import errno
import io
import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_experiment import EXPERIMENT

from bayescore import io as files_module
from bayescore_lab.engine import (
    Interval,
    Records,
    captioned,
    draw,
    figure_style,
    looks,
    panels,
    plan,
    plot_points,
    plot_traces,
    run_plans,
    shared_legend,
)
from bayescore_lab.engine.drawing import FILE_LIMIT, CannotDraw, NothingToDraw
from bayescore_lab.engine.figures import SVG_LIMIT, svg
from bayescore_lab.engine.records import RecordStore, loads

pytestmark = pytest.mark.usefixtures("in_process")

GRID = plan(EXPERIMENT, "paper")


@pytest.fixture
def out(tmp_path, recorded):
    return Path(shutil.copytree(recorded, tmp_path / "out"))


@pytest.fixture
def records(recorded):
    return GRID.choose(RecordStore(GRID.folder(recorded)).read())


def test_everything_declared_is_written_and_small(out):
    drawn = draw(GRID, out)
    names = {file.name for file in drawn.folder.iterdir()} - {"records.jsonl"}
    assert names == {"figure.png", "figure.svg", "summary.json", "traces.json"} | {
        f"{stem}.{end}" for stem in ("table", "table-significance") for end in ("csv", "md")
    }
    assert all((drawn.folder / name).stat().st_size < FILE_LIMIT for name in names)
    assert (drawn.folder / "figure.svg").stat().st_size < SVG_LIMIT


def test_figures_are_valid_and_say_seeds_and_budget(out):
    folder = draw(GRID, out).folder
    with Image.open(folder / "figure.png") as image:
        image.verify()
    assert ElementTree.parse(folder / "figure.svg").getroot().tag.endswith("svg")
    (figure,) = loads((folder / "summary.json").read_bytes())["figures"]
    assert "20 seeds, up to 800 score calls per run" in figure["caption"]


def test_drawing_again_gives_the_same_bytes_whatever_the_order_of_the_records(out):
    first = {file.name: file.read_bytes() for file in draw(GRID, out).folder.iterdir()}
    records = out / "toy" / "records.jsonl"
    records.write_bytes(b"".join(reversed(first["records.jsonl"].splitlines(keepends=True))))
    second = {file.name: file.read_bytes() for file in draw(GRID, out).folder.iterdir()}
    del first["records.jsonl"], second["records.jsonl"]
    assert first == second


def test_the_summary_tells_all_that_the_report_needs(out):
    summary = loads((draw(GRID, out).folder / "summary.json").read_bytes())
    assert [claim["verdict"] for claim in summary["claims"]] == [
        "reproduced",
        "not reproduced here",
        "partly",
    ]
    assert all(claim["rule"] and claim["sentence"] for claim in summary["claims"])
    assert (summary["runs"], summary["finished"], summary["failures"], summary["seeds"]) == (60, 60, 0, 20)
    assert summary["settings"] == {"steps": 400}
    assert summary["command"] == "bayescore reproduce toy --profile paper"
    for name in ("commit", "versions", "machine"):
        assert len(summary[name]) == 1
    assert summary["score_calls"] == 60 * 800


def test_traces_hold_quantiles_on_at_most_200_points(out):
    traces = loads((draw(GRID, out).folder / "traces.json").read_bytes())
    assert list(traces["arms"]) == ["Ours", "ADVI", "GSM"]
    entry = traces["arms"]["GSM"]["forward_kl"]
    assert entry["n"] == 20
    assert 100 < len(entry["x"]) <= 200
    values = np.array(entry["values"])
    assert values.shape == (5, len(entry["x"]))
    assert (np.diff(values[:4], axis=0) >= 0).all()
    assert values[4, -1] == math.inf  # a quarter of the runs broke down


def test_json_artefacts_are_strict(out):
    folder = draw(GRID, out).folder

    def refuse(word):
        raise AssertionError(word)

    for name in ("summary.json", "traces.json"):
        json.loads((folder / name).read_text(), parse_constant=refuse)


def test_a_quick_look_does_not_touch_what_the_paper_profile_drew(out):
    before = (draw(GRID, out).folder / "summary.json").read_bytes()
    quick = plan(EXPERIMENT, "quick")
    run_plans([quick], out, 1)
    assert draw(quick, out).folder == out / "toy" / "quick"
    assert (out / "toy" / "summary.json").read_bytes() == before


def test_a_part_of_the_paper_profile_does_not_touch_what_all_of_it_drew(out):
    before = (draw(GRID, out).folder / "summary.json").read_bytes()
    part = plan(EXPERIMENT, GRID.profile, methods=["Ours"])
    assert draw(part, out).folder == draw(GRID, out).folder / f"{GRID.profile}-part"
    assert (draw(GRID, out).folder / "summary.json").read_bytes() == before


def test_records_of_other_settings_are_not_drawn(out):
    run_plans([plan(EXPERIMENT, "quick")], out, 1)
    drawn = draw(GRID, out)
    assert len(drawn.records) == 60
    assert {record.config["steps"] for record in drawn.records} == {400}


def test_files_of_an_earlier_drawing_go_when_they_are_no_longer_declared(out):
    folder = draw(GRID, out).folder
    (folder / "table-own-notes.md").write_text("not ours to remove")
    lean = replace(EXPERIMENT, tables=lambda records: [], figures=lambda records: [])
    draw(plan(lean, "paper"), out)
    left = {file.name for file in folder.iterdir()}
    assert left == {"records.jsonl", "summary.json", "traces.json", "table-own-notes.md"}


def test_tables_or_figures_of_one_name_are_refused(out):
    double = replace(EXPERIMENT, tables=lambda records: EXPERIMENT.tables(records) * 2)
    with pytest.raises(ValueError, match="the tables or figures of toy share a name"):
        draw(plan(double, "paper"), out)


def test_without_a_finished_run_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(NothingToDraw, match="toy has no finished run to draw in"):
        draw(GRID, tmp_path)


def test_a_full_disk_keeps_the_old_file_and_leaves_no_rubbish(out, monkeypatch):
    folder = draw(GRID, out).folder
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files_module.os, "replace", full)
    with pytest.raises(
        OSError, match=r"could not be written \(No space left on device\); the records are safe"
    ):
        draw(GRID, out)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_arms_differ_in_colour_line_and_marker():
    seen = looks(str(place) for place in range(280)).values()
    assert len(set(map(str, seen))) == 280
    first = list(seen)[:5]
    for part in ("colour", "line", "marker"):
        assert len({str(getattr(look, part)) for look in first}) == 5


def test_colours_are_apart_in_grey_or_by_their_lines():
    def grey(colour):
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    palette = list(looks("abcdefg").values())
    assert all(grey(look.colour) < 0.7 for look in palette)  # visible on white
    for one in palette:
        for other in palette:
            if one is not other:
                assert abs(grey(one.colour) - grey(other.colour)) > 0.03 or one.marker != other.marker


def test_a_heavy_svg_becomes_pixels_inside_and_stays_small():
    with figure_style():
        drawing, (axes,) = panels()
        rng = np.random.default_rng(0)
        axes.scatter(*rng.standard_normal((2, 20_000)), s=2)
        data = svg(drawing)
    assert len(data) < SVG_LIMIT
    assert b"<image" in data


def test_plots_survive_infinite_negative_and_missing_values(records):
    nowhere = Records([replace(r, trace={**r.trace, "forward_kl": [math.nan] * 400}) for r in records])
    with figure_style():
        drawing, (left, middle, right) = panels(3)
        plot_traces(left, nowhere, "forward_kl")
        plot_traces(middle, records, "absent", log_y=False)
        intervals = {"a": Interval(math.inf, 1.0, math.inf, 9), "b": Interval(1.0, -1.0, math.inf, 9)}
        plot_points(right, intervals, log=True, paper={"b": 2.0, "c": 3.0})
        shared_legend(drawing)
        drawing.savefig(io.BytesIO(), format="png")
    assert "inf" in [text.get_text() for text in right.texts]


def test_the_papers_value_is_marked(records):
    with figure_style():
        _, (axes,) = panels()
        plot_traces(axes, records, "forward_kl", paper={"Ours": 0.0123})
    (star,) = [line for line in axes.lines if line.get_marker() == "*"]
    assert star.get_ydata()[0] == 0.0123
    low, high = axes.get_ylim()
    assert low < 0.0123 < high


def test_a_caption_counts_seeds_and_names_the_budget(records):
    with figure_style():
        drawing, _ = panels()
    figure = captioned(drawing, records, title="T", note="N.")
    assert figure.caption == "T. 20 seeds, up to 800 score calls per run. N."


def test_a_summary_cannot_make_the_next_drawing_remove_what_no_drawing_made(out):
    folder = draw(GRID, out).folder
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("records.jsonl", "notes.md", "table-old.csv"):
        (folder / name).touch()
    (out / "table.md").write_text("outside")
    summary["files"] += ["records.jsonl", "notes.md", "table-old.csv", "../table.md", "", "..", ".", 3, None]
    (folder / "summary.json").write_text(json.dumps(summary))
    draw(GRID, out)
    assert (folder / "records.jsonl").exists()
    assert (folder / "notes.md").exists()
    assert (out / "table.md").exists()
    assert not (folder / "table-old.csv").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"files": 3}', '{"files": {"a": 1}}', "3"])
def test_a_damaged_summary_of_the_last_drawing_is_drawn_anew(out, text):
    folder = draw(GRID, out).folder
    whole = (folder / "summary.json").read_bytes()
    (folder / "summary.json").write_text(text)
    draw(GRID, out)
    assert (folder / "summary.json").read_bytes() == whole


@pytest.mark.parametrize("metric", ["low", {"a": 1}])
def test_records_that_an_experiment_cannot_read_are_named_in_a_sentence(out, metric):
    path = out / "toy" / "records.jsonl"
    first, *rest = path.read_text().splitlines()
    record = json.loads(first)
    record["metrics"]["forward_kl"] = metric
    path.write_text("\n".join([json.dumps(record), *rest]) + "\n")
    with pytest.raises(
        CannotDraw, match=r"records.jsonl cannot be drawn \(ValueError: forward_kl of ADVI, seed 0 is"
    ):
        draw(GRID, out)


def test_a_part_of_a_grid_is_drawn_with_what_is_missing(out):
    path = out / "toy" / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if (r := json.loads(line))["method"] != "ADVI" and r["seed"] < 3]
    path.write_bytes(b"".join(kept))
    drawn = draw(GRID, out)
    (table, *others) = drawn.tables
    assert [row[:2] for row in table.rows] == [["Ours", "3 of 20"], ["GSM", "3 of 20"]]
    assert "No run yet: ADVI." in table.note
    for one in (table, *others):
        assert one.note.endswith("Incomplete: 6 of 60 runs of the grid.")
    summary = loads((drawn.folder / "summary.json").read_bytes())
    assert "Incomplete: 6 of 60 runs" in summary["figures"][0]["caption"]
    missing = {entry["method"]: entry["seeds"] for entry in summary["missing"]}
    assert missing == {"ADVI": list(range(20)), "Ours": list(range(3, 20)), "GSM": list(range(3, 20))}


def test_a_whole_grid_lacks_nothing(out):
    drawn = draw(GRID, out)
    assert [row[1] for row in drawn.tables[0].rows] == [20, 20, 20]
    assert loads((drawn.folder / "summary.json").read_bytes())["missing"] == []
    assert not any("Incomplete" in table.note for table in drawn.tables)
