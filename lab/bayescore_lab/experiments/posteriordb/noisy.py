"""Appendix B: the final negative ELBO against the noise level of the scores, four posteriors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayescore_lab.engine import (
    Claim,
    Criterion,
    Experiment,
    Figure,
    Profile,
    Record,
    Records,
    Run,
    Table,
    all_of,
    below,
    captioned,
    looks,
    median_interval,
    mostly,
    panels,
    shared_legend,
)
from bayescore_lab.engine.tables import Cell
from bayescore_lab.experiments.posteriordb.arms import BEST, LOST, NOISY, execute, grid
from bayescore_lab.experiments.posteriordb.drawing import gap_axis, on, rates_table, worst_table

BETAS = [0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0]
METRICS = {
    "nats above the best Gaussian": "gap",
    "-ELBO": "negative_elbo",
    "-ELBO, 1,000 draws": "negative_elbo_1000",
}
NOTE = "Medians over seeds with 95 % intervals; 20,000 draws unless stated."
PEERS = {
    "ADVI": ("ADVI", "ADVI, narrow start"),
    "GSM": ("GSM", "GSM, batch 16, narrow start"),
    "BaM": ("BaM", "BaM, batch 16, narrow start", "BaM, batch 16, BD/(t+1), narrow start"),
}
SHOWN = ("Ours, N=2", "Ours, default", *(arm for arms in PEERS.values() for arm in arms[:2]))


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    chosen = {"iterations": 5000, "pilots": 2, "draws": 20_000, **settings}
    shared = {key: chosen[key] for key in ("iterations", "pilots", "draws")}
    cases = [
        {"posterior": name, "beta": beta, **shared}
        for name in settings.get("posteriors", BEST)
        for beta in settings.get("betas", BETAS)
    ]
    return grid(NOISY, cases, seeds, methods)  # equal iterations: 16 draws take 16 times the score calls


def tables(records: Records) -> list[Table]:
    found = []
    for name in BEST:
        rows: list[list[Cell]] = []
        for arm, chosen in records.where(posterior=name).arms.items():
            for beta in BETAS:
                if some := chosen.where(beta=beta):
                    cells = [median_interval(some.values(metric, math.inf)) for metric in METRICS.values()]
                    rows.append([arm, beta, len(some), *cells])
        if rows:
            title = f"{name}: final negative ELBO under noise; best Gaussian {BEST[name]:g}"
            columns = ["arm", "beta", "runs", *METRICS]
            stem = name.replace("_", "-").lower()
            found.append(Table(title, columns, rows, name=stem, note=NOTE))
    return [*found, worst_table(records, "beta", BETAS, "beta "), rates_table(records)]


def figures(records: Records) -> list[Figure]:
    shown = records.select(lambda r: r.method in SHOWN)
    names = [name for name in BEST if shown.where(posterior=name)]
    if not names:
        return []
    drawing, axes = panels(min(2, len(names)), -(-len(names) // 2), width=4.4, height=3.0)
    look = looks(SHOWN)
    for panel, name in zip(axes, names, strict=False):
        for arm, chosen in shown.where(posterior=name).arms.items():
            levels = sorted({r.config["beta"] for r in chosen})
            rows = [np.minimum(chosen.where(beta=b).values("gap", math.inf), LOST) for b in levels]
            style = look[arm]
            x = [max(level, 0.003) for level in levels]
            low, middle, high = (
                np.array([np.quantile(r, q, method="nearest") for r in rows]) for q in (0, 0.5, 1)
            )
            panel.fill_between(x, low, high, color=style.colour, alpha=0.1, linewidth=0)
            panel.plot(x, middle, color=style.colour, linestyle=style.line, marker=style.marker, label=arm)
        panel.set(xscale="log", xlabel="noise beta (leftmost: 0)", ylabel="nats above the best Gaussian")
        panel.set_title(name)
        gap_axis(panel)
    shared_legend(drawing, columns=3)
    note = (
        "Lines: medians over seeds; bands: smallest to largest. The axis is linear up to 1 nat, logarithmic "
        "beyond, and ends at a million nats."
    )
    return [captioned(drawing, shown, title="PosteriorDB, noisy scores", note=note)]


def _ahead(ours: str, others: Sequence[str], beta: float, names: Sequence[str] = tuple(BEST)) -> Criterion:
    rules = [
        on(name, below("gap", ours, other, name="the final gap"), beta=beta)
        for name in names
        for other in others
    ]
    return all_of(*rules)


def _lost(record: Record) -> bool:
    return float(record.metrics["gap"]) > 10


def _claims() -> list[Claim]:
    plain = ("ADVI", "GSM", "BaM")
    every = [arm for arms in PEERS.values() for arm in arms]
    fail = [
        on(name, mostly(_lost, "the fit ends more than 10 nats above the best Gaussian", arm), beta=1.0)
        for name in BEST
        for arm in ("GSM", "BaM")
    ]
    return [
        Claim("GSM and BaM fail to converge to reasonable values (beta = 1).", "App. B", all_of(*fail)),
        Claim("ADVI is more robust than GSM and BaM (beta = 1).", "App. B", _ahead("ADVI", plain[1:], 1.0)),
        Claim("Ours is the most robust (beta = 1).", "App. B", _ahead("Ours, N=2", plain, 1.0)),
        Claim(
            "Ours is the most robust at extreme noise (beta = 10).",
            "App. B",
            _ahead("Ours, N=2", plain, 10.0),
        ),
        *(
            Claim(
                f"With our default ours is below every arm of the others on {name} (beta = 1).",
                "not in the paper",
                _ahead("Ours, default", every, 1.0, [name]),
            )
            for name in BEST
        ),
    ]


EXPERIMENT = Experiment(
    id="posteriordb-noisy",
    title="PosteriorDB with noisy scores: who still arrives",
    location="App. B",
    shows="Final negative ELBO against the noise level, four posteriors.",
    methods=tuple(NOISY),
    profiles={
        "quick": Profile(
            seeds=2,
            minutes=3,
            settings={
                "iterations": 300,
                "pilots": 1,
                "draws": 5000,
                "posteriors": ["arK"],
                "betas": [0.0, 1.0],
            },
        ),
        "paper": Profile(seeds=6, minutes=90, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=_claims(),
)
