"""Simulation-based calibration of the default fit: four models, a hundred simulated data sets each.

A run simulates one data set, fits it, and notes where the true parameters lie among draws of q, and among
resampled draws (bayescore/inference/simulation.py, whose tests judge). calibration_fits.py has the models.
"""

from __future__ import annotations

import math
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
from bayescore_lab.experiments.posteriordb.more import AUTO

__all__ = ["EXPERIMENT", "MODELS"]

BINS = 10  # of a histogram

MODELS = ("normal", "logistic", "schools, non-centred", "schools, centred")
KINDS = {"u": "q", "u_resampled": "resampled"}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return [
        Run(method, seed, {"model": model})
        for model in settings.get("models", MODELS)
        for method in methods
        for seed in seeds
    ]


def _found(records: Records, model: str, kind: str) -> Any:
    import torch

    from bayescore.inference.simulation import Calibration

    chosen = [r for r in records.where(model=model) if r.metrics.get(kind)]
    if not chosen:
        return None
    names = tuple(chosen[0].metrics[kind])
    rows = [[float(r.metrics[kind][name]) for name in names] for r in chosen]
    grades = tuple(str(r.metrics["grade"]) for r in chosen)
    return Calibration(names, torch.tensor(rows, dtype=torch.float64), grades, 0)


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for model in dict.fromkeys(record.config["model"] for record in records):
        for kind, draws in KINDS.items():
            found = _found(records, model, kind)
            for row in found.rows if found else []:
                numbers: list[Cell] = [row.uniform, row.centred, row.mean, row.sd]
                rows.append([model, row.name, draws, len(found.probabilities), *numbers])
    note = (
        "u is the share of draws below the truth; over simulations it is uniform if q is the posterior (mean "
        "0.5, sd 0.289), and symmetric if q has the right centre. p-values of both; a parameter is called "
        "wrong below 0.01 divided by the number of parameters."
    )
    columns = ["model", "parameter", "draws", "runs", "uniform (p)", "centred (p)", "mean of u", "sd of u"]
    return [Table("Where the truth lies", columns, rows, note=note)]


def figures(records: Records) -> list[Figure]:
    names = list(dict.fromkeys(record.config["model"] for record in records))
    drawing, axes = panels(len(names))
    for panel, model in zip(axes, names, strict=True):
        for kind, draws in KINDS.items():
            if found := _found(records, model, kind):
                u = found.probabilities.flatten().tolist()
                panel.hist(u, bins=BINS, range=(0, 1), density=True, histtype="step", label=draws)
                chance = 1.96 * math.sqrt((BINS - 1) / len(u))
        panel.axhspan(1 - chance, 1 + chance, color="0.9", zorder=0)
        panel.axhline(1.0, color="0.35", linewidth=1.0, linestyle=(0, (1, 1)))
        panel.set_title(model, fontsize=7)
        panel.set_xlabel("u")
    axes[0].set_ylabel("density")
    axes[0].legend(fontsize=6)
    note = (
        "u of all parameters together; flat is right, a hump too wide, horns too narrow. Grey: where 95 % of "
        "the bars of as many independent u lie."
    )
    return [captioned(drawing, records, title="Calibration by simulation", note=note)]


def _judge(records: Records) -> Judgement:
    kept = {model: _found(records, model, "u_resampled") for model in MODELS}
    known = {model: found for model, found in kept.items() if found}
    if not known:
        return Judgement(None, "These records have no simulation.")
    wrong = {model: found.wrong for model, found in known.items() if found.wrong}
    right = len(known) - len(wrong)
    verdict: Verdict = REPRODUCED if not wrong else PARTLY if right >= len(known) / 2 else NOT_REPRODUCED
    said = "; ".join(f"{model}: {', '.join(words)}" for model, words in wrong.items()) or "none is told"
    words = f"Nothing is wrong on {right} of {len(known)} models ({said})."
    return Judgement(verdict, words, {"right": right, "of": len(known)}, f"{right} of {len(known)}")


CLAIMS = (
    Claim(
        "The truth lies where resampled draws of the default fit expect it.",
        "not in the paper",
        Criterion(
            "Reproduced if, on every model, the test of uniformity and the test of symmetry find no "
            "parameter at the level 0.01 of all of them together; partly if on half of them.",
            _judge,
        ),
    ),
)

EXPERIMENT = Experiment(
    id="calibration",
    title="Calibration by simulation",
    location="not in the paper",
    shows="Ranks of true parameters among draws of the default fit, over simulated data sets of four models.",
    methods=(AUTO,),
    profiles={
        "quick": Profile(6, 1, {"models": ["normal"]}),
        "paper": Profile(100, 10, {}),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.posteriordb.calibration_fits:execute"),
    tables=tables,
    figures=figures,
    claims=CLAIMS,
)
