"""A user's series on a regular grid: what is mended, and what is refused by row and column."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayescore.data import Series, read_series, regular_series
from bayescore.data.dates import Frequency


def dated(texts: list[str], values: list[float] | None = None) -> Series:
    numbers = values or [float(i * i) for i in range(len(texts))]
    return Series(
        torch.tensor(numbers, dtype=torch.float64)[:, None],
        ("a",),
        np.array(texts, dtype="datetime64[s]"),
        "my.csv",
    )


def days(count: int, start: str = "2024-01-01", step: int = 1) -> list[str]:
    first = np.datetime64(start, "D")
    return [str(first + i * step) for i in range(count)]


def test_a_regular_series_is_left_as_it_is():
    series = dated(days(10))
    found = regular_series(series)
    assert found.series is series
    assert found.notes == ()
    assert str(found.frequency) == "1 day"


def test_unsorted_dates_are_sorted_and_said():
    texts = days(10)
    swapped = [*texts[:4], texts[5], texts[4], *texts[6:]]
    found = regular_series(dated(swapped))
    assert found.series.dates.astype("datetime64[D]").astype(str).tolist() == texts
    assert found.series.values[4:6, 0].tolist() == [25, 16]
    assert "row 6 (2024-01-05) was before the row above it" in found.notes[0]


def test_duplicate_dates_are_refused_with_both_rows():
    with pytest.raises(ValueError, match=r"my.csv: rows 3 and 5 have the same date, 2024-01-03"):
        regular_series(dated([*days(4), "2024-01-03", "2024-01-05"]))


def test_a_gap_in_the_dates_is_filled_on_a_line():
    texts = days(40)
    kept = [*range(10), *range(12, 40)]
    found = regular_series(dated([texts[i] for i in kept], [float(i) for i in kept]))
    assert found.series.values[:, 0].tolist() == pytest.approx(list(range(40)))
    assert len(found.series.dates) == 40
    assert "2 missing rows were filled in, the first after row 10 (2024-01-10)" in found.notes[0]


def test_a_long_gap_in_the_dates_is_refused_with_its_rows():
    texts = days(400)
    with pytest.raises(
        ValueError, match=r"30 rows are missing between row 10 \(2024-01-10\) and row 11 \(2024-02-10\)"
    ):
        regular_series(dated([*texts[:10], *texts[40:]]))
    assert len(regular_series(dated([*texts[:10], *texts[40:]]), max_gap=30).series) == 400


@pytest.mark.parametrize(
    "texts",
    [
        [*days(20), *days(20, "2024-01-27", 7)],
        [*days(20, step=7), *days(3, "2024-05-14")],
        [*days(10), "2024-01-10T12:00", *days(10, "2024-01-11")],
    ],
    ids=["daily then weekly", "weekly then daily", "between two days"],
)
def test_mixed_frequencies_are_refused_with_the_first_row_that_differs(texts):
    with pytest.raises(
        ValueError, match=r"no common frequency: rows are most often .* apart, and row \d+ \(2024.*\) is not"
    ):
        regular_series(dated(texts), max_gap=3)


def test_missing_values_are_filled_on_a_line_and_said():
    series = dated(days(6), [float("nan"), 1.0, float("nan"), 3.0, 4.0, float("nan")])
    found = regular_series(series)
    assert found.series.values[:, 0].tolist() == [1, 1, 2, 3, 4, 4]
    assert found.notes == ("3 missing values of 'a' were filled in, the first in row 1 (2024-01-01)",)


def test_many_missing_values_in_a_row_are_refused_with_row_and_column():
    values = [1.0] * 5 + [float("nan")] * 6 + [2.0]
    with pytest.raises(ValueError, match=r"column 'a' has no values from row 6 \(2024-01-06\) on for 6 rows"):
        regular_series(dated(days(12), values), max_gap=5)


def test_an_empty_column_is_refused():
    series = replace(
        dated(days(3)), values=torch.tensor([[1, torch.nan]] * 3, dtype=torch.float64), columns=("a", "b")
    )
    with pytest.raises(ValueError, match="column 'b' has no values"):
        regular_series(series)


def test_a_column_that_never_changes_is_noted():
    assert regular_series(dated(days(4), [7.0] * 4)).notes == (
        "column 'a' never changed: the forecast there does not either",
    )


def test_rows_of_another_frequency_than_known_are_refused():
    with pytest.raises(ValueError, match=r"rows 1 week apart where rows 1 day apart are needed, as in row 1"):
        regular_series(dated(days(10, step=7)), frequency=Frequency("seconds", 86_400))


def test_arrays_need_no_dates():
    found = regular_series(Series(torch.tensor([[1.0], [torch.nan], [3.0]], dtype=torch.float64), ("a",)))
    assert found.frequency is None
    assert found.series.values.flatten().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("texts", "name", "following"),
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], "1 month", ["2024-04-30", "2024-05-31"]),
        (["2023-12-15", "2024-01-15", "2024-02-15"], "1 month", ["2024-03-15", "2024-04-15"]),
        (["2023-01-01", "2023-04-01", "2023-07-01"], "3 months", ["2023-10-01", "2024-01-01"]),
        (["2020-02-29", "2024-02-29", "2028-02-29"], "4 years", ["2032-02-29", "2036-02-29"]),
        (["2024-01-04", "2024-01-05", "2024-01-08"], "1 business day", ["2024-01-09", "2024-01-10"]),
        (["2024-01-01", "2024-01-08", "2024-01-15"], "1 week", ["2024-01-22", "2024-01-29"]),
        (["2024-01-01T23:30", "2024-01-01T23:40", "2024-01-01T23:50"], "10 minutes",
         ["2024-01-02T00:00", "2024-01-02T00:10"]),
    ],
)  # fmt: skip
def test_frequencies_are_recognised_and_continued(texts, name, following):
    found = regular_series(dated(texts))
    assert str(found.frequency) == name
    assert found.notes == ()
    after = found.frequency.steps_from(found.series.dates[-1], 2, found.month_end)
    assert [str(date)[: len(wanted)] for date, wanted in zip(after, following, strict=True)] == following


def test_too_few_rows_for_a_frequency_are_refused():
    with pytest.raises(ValueError, match="2 rows"):
        regular_series(dated(days(2)))


def test_a_business_week_has_no_gap_at_the_weekend(tmp_path):
    texts = [day for day in days(40) if np.is_busday(np.datetime64(day))]
    path = tmp_path / "b.csv"
    path.write_text("date,a\n" + "\n".join(f"{day},{i}" for i, day in enumerate(texts)))
    found = regular_series(read_series(path))
    assert str(found.frequency) == "1 business day"
    assert found.notes == ()


def test_rows_are_named_by_their_place_in_the_file_after_sorting_and_filling():
    texts = days(12)
    series = dated([texts[11], *texts[:4], *texts[6:11]], [float(i) for i in range(10)])
    values = series.values.clone()
    values[7, 0] = torch.nan
    found = regular_series(replace(series, values=values))
    assert found.notes == (
        "rows were sorted by date (row 2 (2024-01-01) was before the row above it)",
        "2 missing rows were filled in, the first after row 5 (2024-01-04)",
        "1 missing value of 'a' was filled in, the first in row 8 (2024-01-09)",
    )
    values[5, 0] = torch.nan
    with pytest.raises(ValueError, match="no values from the missing row of 2024-01-05 on for 3 rows"):
        regular_series(replace(series, values=values), max_gap=2)


def test_missing_values_of_many_columns_are_one_note():
    series = dated(days(6))
    values = torch.arange(30, dtype=torch.float64).reshape(6, 5)
    values[2:4] = torch.nan
    found = regular_series(replace(series, values=values, columns=tuple("abcde")))
    assert found.notes == (
        "10 missing values were filled in, in 5 columns, the first of them 'a' from row 3 (2024-01-03) on",
    )


def test_years_are_dates():
    found = regular_series(dated([str(year) for year in range(1990, 2000)]))
    assert str(found.frequency) == "1 year"
    assert str(found.frequency.steps_from(found.series.dates[-1], 1)[0]) == "2000-01-01T00:00:00"
