"""Appendix B: the negative ELBO against score calls, exact scores, four posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    arm_table,
    below,
    captioned,
    looks,
    mostly,
    panels,
    plot_traces,
    shared_legend,
)
from bayescore_lab.experiments.posteriordb.arms import BEST, EXACT, MIXTURES, execute, grid
from bayescore_lab.experiments.posteriordb.drawing import gap_axis, on, rates_table, worst_table

ARMS = {**EXACT, **MIXTURES}
SHOWN = ("Ours, N=2", "Ours, default", "ADVI", "GSM", "BaM", "BaM, BD")
SEARCHED = tuple(f"{name}, searched start" for name in ("Ours, default", "ADVI", "GSM", "BaM"))
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
    chosen = {"calls": 10_000, "pilots": 2, "draws": 100_000, "posteriors": list(BEST), **settings}
    shared = {key: chosen[key] for key in ("calls", "pilots", "draws")}
    cases = [{"posterior": name, **shared} for name in chosen["posteriors"]]
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
    return [*found, worst_table(records, "posterior", tuple(BEST)), rates_table(records)]


def figures(records: Records) -> list[Figure]:
    title = "PosteriorDB, exact scores"
    found = [
        _figure(records, SHOWN, title, ""),
        _figure(records, SEARCHED, f"{title}, from a searched start", "searched"),
    ]
    return [figure for figure in found if figure is not None]


def _figure(records: Records, arms: Sequence[str], title: str, name: str) -> Figure | None:
    shown = records.select(lambda r: r.method in arms)
    names = [posterior for posterior in BEST if shown.where(posterior=posterior)]
    if not names:
        return None
    drawing, axes = panels(min(2, len(names)), -(-len(names) // 2), width=4.4, height=3.0)
    look = looks(arms)
    for panel, posterior in zip(axes, names, strict=False):
        chosen = shown.where(posterior=posterior)
        plot_traces(panel, chosen, "gap", label="-ELBO, nats above the best Gaussian", log_y=False, look=look)
        gap_axis(panel)
        panel.set_title(posterior)
    shared_legend(drawing, columns=4)
    note = "Lines: medians over seeds; bands: 10 to 90 %. The axis is linear up to 1 nat, logarithmic beyond."
    return captioned(drawing, shown, title=title, name=name, note=note)


def _claims() -> list[Claim]:
    calls = "score calls to 2 nats"
    found = [
        Claim(
            f"{arm.split(',')[0]} converges to the optimal negative ELBO on all datasets.",
            "App. B",
            all_of(
                *(
                    on(name, mostly(_close, "the fit ends within 2 nats of the best Gaussian", arm))
                    for name in BEST
                )
            ),
        )
        for arm in ("Ours, N=2", "ADVI", "GSM", "BaM")
    ]
    for ours, where in (("Ours, N=2", "App. B"), ("Ours, default", "not in the paper")):
        found += [
            Claim(
                f"{ours}, converges faster than ADVI on {name}.",
                where,
                on(name, below("calls_2", ours, "ADVI", name=calls)),
            )
            for name in BEST
        ]
    fastest = [
        on(name, below("calls_2", "GSM", other, name=calls))
        for name in ("gp_pois_regr", "low_dim_gauss_mix")
        for other in ("Ours, N=2", "ADVI")
    ]
    slower = [on(name, below("calls_2", "Ours, N=2", "GSM", name=calls)) for name in ("diamonds", "arK")]
    plain = [
        on(
            name,
            mostly(
                _level,
                "the mixture ends within 0.1 nats of the best Gaussian, which it contains",
                f"Ours, mixture of {k}",
            ),
        )
        for name in ("gp_pois_regr", "low_dim_gauss_mix")
        for k in (2, 3)
    ]
    return [
        *found,
        Claim("GSM converges fastest on gp_pois_regr and low_dim_gauss_mix.", "App. B", all_of(*fastest)),
        Claim("GSM is slower than ours on diamonds and arK.", "App. B", all_of(*slower)),
        Claim("Mixtures of two or three Gaussians do not improve on one.", "App. B", all_of(*plain)),
    ]


def _close(record: Record) -> bool:
    return float(record.metrics["gap"]) < 2


def _level(record: Record) -> bool:
    """A run that ends far above has failed, and says nothing about mixtures."""
    return abs(float(record.metrics["gap"])) < 0.1


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
            settings={
                "calls": 400,
                "pilots": 1,
                "draws": 5000,
                "posteriors": ["arK", "low_dim_gauss_mix"],
            },
        ),
        "paper": Profile(seeds=6, minutes=40, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=_claims(),
)
