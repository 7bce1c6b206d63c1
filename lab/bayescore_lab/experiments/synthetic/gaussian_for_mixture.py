"""Appendix D.4: an order-2 mixture target and a Gaussian family that cannot hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
    Experiment,
    Figure,
    PaperValue,
    Profile,
    Records,
    Run,
    Table,
    agrees,
    all_of,
    below,
    medians,
)
from bayescore_lab.experiments.synthetic.arms import ADVI, BAM, GSM, OURS, arm, execute, grid
from bayescore_lab.experiments.synthetic.drawing import SETTING, kl_figure, kl_tables

ARMS = {
    "Ours": OURS,
    "Ours, default": arm("proximal", tuned=False),
    "ADVI": ADVI,
    "GSM": GSM,
    "BaM": BAM,
    "BaM, batch 20": arm("bam", tuned=False, steps=50, batch=20),
}
LOCATION = "Appendix D.4, table of the model mismatch"
PAPER = (
    PaperValue("Ours", "forward_kl", 0.8339, LOCATION),
    PaperValue("ADVI", "forward_kl", 0.9461, LOCATION),
    PaperValue("GSM", "forward_kl", 0.9965, LOCATION),
    PaperValue("BaM", "forward_kl", 1.1914, LOCATION),
)
TITLE = "Gaussian family for order-2 mixtures"


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    shared = {
        **SETTING,
        "target": {"kind": "mixture", "dim": 3, "components": 2},
        "family": {"kind": "gaussian"},
    }
    return grid(ARMS, {**shared, **settings}, seeds, methods)


def tables(records: Records) -> list[Table]:
    metrics = {
        "forward KL": "forward_kl",
        "forward KL, 500 draws": "forward_kl_500",
        "best Gaussian": "bound",
    }
    return kl_tables(records, TITLE, metrics, PAPER, note="Best Gaussian: the target's own moments.")


def figures(records: Records) -> list[Figure]:
    return [kl_figure(records, TITLE, bound=True, paper={v.arm: v.value for v in PAPER})]


EXPERIMENT = Experiment(
    id="gaussian-for-mixture",
    title=TITLE,
    location=LOCATION,
    shows="How close each method comes when the family cannot hold the target.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(seeds=4, minutes=1, settings={"scale": 0.2, "pilots": 2, "trace_draws": 2000}),
        "paper": Profile(seeds=20, minutes=3),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    paper=PAPER,
    claims=(
        Claim(
            "Ours is best among the methods.",
            LOCATION,
            all_of(
                *(
                    below("forward_kl", "Ours", other, name="the final forward KL")
                    for other in ("ADVI", "GSM", "BaM")
                )
            ),
            paper="0.8339 against 0.9461, 0.9965, 1.1914",
            ours=medians("forward_kl", "Ours", "ADVI", "GSM", "BaM"),
        ),
        Claim(
            "Ours ends at a forward KL of 0.8339.",
            LOCATION,
            agrees("forward_kl", "Ours", 0.8339),
            paper="0.8339",
        ),
    ),
)
