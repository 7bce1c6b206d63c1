"""Series and forecasters: a user's CSV, and the folder of a model."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import bayescore as bs
from file_damage import mutated
from fuzzing.files import damaged
from fuzzing.judging import REFUSED, UNCHANGED, VALID, Attempt, expect, refused
from toy_series import hourly, small, write_csv

__all__ = ["forecasters", "series"]

CELLS = [
    "", "NA", "nan", "inf", "1e999", "1e308", "x", "-9999", "1_0", "-", '"', "\0", "1,2", "2024-02-30",
    "9999-12-31", "0001-01-01", "2024-01-01",
]  # fmt: skip


def series(scratch: Path) -> Attempt:
    """`read_series`, and the grid that its rows are put on."""
    text = write_csv(scratch / "data.csv", hourly(40)).read_text()

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "data.csv"
        if rng.random() < 0.3:
            path.write_bytes(damaged(rng, text.encode()))
        else:
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
            path.write_text("\n".join(",".join(row) for row in lines))
        given = path.read_bytes()
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
