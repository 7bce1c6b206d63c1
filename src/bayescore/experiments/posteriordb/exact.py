"""Appendix B: the negative ELBO against score calls, exact scores, four posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    plot_traces,
    shared_legend,
)
from bayescore.experiments.posteriordb.arms import EXACT, MIXTURES, grid
from bayescore.experiments.posteriordb.drawing import on, rates_table
from bayescore.experiments.posteriordb.fits import BEST, execute

ARMS = {**EXACT, **MIXTURES}
SHOWN = ("Ours, N=2", "ADVI", "GSM", "BaM", "Ours, default, searched start", "BaM, batch 32")
METRICS = {
    "nats above the best Gaussian": "gap",
    "-ELBO": "negative_elbo",
    "-ELBO, 1,000 draws": "negative_elbo_1000",
    "calls to 2 nats": "calls_2",
    "calls to 0.5": "calls_0.5",
    "calls to 0.2": "calls_0.2",
}
NOTE = "Medians over seeds with 95 % intervals; 100,000 draws unless stated; calls of a search are counted."


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    chosen = {"calls": 10_000, "pilots": 2, "posteriors": list(BEST), **settings}
    cases = [
        {"posterior": name, "calls": chosen["calls"], "pilots": chosen["pilots"]}
        for name in chosen["posteriors"]
    ]
    return grid(ARMS, cases, seeds, methods)


def tables(records: Records) -> list[Table]:
    found = []
    for name in BEST:
        chosen = records.where(posterior=name)
        if chosen:
            title = f"{name}: exact scores, 10,000 score calls; best Gaussian {BEST[name]:g}"
            found.append(
                arm_table(chosen, METRICS, title=title, name=name.replace("_", "-").lower(), note=NOTE)
            )
    return [*found, rates_table(records)]


def figures(records: Records) -> list[Figure]:
    names = [name for name in BEST if records.where(posterior=name)]
    drawing, axes = panels(2, -(-len(names) // 2), width=4.4, height=3.0)
    look = looks(SHOWN)
    for panel, name in zip(axes, names, strict=False):
        chosen = records.where(posterior=name).select(lambda r: r.method in SHOWN)
        plot_traces(panel, chosen, "gap", label="-ELBO, nats above the best Gaussian", look=look)
        panel.set_title(name)
        panel.set_ylim(top=min(panel.get_ylim()[1], 1e6))
    shared_legend(drawing, columns=3)
    note = "Lines: medians over seeds; bands: 10 to 90 %. Values below 0.001 are shown there."
    return [captioned(drawing, records, title="PosteriorDB, exact scores", note=note)]


def _faster(name: str) -> Claim:
    return Claim(
        f"Ours converges faster than ADVI on {name}.",
        "App. B",
        on(name, below("calls_2", "Ours, N=2", "ADVI", name="score calls to 2 nats")),
    )


EXPERIMENT = Experiment(
    id="posteriordb",
    title="PosteriorDB: who comes close to the best Gaussian, and how fast",
    location="App. B",
    shows="Negative ELBO against score calls on four posteriors, exact scores.",
    methods=tuple(ARMS),
    profiles={
        "quick": Profile(
            seeds=2,
            minutes=3,
            settings={"calls": 400, "pilots": 1, "posteriors": ["arK", "low_dim_gauss_mix"]},
        ),
        "paper": Profile(seeds=6, minutes=40, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=(
        *(_faster(name) for name in BEST),
        Claim(
            "GSM and BaM converge fastest with exact scores.",
            "App. B",
            all_of(
                *(
                    on(name, below("calls_2", arm, "Ours, N=2", name="score calls to 2 nats"))
                    for name in BEST
                    for arm in ("GSM", "BaM")
                )
            ),
        ),
        Claim(
            "Mixtures of two or three Gaussians bring no gain.",
            "App. B",
            all_of(
                *(
                    on(name, below("gap", "Ours, default, searched start", f"Ours, mixture of {k}"))
                    for name in ("gp_pois_regr", "low_dim_gauss_mix")
                    for k in (2, 3)
                )
            ),
        ),
    ),
)
