"""Series, tables and their models: a user's CSV, and the folder of a model."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np

import bayescore as bs
from bayescore.tables.columns import encode, learn_columns
from file_damage import mutated
from fuzzing.files import damaged
from fuzzing.judging import REFUSED, UNCHANGED, VALID, Attempt, expect, refused
from toy_series import hourly, small, write_csv

__all__ = ["forecasters", "series", "table_models", "tables"]

CELLS = [
    "", "NA", "nan", "inf", "1e999", "1e308", "x", "-9999", "1_0", "-", '"', "\0", "1,2", "2024-02-30",
    "9999-12-31", "0001-01-01", "2024-01-01",
]  # fmt: skip


def _damaged_csv(rng: random.Random, text: str) -> bytes:
    """A CSV with damaged bytes, or with other cells and rows."""
    if rng.random() < 0.3:
        return damaged(rng, text.encode())
    lines = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.choice([1, 1, 2, 5])):
        row = rng.choice(lines)
        what = rng.choice(["cell", "cell", "cell", "drop", "double", "short"])
        if what == "cell":
            row[rng.randrange(len(row))] = rng.choice(CELLS)
        elif what == "drop" and len(lines) > 1:
            lines.remove(row)
        elif what == "double":
            lines.insert(rng.randrange(len(lines)), list(row))
        elif len(row) > 1:
            row.pop()
    return "\n".join(",".join(row) for row in lines).encode()


TABLE = "\n".join(
    ["size,colour,garden,sold,price"]
    + [f"{i / 7:.2f},{'red' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'},2024-01-{1 + i % 28:02d},{i}"
       for i in range(40)]
)  # fmt: skip


def tables(scratch: Path) -> Attempt:
    """`read_table`, and the numbers that its columns become."""

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "data.csv"
        given = _damaged_csv(rng, TABLE)
        path.write_bytes(given)

        def read() -> np.ndarray:
            table = bs.data.read_table(path, rng.choice(["price", "colour"]))
            known, _ = learn_columns(table.columns)
            return encode(known, table.columns, "the table")

        no, found = refused(read)
        expect(path.read_bytes() == given, "reading changed the file")
        if no:
            return REFUSED
        expect(np.isfinite(found).all(), "a number is not finite")
        return VALID

    return attempt


def table_models(scratch: Path) -> Attempt:
    """`load_table`, and a prediction of what was read."""
    whole, path = scratch / "model", scratch / "data.csv"
    path.write_text(TABLE)
    parts = bs.data.parts(bs.data.read_table(path, "price"))
    settings = bs.tables.RowSettings(epochs=1, members=2, hidden=(4,))
    bs.tables.train_table(parts, settings, draws=2).save(whole)

    def attempt(rng: random.Random, place: Path) -> str:
        folder = place / "model"
        shutil.copytree(whole, folder)
        file = folder / rng.choice(["model.json", "model.json", "posterior.safetensors"])
        if file.suffix == ".json":
            file.write_text(mutated(json.loads(file.read_text()), rng))
        else:
            file.write_bytes(damaged(rng, file.read_bytes()))
        given = file.read_bytes()
        no, found = refused(lambda: bs.tables.load_table(folder))
        expect(file.read_bytes() == given, "reading changed the file")
        if no:
            return REFUSED
        no, _ = refused(lambda: found.predict(path, 2))
        if no:
            return REFUSED
        return UNCHANGED if given == (whole / file.name).read_bytes() else VALID

    return attempt


def series(scratch: Path) -> Attempt:
    """`read_series`, and the grid that its rows are put on."""
    text = write_csv(scratch / "data.csv", hourly(40)).read_text()

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "data.csv"
        given = _damaged_csv(rng, text)
        path.write_bytes(given)
        no, found = refused(lambda: bs.data.regular_series(bs.data.read_series(path)))
        expect(path.read_bytes() == given, "reading changed the file")
        if no:
            return REFUSED
        expect(found.series.values.isfinite().all(), "a value is still missing")
        return VALID

    return attempt


def forecasters(scratch: Path) -> Attempt:
    """`Forecaster.load`, and a forecast of what was read."""
    whole = scratch / "model"
    small(epochs=1).fit(hourly(100), progress=False).save(whole)

    def attempt(rng: random.Random, place: Path) -> str:
        folder = place / "model"
        shutil.copytree(whole, folder)
        path = folder / rng.choice(["model.json", "model.json", "forecast.safetensors"])
        if path.suffix == ".json":
            path.write_text(mutated(json.loads(path.read_text()), rng))
        else:
            path.write_bytes(damaged(rng, path.read_bytes()))
        given = path.read_bytes()
        no, found = refused(lambda: bs.forecast.Forecaster.load(folder))
        expect(path.read_bytes() == given, "reading changed the file")
        if no:
            return REFUSED
        no, forecast = refused(lambda: found.predict(draws=2))
        if no:
            return REFUSED
        expect(forecast.quantile(0.9).isfinite().all(), "it forecasts no numbers")
        return UNCHANGED if given == (whole / path.name).read_bytes() else VALID

    return attempt
