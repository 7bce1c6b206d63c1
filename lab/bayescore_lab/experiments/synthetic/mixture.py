"""Fig. 2: Gaussian-mixture targets of order 2 and 5, in 3 and in 30 dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Claim,
    Experiment,
    Figure,
    Profile,
    Record,
    Records,
    Run,
    Table,
    all_of,
    below,
    mostly,
    ratio_within,
)
from bayescore_lab.experiments.synthetic.arms import BAM, GSM, GUMBEL, OURS, STRATIFIED, arm, execute, grid
from bayescore_lab.experiments.synthetic.drawing import MIXTURE_METRICS, SETTING, kl_figure, kl_tables

Spec = dict[str, Any]


def arms(components: int) -> dict[str, Spec]:
    """The arms of every mixture experiment; `components` are those of the family."""
    return {
        "Ours": OURS,
        "Ours, default": arm("proximal", tuned=False),
        "ADVI, Gumbel": GUMBEL,
        "ADVI, Gumbel, sticking": arm("advi", mixture="gumbel", temperature=0.05, stick=True),
        "ADVI, stratified": {**STRATIFIED, "steps": 1000 // components},
        "ADVI, stratified, equal iterations": STRATIFIED,
        "GSM": GSM,
        "BaM": BAM,
    }


def setting(dim: int, order: int, components: int, **more: Any) -> Spec:
    """Target, family and what the experiments share."""
    return {
        **SETTING,
        "target": {"kind": "mixture", "dim": dim, "components": order, **more},
        "family": {"kind": "mixture", "components": components},
    }


def mixture_runs(
    shared: Spec, listed: Mapping[str, Spec]
) -> Callable[[Mapping[str, Any], Sequence[int], Sequence[str]], list[Run]]:
    """The grid of one mixture setting."""

    def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
        return grid(listed, {**shared, **settings}, seeds, methods)

    return runs


def mixture_tables(title: str, **metrics: str) -> Callable[[Records], list[Table]]:
    def tables(records: Records) -> list[Table]:
        return kl_tables(records, title, {**MIXTURE_METRICS, **metrics, "best Gaussian": "bound"})

    return tables


def mixture_figures(title: str) -> Callable[[Records], list[Figure]]:
    def figures(records: Records) -> list[Figure]:
        return [kl_figure(records, title, bound=True)]

    return figures


def broke(record: Record) -> bool:
    """Whether a run ended without a finite density."""
    return record.status["ended"] != "ok" or not math.isfinite(float(record.metrics["forward_kl"]))


QUICK = Profile(seeds=4, minutes=1, settings={"scale": 0.2, "pilots": 2, "trace_draws": 2000})

ORDER2 = Experiment(
    id="mixture-order2",
    title="Order-2 mixtures, order-2 family",
    location="Fig. 2a left, Sec. 5.1.2",
    shows="Forward KL against score calls when the family holds the target.",
    methods=tuple(arms(2)),
    profiles={"quick": QUICK, "paper": Profile(seeds=20, minutes=5)},
    runs=mixture_runs(setting(3, 2, 2), arms(2)),
    execute=execute,
    tables=mixture_tables("Order-2 mixtures, order-2 family"),
    figures=mixture_figures("Order-2 mixtures, order-2 family"),
    claims=(
        Claim(
            "Ours has the lowest forward KL.",
            "Sec. 5.1.2, case 1",
            all_of(
                *(
                    below("forward_kl", "Ours", other, name="the final forward KL")
                    for other in ("ADVI, Gumbel", "ADVI, stratified", "GSM", "BaM")
                )
            ),
        ),
        Claim(
            "Ours converges faster than ADVI.",
            "Sec. 5.1.2, case 1",
            below("calls_0.01", "Ours", "ADVI, Gumbel", name="score calls to 1e-2"),
        ),
    ),
)

EXTRA = Experiment(
    id="mixture-order2-extra",
    title="Order-2 mixtures, order-3 family",
    location="Fig. 2a right, Sec. 5.1.2",
    shows="Whether a spare component does harm, and whether its weight goes to 0.",
    methods=tuple(arms(3)),
    profiles={"quick": QUICK, "paper": Profile(seeds=20, minutes=5)},
    runs=mixture_runs(setting(3, 2, 3), arms(3)),
    execute=execute,
    tables=mixture_tables(
        "Order-2 mixtures, order-3 family", **{"weight of the spare component": "least_weight"}
    ),
    figures=mixture_figures("Order-2 mixtures, order-3 family"),
    claims=(
        Claim(
            "The forward KL is about 10 times lower than ADVI's.",
            "Sec. 5.1.2, case 1",
            ratio_within("forward_kl", "ADVI, Gumbel", "Ours", 5, 20, name="the final forward KL"),
            paper="about 10 times",
        ),
        Claim(
            "One component of the fitted q is negligible, with a weight close to 0.",
            "Sec. 5.1.2, case 1",
            mostly(
                lambda record: float(record.metrics.get("least_weight", 1.0)) < 0.05,
                "the least weight is below 0.05",
                "Ours",
            ),
        ),
    ),
)

ORDER5 = Experiment(
    id="mixture-order5",
    title="Order-5 mixtures, order-5 family",
    location="Fig. 2b, Sec. 5.1.2",
    shows="Forward KL against score calls when the target has more modes.",
    methods=tuple(arms(5)),
    profiles={"quick": QUICK, "paper": Profile(seeds=20, minutes=8)},
    runs=mixture_runs(setting(3, 5, 5), arms(5)),
    execute=execute,
    tables=mixture_tables("Order-5 mixtures, order-5 family"),
    figures=mixture_figures("Order-5 mixtures, order-5 family"),
    claims=(
        Claim(
            "Ours works well, with a final forward KL below ADVI's.",
            "Sec. 5.1.2, case 2",
            all_of(
                below("forward_kl", "Ours", "ADVI, Gumbel", name="the final forward KL"),
                below("forward_kl", "Ours", "ADVI, stratified", name="the final forward KL"),
            ),
        ),
    ),
)

SEPARATED = Experiment(
    id="mixture-separated",
    title="Well-separated order-5 mixtures: the weights of far modes",
    location="beside Fig. 2b (means from N(0, 3^2))",
    shows="Scores are nearly blind to the weights of far modes; how wrong are they?",
    methods=tuple(arms(5)),
    profiles={"quick": QUICK, "paper": Profile(seeds=20, minutes=8)},
    runs=mixture_runs(setting(3, 5, 5, spread=3.0), arms(5)),
    execute=execute,
    tables=mixture_tables("Well-separated order-5 mixtures"),
    figures=mixture_figures("Well-separated order-5 mixtures"),
    claims=(
        Claim(
            "Score-based inference addresses mode collapse: ours has a lower forward KL and a lower weight "
            "error than ADVI.",
            "Sec. 1 and 5.1.2",
            all_of(
                below("forward_kl", "Ours", "ADVI, Gumbel", name="the final forward KL"),
                below("weight_error", "Ours", "ADVI, Gumbel", name="the weight error"),
                below("forward_kl", "Ours", "ADVI, stratified", name="the final forward KL"),
                below("weight_error", "Ours", "ADVI, stratified", name="the weight error"),
            ),
        ),
    ),
)

DIM30 = Experiment(
    id="mixture-dim30",
    title="Order-5 mixtures in 30 dimensions",
    location="Fig. 2c, Sec. 5.1.2",
    shows="Forward KL against score calls in 30 dimensions, with the best Gaussian's drawn in.",
    methods=tuple(arms(5)),
    profiles={
        "quick": QUICK,
        "paper": Profile(
            seeds=20,
            minutes=12,
            settings={"pilots": 3, "trace_draws": 2000, "final_draws": 20_000, "records": 40},
        ),
    },
    runs=mixture_runs(setting(30, 5, 5), arms(5)),
    execute=execute,
    tables=mixture_tables("Order-5 mixtures in 30 dimensions"),
    figures=mixture_figures("Order-5 mixtures in 30 dimensions"),
    claims=(
        Claim(
            "Ours works gracefully in 30 dimensions, and ADVI is worse.",
            "Sec. 5.1.2, case 3",
            all_of(
                below("forward_kl", "Ours", "ADVI, Gumbel", name="the final forward KL"),
                below("forward_kl", "Ours", "ADVI, stratified", name="the final forward KL"),
            ),
        ),
        Claim(
            "GSM and BaM fail to work with numerical issues.",
            "Sec. 5.1.2, case 3",
            all_of(
                mostly(broke, "the run ended without a finite density", "GSM"),
                mostly(broke, "the run ended without a finite density", "BaM"),
            ),
        ),
    ),
)

EXPERIMENTS = (ORDER2, EXTRA, ORDER5, SEPARATED, DIM30)
