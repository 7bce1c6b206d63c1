"""A table becomes a model: what its columns are, what is missing, what is new, and the folder."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayescore as bs
from bayescore.cli import main
from bayescore.data.batches import Batches
from bayescore.tables.columns import Column, encode, learn_columns
from bayescore.tables.rows import Scaling

COLUMNS = ["id", "colour", "size", "garden", "sold", "made", "price", "grade"]


def cells(count: int = 120, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        colour, garden, size = rng.choice(["red", "blue"]), rng.choice(["yes", "no"]), rng.normal()
        price = 100 + 20 * size + 15 * (colour == "red") + 10 * (garden == "yes") + rng.normal()
        day = str(np.datetime64("2020-01-01") + int(rng.integers(700)))
        texts = [f"house {i}", colour, f"{size:.4f}", garden, day, "brick", f"{price:.2f}"]
        texts.append("dear" if price > 112 else "cheap")
        rows.append(texts)
    rows[0][1], rows[1][2], rows[2][3] = "", "NA", "?"
    return rows


def write(path: Path, rows: list[list[str]], columns: list[str] = COLUMNS) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def run(arguments: list[str], capsys: Any) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    return ended.value.code, said.out, " ".join(said.err.split())


def test_columns_are_what_users_expect() -> None:
    table = dict(zip(COLUMNS, map(list, zip(*cells(), strict=True)), strict=True))
    found, notes = learn_columns(table)
    kinds = {column.name: column.kind for column in found}
    assert kinds == {
        "colour": "category", "size": "number", "garden": "boolean", "sold": "date", "price": "number",
        "grade": "category",
    }  # fmt: skip
    assert "'id' has 120 different texts in 120 rows" in notes[0]
    assert "'made' is the same in all rows" in notes[1]
    assert [Column.from_json(column.as_json()) for column in found] == found
    x = encode(found, table, "the table")
    assert np.isfinite(x).all()


def test_a_missing_number_is_the_mean_and_says_so() -> None:
    (column,), _ = learn_columns({"size": ["1", "3", "", "NaN"]})
    np.testing.assert_array_equal(
        encode([column], {"size": ["1", "null", "5"]}, "new"), [[1, 0], [2, 1], [5, 0]]
    )
    (column,), _ = learn_columns({"size": ["1", "3"]})
    with pytest.warns(UserWarning, match="'size' has missing cells, and had none"):
        assert encode([column], {"size": [""]}, "new")[0, 0] == 2


def test_a_category_that_is_new_is_none_of_the_known_ones() -> None:
    (column,), _ = learn_columns({"colour": ["red", "blue", "red"]})
    with pytest.warns(UserWarning, match="'colour' has categories that were not learned from \\('teal'\\)"):
        found = encode([column], {"colour": ["teal", "red", ""]}, "new.csv")
    np.testing.assert_array_equal(found, [[0, 0, 0], [1, 0, 0], [0, 0, 1]])


def test_a_date_has_a_trend_and_the_phase_of_the_year() -> None:
    (column,), _ = learn_columns({"sold": ["2020-01-01", "2020-07-01", "2021-01-01"]})
    found = encode([column], {"sold": ["2020-01-01", "2021-01-01"]}, "new")
    assert list(found[:, 0]) == [0, 366]
    np.testing.assert_allclose(found[0, 1:3], found[1, 1:3], atol=0.02)
    with pytest.raises(ValueError, match="row 1 has 'soon' where a date"):
        encode([column], {"sold": ["soon"]}, "new")


def test_the_target_decides_between_classes_and_values(tmp_path: Path) -> None:
    rows = [[str(i % 3), f"{i / 7:.3f}", "word" if i % 2 else "other", str(i % 40)] for i in range(60)]
    path = write(tmp_path / "t.csv", rows, ["few", "real", "text", "many"])
    few = bs.data.read_table(path, "few")
    assert few.classes == ("0", "1", "2")
    assert "3 distinct numbers, learned as classes; --task values" in few.notes[0]
    assert bs.data.read_table(path, "few", "values").classes == ()
    assert bs.data.read_table(path, "real").classes == ()
    assert bs.data.read_table(path, "many").classes == ()
    assert bs.data.read_table(path, "text").classes == ("other", "word")
    with pytest.raises(ValueError, match="row 1: 'other' in the column 'text' is no number"):
        bs.data.read_table(path, "text", "values")


@pytest.mark.parametrize(
    ("ending", "sign", "point"),
    [("csv", ";", "."), ("csv", ";", ","), ("tsv", "\t", "."), ("tsv", "\t", ",")],
)
def test_columns_between_semicolons_or_tabs_and_decimal_commas_are_read(
    ending: str, sign: str, point: str, tmp_path: Path
) -> None:
    rows = [["colour", "size", "price"]] + [[("red", "blue")[i % 2], f"{i}.5", f"{i}.25"] for i in range(30)]
    rows[3][1] = "NA"
    plain, other = tmp_path / "plain.csv", tmp_path / f"other.{ending}"
    plain.write_text("\n".join(",".join(row) for row in rows))
    other.write_text("\n".join(sign.join(row).replace(".", point) for row in rows))
    one, two = (bs.data.read_table(path, "price") for path in (plain, other))
    np.testing.assert_array_equal(one.values, two.values)
    assert one.columns == two.columns
    columns, _ = learn_columns(two.columns)
    assert [column.kind for column in columns] == ["category", "number"]


def test_a_wrong_cell_is_named_by_its_file_and_row_after_the_rows_were_divided(tmp_path: Path) -> None:
    rows = cells()
    rows[6][2] = "inf"
    parts = bs.data.parts(bs.data.read_table(write(tmp_path / "houses.csv", rows), "price"))
    (part,) = (each for each in (parts.train, parts.validation, parts.test) if 7 in each.rows)
    with pytest.raises(ValueError, match=r"houses\.csv, row 7: 'inf' in the column 'size' is no number"):
        encode([Column("size", "number")], part.columns, part.source, part.rows)


def test_dates_and_numbers_that_are_not_written_as_such_are_left_out_with_the_remedy() -> None:
    written = [f"{i % 12 + 1}/{i % 28 + 1}/2024" for i in range(40)]
    _, notes = learn_columns({"when": written, "size": [str(i) for i in range(40)]})
    assert "such as '1/1/2024', names rather than categories, and is left out" in notes[0]
    assert "dates as 2024-01-31" in notes[0]


def test_scaling_survives_constants_and_huge_numbers() -> None:
    found = Scaling.of(np.array([[1.0, 1e200, 5.0], [3.0, -1e200, 5.0]]), None)
    np.testing.assert_allclose(found.apply(np.array([[1.0, 1e200, 5.0]])), [[-1, 1, 0]])


def test_a_weight_is_how_often_a_row_is_seen() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 3.0])
    seen = torch.zeros(4)
    batches = Batches(lambda rows, _: rows, torch.arange(4), 2, seed=0, weights=weights)
    for _ in range(150):
        for rows, y in batches:
            assert torch.equal(rows, y)
            seen += torch.bincount(rows, minlength=4)
    torch.testing.assert_close(seen / seen.sum(), weights / 6, atol=0.02, rtol=0)
    assert len(batches.dataset) == 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    place = tmp_path_factory.mktemp("table")
    path = write(place / "houses.csv", cells())
    for target in ("price", "grade"):
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "train",
                    str(path),
                    "--target",
                    target,
                    "--epochs",
                    "8",
                    "--output",
                    str(place / target),
                    "-q",
                ]
            )
        assert ended.value.code == 0
    return place


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "folder")
    return tmp_path / "folder"


def test_a_loaded_model_predicts_what_the_trained_one_did(tmp_path: Path) -> None:
    parts = bs.data.parts(bs.data.read_table(write(tmp_path / "t.csv", cells()), "price"))
    found = bs.tables.train_table(parts, bs.tables.RowSettings(epochs=2, members=2), draws=5)
    found.save(tmp_path / "model")
    again = bs.tables.load_table(tmp_path / "model").predict(parts.test, 5)
    torch.testing.assert_close(again.outputs, found.prediction.outputs)
    assert bs.metrics.evaluate(again, found.y) == pytest.approx(found.scores)


def test_values_and_classes_from_the_shell(model: Path, capsys: Any, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    code, said, err = run(
        ["predict", str(model / "price"), str(model / "houses.csv"), "--output", str(output)], capsys
    )
    assert (code, err) == (0, "")
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "price", "std", "lower_90", "upper_90"]
    assert float(rows[5]["lower_90"]) < float(rows[5]["price"]) < float(rows[5]["upper_90"])
    code, said, _ = run(["predict", str(model / "grade"), str(model / "houses.csv")], capsys)
    assert code == 0
    assert "dear" in said
    assert "mutual_information" in said


def test_a_card_is_written_beside_the_model(model: Path) -> None:
    card = (model / "price" / "model_card.md").read_text()
    assert "# Model card: price from houses.csv" in card
    assert "CRPS (`crps`)" in card
    assert "size (number)" in card
    assert "'made' is the same in all rows" in card
    assert (model / "price" / "calibration.png").stat().st_size > 1000
    assert "| lr | 0.005 |" in card  # what was used, not None
    assert "None" not in card
    grade = (model / "grade" / "model_card.md").read_text()
    assert "ECE" in grade
    assert "| noise |" in card
    assert "| noise |" not in grade


def test_new_tables_with_other_columns_are_named_in_a_sentence(model: Path, capsys: Any) -> None:
    rows = cells(6)
    less = write(model / "less.csv", [row[:2] + row[3:] for row in rows], COLUMNS[:2] + COLUMNS[3:])
    code, _, err = run(["predict", str(model / "price"), str(less)], capsys)
    assert code == 2
    assert "has no column 'size', which the model learned from" in err
    rows[3][2] = "large"
    code, _, err = run(["predict", str(model / "price"), str(write(model / "bad.csv", rows))], capsys)
    assert code == 2
    assert "row 4: 'large' in the column 'size' is no number" in err
    rows[3][2], rows[4][1] = "1", "teal"
    code, _, err = run(["predict", str(model / "price"), str(write(model / "new.csv", rows))], capsys)
    assert code == 0
    assert "'teal'" in err


def test_columns_that_the_model_never_saw_are_ignored_and_named(model: Path, capsys: Any) -> None:
    more = write(model / "more.csv", [[*row, "9"] for row in cells(6)], [*COLUMNS, "age"])
    code, _, err = run(["predict", str(model / "price"), str(more)], capsys)
    assert code == 0
    assert "the columns 'age' were not there in training and are ignored" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name the column to predict with --target; the columns are id, colour"),
        (["--target", "prize"], "did you mean 'price'?"),
        (["--target", "price", "--task", "clases"], "did you mean 'classes'?"),
        (["--target", "price", "--net", "resnet18"], "--net is for pictures and texts"),
        (["--target", "price", "--bf16"], "--bf16 is for pictures and texts"),
        (["--target", "price", "--method", "laplace"], "there is no method called 'laplace'"),
        (["--target", "made"], "has one value only, 'brick'"),
        (["--kind", "images", "--target", "price"], "--target and --task name what is predicted in a table"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "houses.csv", cells(20))
    code, _, err = run(["train", str(path), *arguments], capsys)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


def test_a_damaged_description_is_refused(model: Path) -> None:
    text = (model / "price" / "model.json").read_text()
    for old, new in (('"kind": "number"', '"kind": "system"'), ('"members": 8', '"members": 80000')):
        (model / "price" / "model.json").write_text(text.replace(old, new, 1))
        with pytest.raises(ValueError, match="does not describe"):
            bs.tables.load_table(model / "price")
