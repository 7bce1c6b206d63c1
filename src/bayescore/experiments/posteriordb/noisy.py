"""Appendix B: the final negative ELBO against the noise level of the scores, four posteriors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayescore.experiments import (
    Claim,
    Experiment,
    Figure,
    Profile,
    Records,
    Run,
    Table,
    all_of,
    arm_table,
    below,
    captioned,
    looks,
    panels,
    shared_legend,
)
from bayescore.experiments.posteriordb.arms import NOISY, grid
from bayescore.experiments.posteriordb.drawing import on, rates_table
from bayescore.experiments.posteriordb.fits import BEST, LOST, execute

BETAS = [0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0]
METRICS = {
    "nats above the best Gaussian": "gap",
    "-ELBO": "negative_elbo",
    "-ELBO, 1,000 draws": "negative_elbo_1000",
}
ROBUST = "Ours, clipped"


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    chosen = {"iterations": 5000, "pilots": 2, "posteriors": list(BEST), "betas": BETAS, **settings}
    cases = [
        {"posterior": name, "iterations": chosen["iterations"], "pilots": chosen["pilots"], "beta": beta}
        for name in chosen["posteriors"]
        for beta in chosen["betas"]
    ]
    return grid(NOISY, cases, seeds, methods)  # equal iterations: a batch of 32 spends 32 times the calls


def tables(records: Records) -> list[Table]:
    found = []
    for name in BEST:
        for beta in BETAS:
            chosen = records.where(posterior=name, beta=beta)
            if chosen:
                title = f"{name}, noise beta = {beta:g}; best Gaussian {BEST[name]:g}"
                stem = f"{name}-{beta:g}".replace("_", "-").replace(".", "-").lower()
                found.append(arm_table(chosen, METRICS, title=title, name=stem, note="Medians over seeds."))
    return [*found, worst_table(records), rates_table(records)]


def worst_table(records: Records) -> Table:
    """The largest gap over seeds of every arm at every noise level."""
    rows: list[list[Any]] = []
    for name in BEST:
        for arm, chosen in records.where(posterior=name).arms.items():
            cells = [chosen.where(beta=beta) for beta in BETAS]
            rows.append([name, arm, *(float(c.values("gap", math.inf).max()) if c else None for c in cells)])
    columns = ["posterior", "arm", *(f"beta {beta:g}" for beta in BETAS)]
    return Table("Nats above the best Gaussian on the worst seed", columns, rows, name="worst")


def figures(records: Records) -> list[Figure]:
    names = [name for name in BEST if records.where(posterior=name)]
    drawing, axes = panels(2, -(-len(names) // 2), width=4.4, height=3.0)
    look = looks(NOISY)
    for panel, name in zip(axes, names, strict=False):
        for arm, chosen in records.where(posterior=name).arms.items():
            levels = sorted({r.config["beta"] for r in chosen})
            rows = [np.clip(chosen.where(beta=b).values("gap", math.inf), 1e-3, LOST) for b in levels]
            style = look[arm]
            x = [max(level, 0.003) for level in levels]
            low, middle, high = (
                np.array([np.quantile(r, q, method="nearest") for r in rows]) for q in (0, 0.5, 1)
            )
            panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)
            panel.plot(x, middle, color=style.colour, linestyle=style.line, marker=style.marker, label=arm)
        panel.set(
            xscale="log",
            yscale="log",
            xlabel="noise beta (leftmost: 0)",
            ylabel="nats above the best Gaussian",
        )
        panel.set_title(name)
    shared_legend(drawing, columns=4)
    note = "Lines: medians over seeds; bands: smallest to largest."
    return [captioned(drawing, records, title="PosteriorDB, noisy scores", note=note)]


def _robust(ours: str, beta: float) -> list[Any]:
    peers = ("ADVI", "GSM", "BaM")
    return [on(name, below("gap", ours, peer), beta=beta) for name in BEST for peer in peers]


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
            settings={"iterations": 300, "pilots": 1, "posteriors": ["arK"], "betas": [0.0, 1.0]},
        ),
        "paper": Profile(seeds=6, minutes=90, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=(
        Claim(
            "Ours is more robust to noise than the others (beta = 1).",
            "App. B",
            all_of(*_robust("Ours, N=2", 1.0)),
        ),
        Claim(
            "With clipped residuals ours is more robust to noise than the others (beta = 1).",
            "not in the paper",
            all_of(*_robust(ROBUST, 1.0)),
        ),
    ),
)
