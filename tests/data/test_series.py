"""Series: the benchmark sets, CSV files, frames and arrays; windows, scaling, and what is refused."""

from __future__ import annotations

import lzma
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from bayescore.data import SERIES, Scaler, Series, Windows, as_series, read_series, series, split_series
from bayescore.data.dates import parse_dates
from bayescore.data.time_series import _Benchmark

COUNTS = {  # training, validation and test windows of the benchmark protocol
    "ECL": (18269, 2585, 5213),
    "ETTh2": (8497, 2833, 2833),
    "Exchange": (5168, 713, 1470),
    "Traffic": (12137, 1709, 3461),
    "Weather": (36744, 5223, 10492),
    "ILI": (605, 74, 170),
}


def there(name: str) -> bool:
    path = os.path.join(os.environ.get("BAYESCORE_DATA", ""), SERIES[name].source.path + ".xz")
    return os.path.isfile(path)


def blank(name: str) -> Series:
    """A series as long as a benchmark, in one column."""
    rows = SERIES[name].shape[0]
    return Series(torch.arange(rows, dtype=torch.float64)[:, None], ("a",), None, name, SERIES[name].rows)


def csv(tmp_path, text: str, name: str = "data.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "counts"), COUNTS.items())
def test_the_windows_are_as_many_as_in_the_benchmark(name, counts):
    parts = split_series(blank(name), *((48, 24) if name == "ILI" else (96, 48)))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == counts


@pytest.mark.parametrize("name", ["ETTh2", "Exchange", "ILI"])
def test_the_published_files_are_read(name):
    if not there(name):
        pytest.skip("the file is in no data folder")
    found = series(name)
    assert found.values.shape == SERIES[name].shape
    assert found.columns[-1] == "OT"
    assert bool(found.values.isfinite().all())
    steps = np.unique(np.diff(found.dates))
    assert steps.tolist() == [np.timedelta64({"ETTh2": 1, "Exchange": 24, "ILI": 168}[name], "h")]


@pytest.mark.parametrize("name", ["ECL", "Traffic"])
def test_sets_that_are_not_published_with_a_checksum_are_read_by_their_format(name, tmp_path, monkeypatch):
    channels = SERIES[name].shape[1]
    header = ",".join(["date", *map(str, range(channels - 1)), "OT"])
    rows = [f"2016-07-01 0{i}:00:00," + ",".join([f"{i}.5"] * channels) for i in range(3)]
    (tmp_path / "timeseries").mkdir()
    path = tmp_path / f"{SERIES[name].source.path}.xz"
    path.write_bytes(lzma.compress("\r\n".join([header, *rows, ""]).encode()))
    monkeypatch.setenv("BAYESCORE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=f"has 3 rows and {channels} columns of numbers, and {name} has"):
        series(name)
    monkeypatch.setitem(SERIES, name, _Benchmark(SERIES[name].source, (3, channels)))
    assert series(name).values.shape == (3, channels)


def test_a_set_without_an_address_says_where_its_file_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESCORE_DATA", str(tmp_path))
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"timeseries/electricity.csv has no public address.*BAYESCORE_DATA"
    ):
        series("ECL")


def test_the_sentinel_of_weather_is_kept_or_missing(tmp_path):
    path = csv(tmp_path, "date,a\n2020-01-01,-9999\n2020-01-02,-9999.0\n2020-01-03,1\n")
    assert read_series(path).values.flatten().tolist() == [-9999, -9999, 1]
    assert read_series(path, missing=[-9999]).values.isnan().flatten().tolist() == [True, True, False]


@pytest.mark.slow
def test_weather_has_81_sentinels():
    if not there("Weather"):
        pytest.skip("the file is in no data folder")
    assert int((series("Weather").values == -9999).sum()) == 81
    assert int(series("Weather", missing=[-9999]).values.isnan().sum()) == 81


def test_scaling_sees_the_training_rows_only():
    values = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values[140:] += 100
    parts = split_series(Series(values, ("a", "b")), 12, 6)
    assert torch.allclose(parts.scaler.mean, values[:140].mean(0))
    assert torch.allclose(parts.scaler.sd, values[:140].std(0, correction=0))
    assert torch.allclose(parts.train.rows.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(parts.scaler.restore(parts.train.rows), values[:140], atol=1e-5)


def test_a_column_that_does_not_move_keeps_its_scale():
    scaler = Scaler.of(torch.full((5, 1), 3.0, dtype=torch.float64))
    assert scaler.standardise(torch.full((2, 1), 3.0)).flatten().tolist() == [0, 0]
    assert float(scaler.sd) == 1
    tenths = torch.full((1000, 1), 0.1, dtype=torch.float64)  # whose sd is not 0 after rounding
    assert float(Scaler.of(tenths).sd) == 1


def test_every_row_of_a_part_is_forecast_once_as_a_first_step():
    parts = split_series(Series(torch.arange(100.0, dtype=torch.float64)[:, None], ("a",)), 10, 5)
    first = {int(parts.scaler.restore(parts.test[i][1])[0].round()) for i in range(len(parts.test))}
    assert first == set(range(80, 96))
    assert int(parts.scaler.restore(parts.validation[0][1])[0].round()) == 70


def test_windows_are_views_and_batches_equal_them():
    windows = Windows(torch.arange(40.0).view(20, 2), 5, 3)
    x, _ = windows[4]
    assert x.data_ptr() == windows.rows[4].data_ptr()
    batch = next(iter(DataLoader(windows, 13)))
    again = windows.batch(torch.arange(13))
    assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))
    assert torch.equal(windows[-1][1], windows.rows[-3:])
    with pytest.raises(IndexError, match="13 windows"):
        windows[13]


def test_a_split_without_test_rows_has_no_test_windows():
    parts = split_series(Series(torch.randn(50, 1, dtype=torch.float64), ("a",)), 10, 5, (35, 15, 0))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (21, 11, 0)


def test_too_few_rows_are_refused_with_the_number_that_is_needed():
    with pytest.raises(ValueError, match=r"training needs context \+ horizon = 144 and has 70"):
        split_series(Series(torch.randn(100, 1, dtype=torch.float64), ("a",)))


def test_a_missing_value_is_named_by_row_and_column():
    values = torch.randn(50, 2, dtype=torch.float64)
    values[7, 1] = torch.nan
    with pytest.raises(ValueError, match="row 8, column 'b'"):
        split_series(Series(values, ("a", "b")), 5, 3)


def test_a_date_may_end_with_its_hour_as_numpy_writes_it():
    written = [str(np.datetime64("2020-01-31T07", "h")), "2020-01-31 08"]
    read = parse_dates(written, None, "x")[0].astype(str).tolist()
    assert read == ["2020-01-31T07:00:00", "2020-01-31T08:00:00"]
    with pytest.raises(ValueError, match="'2020-01-31 8'"):
        parse_dates(["2020-01-31 8"], None, "x")


def test_an_offset_from_utc_leaves_dates_as_they_are_written_unless_it_changes():
    same = ["2025-01-01 07:00:00+01:00", "2025-01-01T08:00+0100", "2025-01-01T09+01"]
    dates, notes = parse_dates(same, None, "x")
    assert dates.astype(str).tolist() == [f"2025-01-01T0{hour}:00:00" for hour in (7, 8, 9)]
    assert notes == ()
    summer = ["2025-03-30T01:00+01:00", "2025-03-30T03:00+02:00", "2025-03-30T04:00+02:00"]
    for date_format in (None, "%Y-%m-%dT%H:%M%z"):
        dates, notes = parse_dates(summer, date_format, "x")
        assert dates.astype(str).tolist() == [f"2025-03-30T0{hour}:00:00" for hour in (0, 1, 2)]
        assert "UTC" in notes[0]
    days = ["2025-03-29T00:00+01:00", "2025-03-30T00:00+01:00", "2025-03-31T00:00+02:00"]
    dates, notes = parse_dates(days, None, "x")
    assert [str(date)[:10] for date in dates] == ["2025-03-29", "2025-03-30", "2025-03-31"]
    assert notes == ()
    west = parse_dates(["2025-01-01 00:30-03:30", "2025-01-01 04:30Z"], None, "x")[0]
    assert west.astype(str).tolist() == ["2025-01-01T04:00:00", "2025-01-01T04:30:00"]


def test_columns_without_a_name_are_left_out_and_noted(tmp_path):
    found = read_series(csv(tmp_path, ",date,a,\n0,2020-01-01,1,\n1,2020-01-02,2,\n"))
    assert found.columns == ("a",)
    assert found.notes == ("2 columns without a name left out",)
    by_index = read_series(csv(tmp_path, ",a\n2020-01-01,1\n2020-01-02,2\n"))
    assert (by_index.columns, by_index.notes) == (("a",), ())


def test_a_csv_is_read_with_any_name_of_the_dates_and_missing_cells(tmp_path):
    text = "\ufeffa,Timestamp,b\n1,2020/1/31 7:30,NA\n,2020-02-01T07:30:00Z,4.5\n"
    found = read_series(csv(tmp_path, text))
    assert found.columns == ("a", "b")
    assert found.dates.astype(str).tolist() == ["2020-01-31T07:30:00", "2020-02-01T07:30:00"]
    assert found.values.isnan().tolist() == [[False, True], [True, False]]


def test_columns_and_the_form_of_dates_can_be_named(tmp_path):
    path = csv(tmp_path, "day,city,x\n31.1.2020,Bonn,1\n1.2.2020,Ulm,2\n")
    found = read_series(path, date_format="%d.%m.%Y", columns=["x"])
    assert found.values.flatten().tolist() == [1, 2]
    assert str(found.dates[0]) == "2020-01-31T00:00:00"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("date,a,b\n2020-01-01,1,2\n2020-01-02,3,Bonn\n", r"row 2 has 'Bonn' in column 'b'"),
        ("date,a\n2020-01-01,1\n2.1.2020,1\n", r"column 'date': row 2 has '2.1.2020'.*date_format"),
        ("date,a\n2020-02-31,1\n", r"row 1 has '2020-02-31'"),
        ("date,a\n2020-01-01,1\n2020-01-02,1,2\n", "row 2 has 3 cells"),
        ("date,a,a\n2020-01-01,1,2\n", "two columns called 'a'"),
        ("date;a\n2020-01-01;1\n", "with commas between them"),
        ("date,a\n", "no rows"),
        ("date,a\n2020-01-01,inf\n", r"row 1 \(2020-01-01\) has an infinite number in column 'a'"),
        ('date,a\n2020-01-01,"1\n', "not a readable CSV"),
        ("", "is empty"),
        ("2020-01-01,1\n2020-01-02,2\n", "begins with the row of 2020-01-01; put a line of column names"),
        ("date,a\n2020-01-01,1\n2020-01-02,-2e300\n", r"row 2 \(2020-01-02\) has -2e\+300 in column 'a'"),
        ("a,day\n1,2020-01-01\n2,2020-01-02\n", r"these are the dates \(date='day', in a shell --date 'day'"),
        ("date,\n2020-01-01,1\n", "no column of numbers with a name"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused_by_row_and_column(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        read_series(csv(tmp_path, text))


def test_a_column_that_is_not_there_is_refused(tmp_path):
    path = csv(tmp_path, "date,load\n2020-01-01,1\n")
    with pytest.raises(ValueError, match="did you mean 'load'"):
        read_series(path, columns=["loda"])
    with pytest.raises(ValueError, match="no column of"):
        read_series(path, date="day")
    with pytest.raises(ValueError, match="two columns called 'load'"):
        read_series(path, columns=["load", "load"])


def test_arrays_are_series_without_dates():
    assert as_series(np.arange(6.0)).values.shape == (6, 1)
    assert as_series(torch.zeros(5, 2)).columns == ("0", "1")
    assert as_series([[1, 2], [3, 4]]).dates is None
    with pytest.raises(ValueError, match="shape"):
        as_series(np.zeros((2, 2, 2)))
    with pytest.raises(TypeError, match="data frame"):
        as_series("abc" for _ in range(2))
    with pytest.raises(ValueError, match="row 2 has an infinite number"):
        as_series([1.0, np.inf])
    with pytest.raises(TypeError, match="array of numbers"):
        as_series(np.ones(3) * 1j)


def test_frames_give_their_dates_from_the_index_or_a_column():
    pandas = pytest.importorskip("pandas")
    dates = pandas.date_range("2020-01-01", periods=4, freq="D")
    frame = pandas.DataFrame({"a": [1, 2, 3, None], "b": 2.0}, index=dates)
    by_index = as_series(frame)
    by_column = as_series(frame.rename_axis("date").reset_index())
    by_text = as_series(frame.reset_index(names="day").astype({"day": str}), date="day")
    for found in (by_index, by_column, by_text):
        assert found.columns == ("a", "b")
        assert found.dates.astype("datetime64[D]").astype(str).tolist()[0] == "2020-01-01"
        assert bool(found.values[3, 0].isnan())
    with pytest.raises(ValueError, match=r"row 2 has 'x' in column 'a'"):
        as_series(pandas.DataFrame({"date": dates[:2], "a": ["1", "x"]}))


def test_the_dates_of_a_frame_are_found_whatever_their_kind():
    pandas = pytest.importorskip("pandas")
    hours = pandas.date_range("2025-03-30", periods=5, freq="h")
    a = pandas.Series([1.0, 2, 3, 4, 5], index=hours, name="a")
    frames = [
        a,
        a.to_frame().rename_axis("ds").reset_index(),
        a.to_frame().rename_axis("when").reset_index(),
        a.to_frame().tz_localize("UTC"),
        a.to_frame().to_period("h"),
    ]
    for frame in frames:
        found = as_series(frame)
        assert found.columns == ("a",)
        assert found.dates.tolist() == hours.to_pydatetime().tolist()
    summer = as_series(a.to_frame().tz_localize("UTC").tz_convert("Europe/Berlin"))
    assert summer.dates.tolist() == hours.to_pydatetime().tolist()
    assert "UTC" in summer.notes[0]
    with pytest.raises(ValueError, match="has dates in column 'end' where numbers are needed"):
        as_series(a.to_frame().assign(end=hours))


def test_a_series_names_its_rows_by_date():
    found = replace(blank("ILI"), dates=np.array(["2020-01-01T00:00:00"] * 966, dtype="datetime64[s]"))
    assert found.label(3) == "row 4 (2020-01-01)"
    assert found.choose(["a"]).columns == ("a",)
    assert len(found.take(slice(0, 5))) == 5
