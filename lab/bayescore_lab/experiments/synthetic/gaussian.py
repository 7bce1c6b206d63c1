"""Fig. 1, top: a 3-dimensional Gaussian target and a Gaussian family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Claim, Experiment, Figure, Profile, Records, Run, Table, all_of, below
from bayescore_lab.experiments.synthetic.arms import ADVI, BAM, GSM, OURS, arm, execute, grid
from bayescore_lab.experiments.synthetic.drawing import SETTING, kl_figure, kl_tables

ARMS = {
    "Ours": OURS,
    "Ours, default": arm("proximal", tuned=False),
    "Ours, Cov(q_t) norm": arm("proximal", metric="covariance", optimizer="adam"),
    "ADVI": ADVI,
    "ADVI, sticking": arm("advi", stick=True),
    "GSM": GSM,
    "BaM": BAM,
    "Ours, exact, diagonal q": arm("proximal", tuned=False, solver="exact") | {"diagonal": True},
    "Ours, diagonal q": arm("proximal") | {"diagonal": True},
    "ADVI, diagonal q": arm("advi") | {"diagonal": True},
    "BaM, diagonal q": arm("bam", tuned=False, steps=500) | {"diagonal": True},
}
GAUSSIAN = {
    **SETTING,
    "target": {"kind": "gaussian", "dim": 3},
    "family": {"kind": "gaussian"},
    "hold_below": 0.001,
    "records": 300,
}
METRICS = {
    "forward KL": "forward_kl",
    "mean error": "mean_error",
    "covariance error": "covariance_error",
    "score calls to 1e-2": "calls_0.01",
    "score calls to 1e-3": "calls_0.001",
}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return grid(ARMS, {**GAUSSIAN, **settings}, seeds, methods)


def tables(records: Records) -> list[Table]:
    return kl_tables(records, "Gaussian targets, 1,000 score calls", METRICS, note="Closed-form KL.")


def figures(records: Records) -> list[Figure]:
    traces = (("forward_kl", "forward KL"), ("mean_error", "|m - m*|"), ("covariance_error", "|V - V*|"))
    full = records.select(lambda r: "diagonal" not in r.method)
    diagonal = records.select(lambda r: "diagonal" in r.method)
    hits = ("calls_0.01", "score calls to 1e-2")
    found = [kl_figure(full, "Gaussian targets, full Gaussian family", traces=traces, points=hits)]
    if diagonal:
        found.append(kl_figure(diagonal, "Gaussian targets, diagonal family", name="diagonal", traces=traces))
    return found


EXPERIMENT = Experiment(
    id="gaussian",
    title="Gaussian targets: who converges, and how fast",
    location="Fig. 1 top, Sec. 5.1.1",
    shows="Forward KL and parameter errors against score calls.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(seeds=4, minutes=1, settings={"scale": 0.2, "pilots": 2}),
        "paper": Profile(seeds=20, minutes=3, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=(
        Claim(
            "GSM and BaM converge fastest on Gaussian targets.",
            "Sec. 5.1.1",
            all_of(
                below("calls_0.01", "GSM", "Ours", name="score calls to 1e-2"),
                below("calls_0.01", "BaM", "Ours", name="score calls to 1e-2"),
                below("calls_0.01", "GSM", "ADVI", name="score calls to 1e-2"),
                below("calls_0.01", "BaM", "ADVI", name="score calls to 1e-2"),
            ),
        ),
        Claim(
            "Ours converges faster than ADVI.",
            "Sec. 5.1.1",
            all_of(
                below("calls_0.01", "Ours", "ADVI", name="score calls to 1e-2"),
                below("forward_kl", "Ours", "ADVI", name="the final forward KL"),
            ),
        ),
    ),
)
