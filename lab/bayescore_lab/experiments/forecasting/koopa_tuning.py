"""What the paper does not state, chosen on validation: temperature and initial width, eight trials each.

One setting per method serves all data sets: the one with the lowest mean NLL over the validation windows of
ILI and Exchange, seed 0. ETTh2 and Weather have no part in the choice. The best settings are in
`koopa_arms.TUNED`; a test compares them with the committed records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Experiment,
    Figure,
    Imported,
    Profile,
    Record,
    Records,
    Run,
    Table,
    captioned,
    figure_style,
    looks,
    panels,
    shared_legend,
)
from bayescore_lab.engine.records import dumps
from bayescore_lab.engine.tables import Cell
from bayescore_lab.experiments.forecasting.koopa_arms import (
    ADVI,
    DROPOUT,
    OURS,
    PROXIMAL,
    TUNED,
    cost,
)
from bayescore_lab.experiments.forecasting.koopa_results import data_sets

__all__ = ["EXPERIMENT", "TRIALS", "best_settings"]

TAUS = (1e-6, 1e-4, 1e-3, 1e-2)
SETTINGS: dict[str, Any] = {"data": {"ILI": {}, "Exchange": {}}, "epochs": 10}
QUICK: dict[str, Any] = {"data": {"ILI": {"hidden": 16, "dynamic_dim": 8}}, "epochs": 1}

Trial = dict[str, Any]


def _trials(shared: Trial, name: str, values: Sequence[float]) -> list[Trial]:
    return [{"options": {**shared, "tau": tau, name: v}} for v, tau in itertools.product(values, TAUS)]


TRIALS: dict[str, list[Trial]] = {
    ADVI: _trials({"lr": 1e-3}, "init_sd", (1e-3, 1e-2)),
    OURS: _trials({"lr": 1e-3, "inner_steps": 2}, "init_sd", (1e-3, 1e-2)),
    # it has no initial width; the temperature 1 of its likelihood is a tau of about 1e-2 on ILI
    PROXIMAL: [{"options": {"lr": 1e-3, "tau": tau}} for tau in (*TAUS, 3e-2, 0.1, 0.3, 1.0)],
    DROPOUT: [
        {"options": {"lr": 1e-3}, "sizes": {"dropout": p}}
        for p in (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
    ],
}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    chosen = {**SETTINGS, **settings}
    return [
        Run(
            name,
            seed,
            {
                "data": data,
                "kind": TUNED[name]["kind"],
                "options": trial["options"],
                "sizes": {**sizes, **trial.get("sizes", {})},
                "epochs": chosen["epochs"],
            },
            "",
            cost(data, name),
        )
        for data, sizes in chosen["data"].items()
        for name in methods
        for trial in TRIALS[name]
        for seed in seeds
    ]


def arm(record: Record) -> str:
    return f"{record.method} {_setting(record)} {record.config['data']}"


def _setting(record: Record) -> str:
    """The options, and the dropout where it is one of them."""
    dropout = record.config["sizes"].get("dropout")
    options = record.config["options"] | ({} if dropout is None else {"dropout": dropout})
    return dumps(options)


def best_settings(records: Records) -> dict[str, str]:
    """By method, the setting with the lowest mean validation NLL over the data sets."""
    return {method: rows[0][0] for method, rows in _ranked(records).items() if rows}


def _ranked(records: Records) -> dict[str, list[tuple[str, float, dict[str, float]]]]:
    """By method, every setting with its mean NLL and those of the data sets, best first; inf: diverged."""
    wanted = data_sets(records)
    found: dict[str, list[tuple[str, float, dict[str, float]]]] = {}
    for method in dict.fromkeys(record.method for record in records):
        own = [record for record in records if record.method == method]
        rows = []
        for setting in dict.fromkeys(_setting(record) for record in own):
            chosen = [record for record in own if _setting(record) == setting]
            by_data = {r.config["data"]: float(r.metrics.get("validation_nll", math.inf)) for r in chosen}
            mean = sum(by_data.get(data, math.inf) for data in wanted) / len(wanted)
            rows.append((setting, mean, by_data))
        found[method] = sorted(rows, key=lambda row: row[1])
    return found


def tables(records: Records) -> list[Table]:
    names = data_sets(records)
    rows: list[list[Cell]] = []
    for method, ranked in _ranked(records).items():
        spec = TUNED[method]
        used = dumps(spec["options"] | spec.get("sizes", {}))
        for place, (setting, mean, by_data) in enumerate(ranked):
            marks = ["best" if not place else "", "used" if setting == used else ""]
            rows.append([method, setting, mean, *(by_data.get(data) for data in names), *marks])
    columns = ["method", "settings", "mean", *names, "", "in the experiment"]
    note = "NLL on validation windows (5 draws, noise fitted on the same windows), seed 0; 10 epochs."
    return [Table("Eight trials per method, on validation", columns, rows, note=note)]


def figures(records: Records) -> list[Figure]:
    """The validation NLL against the temperature, for every method that has one, by data set."""
    names = data_sets(records)
    shown = records.select(lambda r: "tau" in r.config["options"])
    if not len(shown):
        return []
    with figure_style():
        drawing, axes = panels(len(names), width=max(3.2, 7 / len(names)), height=3.0)
        for panel, data in zip(axes, names, strict=True):
            lines: dict[str, list[tuple[float, float]]] = {}
            for record in shown.where(data=data):
                options = record.config["options"]
                extra = f", initial sd {options['init_sd']:g}" if "init_sd" in options else ""
                value = float(record.metrics.get("validation_nll", math.nan))
                lines.setdefault(f"{record.method}{extra}", []).append((options["tau"], value))
            look = looks(lines)
            for name, points in lines.items():
                style = look[name]
                panel.plot(
                    *zip(*sorted(points), strict=True), color=style.colour, linestyle=style.line,
                    marker=style.marker, markersize=4, label=name,
                )  # fmt: skip
            panel.set_xscale("log")
            panel.set(title=data, xlabel="temperature", ylabel="validation NLL")
        shared_legend(drawing)
    return [
        captioned(
            drawing, records, title="What the temperature does", note="Seed 0; a missing point diverged."
        )
    ]


EXPERIMENT = Experiment(
    id="koopa-tuning",
    title="Settings for Bayesian Koopa: eight trials per method, on validation",
    location="beside Table 2",
    shows="The validation NLL of every trial against the temperature, on ILI and Exchange.",
    methods=tuple(TRIALS),
    profiles={
        "quick": Profile(seeds=1, minutes=2, settings=QUICK),
        "ili": Profile(seeds=1, minutes=3, settings={"data": {"ILI": {}}}),
        "paper": Profile(seeds=1, minutes=25, settings={}),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.forecasting.koopa_fits:execute_trials"),
    tables=tables,
    figures=figures,
    arm=arm,
    axis="epoch",
)
