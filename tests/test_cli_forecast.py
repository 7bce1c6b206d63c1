"""`bayescore forecast`, and `bayescore predict` with a forecaster: from CSV to chart, and what is refused."""

from __future__ import annotations

import csv
import json

import pytest

from bayescore.cli import main
from bayescore.cli.forecast import CALIBRATIONS, METHODS
from bayescore.forecast import CALIBRATIONS as KNOWN_CALIBRATIONS
from bayescore.forecast.forecaster import METHODS as KNOWN_METHODS
from toy_series import hourly, write_csv

QUICK = ["--horizon", "6", "--context", "24", "--epochs", "1"]


@pytest.fixture
def run(capsys):
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(leaving.value.code or 0), out, err

    return call


@pytest.fixture
def data(tmp_path):
    return write_csv(tmp_path / "load.csv", hourly(200))


def test_the_command_names_every_method_and_calibration():
    assert (tuple(METHODS), tuple(CALIBRATIONS)) == (KNOWN_METHODS, KNOWN_CALIBRATIONS)


def test_a_csv_becomes_a_model_a_table_and_a_chart(run, data, tmp_path):
    model, table, chart = tmp_path / "model", tmp_path / "next.csv", tmp_path / "fan.png"
    code, out, err = run("forecast", data, *QUICK, "--output", model, "--table", table, "--plot", chart)
    assert (code, err) == (0, "")
    assert "200 rows of 2 series, 1 hour apart; 200 learned from" in out
    assert "values inside the 80 % intervals" in out
    assert chart.stat().st_size > 10_000
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 12
    assert rows[0]["date"] == "2024-01-09 08:00"
    assert json.loads((model / "model.json").read_text())["kind"] == "forecast"

    again = tmp_path / "again.csv"
    code, out, err = run("predict", model, data, "--output", again)
    assert (code, err) == (0, "")
    assert "80 % high" in out
    assert list(csv.DictReader(again.read_text().splitlines())) == rows


def test_the_last_rows_can_test(run, data):
    code, out, _ = run("forecast", data, *QUICK, "--test", "0.2")
    assert code == 0
    assert "160 learned from" in out
    assert "test rows, 35 origins" in out


def test_dates_and_missing_values_are_read_again_as_they_were(run, tmp_path):
    series = hourly(200)
    dates = series.dates.astype("datetime64[s]").tolist()
    lines = ["day,city,load"]
    for row, when in enumerate(dates):
        value = -1.0 if row in (40, 150) else float(series.values[row, 0])
        lines.append(f"{when:%d.%m.%Y %H:%M},Bonn,{value:.3f}")
    path = tmp_path / "german.csv"
    path.write_text("\n".join(lines))
    options = ["--date-format", "%d.%m.%Y %H:%M", "--date", "day", "--columns", "load", "--missing", "-1"]
    code, out, err = run("forecast", path, *QUICK, *options, "--output", tmp_path / "model")
    assert (code, err) == (0, "")
    assert "2 missing values of 'load' were filled in, the first in row 41" in out
    assert run("predict", tmp_path / "model", path, "-q") == (0, "", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--horizon", "0"], "--horizon must be at least 1"),
        (["--horizon", "100"], "too few rows: 200"),
        (["--method", "proxmal"], "did you mean 'proximal'"),
        (["--calibration", "best"], "choose from conformal, noise, single"),
        (["--columns", "load,prize"], "did you mean 'price'"),
        (["--date", "when"], "no column of load.csv called 'when'"),
        (["--test", "1"], "--test is a share of the rows"),
        (["--test", "0.01"], "--test 0.01 of 200 rows are 2 to test on, and a forecast needs horizon"),
        (["--table", "fan.xlsx"], "--table must end in .csv"),
        (["--plot", "fan.txt"], "fan.txt"),
        (["--set", "lr"], "--set takes key=value"),
        (["--set", "rate=1"], "option of"),
    ],
)
def test_a_mistake_is_one_sentence(run, data, words, sentence):
    code, out, err = run("forecast", data, *words)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda lines: [*lines[:10], lines[9], *lines[10:]],
            "rows 9 and 10 have the same date, 2024-01-01 08:00",
        ),
        (lambda lines: [*lines[:100], *lines[140:]], "40 rows are missing between row 99 (2024-01-05 02:00)"),
        (lambda lines: [*lines[:60], *lines[60::2]], "no common frequency"),
        (
            lambda lines: [*lines[:5], "2024-01-01 04:00,1,high", *lines[6:]],
            "row 5 has 'high' in column 'price'",
        ),
        (lambda lines: lines[:20], "too few rows: 19"),
        (
            lambda lines: [line.split(",")[0] + ",," if i else line for i, line in enumerate(lines)],
            "column 'load' has no",
        ),
    ],
    ids=["duplicate", "gap", "mixed", "text", "few", "empty"],
)
def test_a_csv_that_cannot_be_forecast_is_refused_by_row_and_column(run, data, change, sentence):
    data.write_text("\n".join(change(data.read_text().splitlines())) + "\n")
    code, _, err = run("forecast", data, *QUICK)
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], *lines[:0:-1]],
        lambda lines: [*lines[:50], *lines[52:]],
        lambda lines: [*lines[:50], lines[50].split(",")[0] + ",,", *lines[51:]],
        lambda lines: [lines[0], *(",".join([*line.split(",")[:2], "4"]) for line in lines[1:])],
    ],
    ids=["unsorted", "short gap", "missing value", "constant"],
)
def test_a_csv_with_small_faults_is_forecast_and_they_are_named(run, data, change):
    data.write_text("\n".join(change(data.read_text().splitlines())) + "\n")
    code, out, err = run("forecast", data, *QUICK)
    assert (code, err) == (0, "")
    assert any(words in out for words in ("were sorted", "filled in", "never changed"))


def test_another_kind_of_file_is_no_series(run, data, tmp_path):
    code, _, err = run("forecast", tmp_path)
    assert code == 2
    assert "there is no file" in err
    data.write_bytes(b"\xff\xfe\x00")
    code, _, err = run("forecast", data)
    assert code == 2
    assert "not text in UTF-8" in err
