"""A logistic regression with a million rows: mini-batch fits beside those of NumPyro and PyMC.

The data are generated from a stated seed into a file that is memory-mapped. What is compared is the error of
means and standard deviations against the exact posterior, and how many passes over the data it took; a pass
is N evaluations of the log likelihood of a row at a point, whoever makes them. minibatch_fits.py has our fits
and the exact posterior, minibatch_peers.py the peers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
    Criterion,
    Experiment,
    Figure,
    Imported,
    Judgement,
    Profile,
    Records,
    Run,
    Table,
    captioned,
    panels,
)
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED, Verdict

__all__ = ["EXPERIMENT", "OURS", "PEERS", "RATES"]

#: our arms and their families
OURS = {"anchored, full": "full", "anchored, low rank": "low-rank"}
#: arm: library and family
PEERS = {
    "NumPyro, full": ("numpyro", "full"),
    "NumPyro, low rank": ("numpyro", "low-rank"),
    "PyMC, full": ("pymc", "full"),
}
RATES = (1e-3, 3e-3, 1e-2)  # of the peers' Adam; the best is chosen by its errors against the exact posterior
MEAN_LIMIT, SD_LIMIT = 0.05, math.log(1.05)


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    config = dict(settings)
    return [Run(method, seed, config) for method in methods for seed in seeds]


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for arm, chosen in records.arms.items():
        numbers: list[Cell] = [_worst(chosen, metric) for metric in ("mean_error", "sd_error")]
        passes: list[Cell] = [_median(chosen, metric) for metric in ("passes", "search_passes")]
        seconds = statistics.median(record.seconds for record in chosen)
        rows.append([arm, *numbers, *passes, seconds, str(chosen[0].metrics.get("setting", ""))])
    note = (
        "Errors against the exact posterior, the largest over coefficients on the worst seed: "
        "|mean - exact| / sd and |log(sd / exact sd)|. A pass is N evaluations of a row at a point; those of "
        "the search for a learning rate are not in the first number. Seconds are of one fit, on a machine "
        "that may have had other work."
    )
    columns = ["arm", "mean error", "sd error", "passes", "passes of tuning", "seconds", "setting"]
    return [Table("A million rows in mini-batches", columns, rows, note=note)]


def figures(records: Records) -> list[Figure]:
    drawing, axes = panels(2)
    for panel, metric in zip(axes, ("mean_error", "sd_error"), strict=True):
        for i, (arm, chosen) in enumerate(records.arms.items()):
            x = [float(record.metrics["passes"]) for record in chosen]
            panel.plot(x, chosen.values(metric, math.inf), "o", color=f"C{i}", label=arm)
        limit = MEAN_LIMIT if metric == "mean_error" else SD_LIMIT
        panel.axhline(limit, color="0.35", linestyle=(0, (1, 1)))
        panel.set(xscale="log", yscale="log", xlabel="passes over the data", ylabel=metric.replace("_", " "))
    axes[0].legend(fontsize=6)
    note = "A point per seed; the lines are 0.05 sd and 5 %."
    return [captioned(drawing, records, title="Errors and passes", note=note)]


def _worst(records: Records, metric: str) -> float:
    return float(max(records.values(metric, math.inf)))


def _median(records: Records, metric: str) -> float:
    return float(statistics.median(records.values(metric, math.inf)))


def _accurate(records: Records) -> bool:
    return _worst(records, "mean_error") <= MEAN_LIMIT and _worst(records, "sd_error") <= SD_LIMIT


def _fewer(ours: str, peers: Sequence[str]) -> Criterion:
    words = (
        f"Reproduced if {ours} has every mean within {MEAN_LIMIT:g} sd and every sd within 5 % on every "
        "seed, and every peer either has not, or took more passes; partly if it is accurate and a peer is "
        "as well with fewer passes."
    )

    def judge(records: Records) -> Judgement:
        arms = records.arms
        if ours not in arms or not all(peer in arms for peer in peers):
            return Judgement(None, f"These records do not have {ours} and {', '.join(peers)}.")
        passes = {arm: _median(arms[arm], "passes") for arm in (ours, *peers)}
        sooner = [peer for peer in peers if _accurate(arms[peer]) and passes[peer] <= passes[ours]]
        verdict: Verdict = REPRODUCED if not sooner else PARTLY
        if not _accurate(arms[ours]):
            verdict = NOT_REPRODUCED
        parts = [
            f"{arm}: {_worst(arms[arm], 'mean_error'):.3g} sd and {_worst(arms[arm], 'sd_error'):.3g} after "
            f"{passes[arm]:.3g} passes"
            for arm in passes
        ]
        return Judgement(verdict, "; ".join(parts) + ".", dict(passes), f"{passes[ours]:.3g} passes")

    return Criterion(words, judge)


CLAIMS = (
    Claim(
        "A full Gaussian is accurate in fewer passes over the data than NumPyro's and PyMC's.",
        "not in the paper",
        _fewer("anchored, full", ("NumPyro, full", "PyMC, full")),
    ),
    Claim(
        "A low-rank Gaussian is accurate in fewer passes over the data than NumPyro's.",
        "not in the paper",
        _fewer("anchored, low rank", ("NumPyro, low rank",)),
    ),
)

_SIZE = {"rows": 1_000_000, "dim": 50, "batch_size": 500, "steps": 1000, "peer_batch": 1000, "passes": 20}

EXPERIMENT = Experiment(
    id="minibatch-logistic",
    title="A logistic regression with a million rows",
    location="not in the paper",
    shows="Errors of means and standard deviations against the exact posterior, and passes over the data, of "
    "mini-batch fits with an anchor and of NumPyro's and PyMC's mini-batch ADVI.",
    methods=(*OURS, *PEERS),
    profiles={
        "quick": Profile(2, 2, {**_SIZE, "rows": 20_000, "dim": 10, "steps": 500, "passes": 5}),
        "paper": Profile(3, 20, _SIZE),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.posteriordb.minibatch_fits:execute"),
    tables=tables,
    figures=figures,
    claims=CLAIMS,
)
