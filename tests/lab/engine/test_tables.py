"""One table in three renderings."""

from __future__ import annotations

import csv
import io
import math

import pytest
from rich.console import Console

from bayescore_lab.engine import Interval, Table
from bayescore_lab.engine.wording import number

TABLE = Table(
    title="KL [nats] | final",
    columns=["arm", "runs", "KL", "paper"],
    rows=[
        ["Ours [a]", 20, Interval(1 / 3, 0.25, 0.5, 20), 0.0153],
        ["AD|VI", 20, Interval(2.0, -math.inf, math.inf, 2), None],
    ],
    note="Median [95 %].",
)


def test_csv_keeps_every_digit_and_spreads_intervals():
    header, first, second = csv.reader(io.StringIO(TABLE.csv()))
    assert header == ["arm", "runs", "KL", "KL low", "KL high", "KL n", "paper"]
    assert float(first[2]) == 1 / 3
    assert first[3:] == ["0.25", "0.5", "20", "0.0153"]
    assert second == ["AD|VI", "20", "2.0", "-Infinity", "Infinity", "2", ""]


def test_markdown_has_one_cell_per_column_whatever_the_text():
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "**KL [nats] \\| final**"
    assert lines[2:4] == ["| arm | runs | KL | paper |", "|---|---|---|---|"]
    assert lines[4] == "| Ours [a] | 20 | 0.3333 [0.25, 0.5] | 0.0153 |"
    assert lines[5] == "| AD\\|VI | 20 | 2 |  |"
    assert lines[-1] == "Median [95 %]."


def test_terminal_shows_brackets_as_they_are():
    console = Console(file=io.StringIO(), width=120)
    console.print(TABLE.terminal())
    text = console.file.getvalue()
    for piece in ("KL [nats] | final", "Ours [a]", "0.3333 [0.25, 0.5]", "Median [95 %]."):
        assert piece in text


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match="row 0 of the table 't' has 1 cells for 2 columns"):
        Table("t", ["a", "b"], [[1]])


NUMBERS = {0.0153: "0.0153", 946: "946", 946.5: "946.5", 1e-7: "1e-07", 123456: "123,456", 12345.6: "12346"}
NUMBERS |= {math.inf: "inf", -math.inf: "-inf", math.nan: "nan", 1e300: "1e+300", 0: "0", 20.0: "20"}


@pytest.mark.parametrize(("value", "text"), NUMBERS.items())
def test_numbers_are_rounded_for_people(value, text):
    assert number(value) == text
