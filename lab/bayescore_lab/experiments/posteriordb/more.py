"""Twelve PosteriorDB posteriors: the default fit beside other libraries' VI, at equal wall-clock.

Which fit is closer to the reference draws is judged posterior by posterior; more_fits.py executes the runs
and defines their errors.
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
)
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED, Verdict

__all__ = ["AUTO", "EXPERIMENT", "IN_PYMC", "OURS", "PEERS", "POSTERIORS"]

AUTO = "auto"
POSTERIORS = (
    "arK-arK",
    "diamonds-diamonds",
    "earnings-logearn_interaction",
    "eight_schools-eight_schools_centered",
    "eight_schools-eight_schools_noncentered",
    "garch-garch11",
    "gp_pois_regr-gp_pois_regr",
    "gp_pois_regr-gp_regr",
    "kidiq-kidscore_interaction",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "mesquite-mesquite",
    "sblrc-blr",
)
IN_PYMC = (
    "arK-arK",
    "eight_schools-eight_schools_noncentered",
    "kidiq-kidscore_interaction",
    "sblrc-blr",
)
#: our arms; None: the fit chooses the method
OURS: dict[str, dict[str, Any] | None] = {
    AUTO: None,
    "BaM, batch 32": {"method": "bam", "options": {"batch": 32}},
    "ProximalScore": {"method": "proximal", "options": {}},
}
#: arm: what the worker calls it, and its budget in units of the default fit's seconds
PEERS = {
    "NumPyro": ("numpyro", 1),
    "NumPyro, 4x": ("numpyro", 4),
    "Pathfinder": ("pathfinder", 1),
    "Pathfinder, 4x": ("pathfinder", 4),
    "PyMC": ("pymc", 1),
    "PyMC, 4x": ("pymc", 4),
}
TIE = 0.02  # what 10,000 reference draws can tell apart: twice 1/sqrt(10,000)
METRICS = ("mean_error", "sd_error", "khat")


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return [
        Run(method, seed, {"posterior": name}, group=name)
        for name in settings.get("posteriors", POSTERIORS)
        for method in methods
        if not method.startswith("PyMC") or name in IN_PYMC
        for seed in seeds
    ]


def tables(records: Records) -> list[Table]:
    """Every arm on every posterior, and the default fit against each peer."""
    return [_everything(records), _against(records)]


def _everything(records: Records) -> Table:
    rows: list[list[Cell]] = []
    for name in _posteriors(records):
        for arm, chosen in records.where(posterior=name).arms.items():
            values: list[Cell] = [_median(chosen, metric) for metric in METRICS]
            seconds = statistics.median(r.seconds for r in chosen)
            calls = round(statistics.median(r.score_calls for r in chosen))
            rows.append([name, arm, *values, seconds, calls, _setting(chosen)])
    note = (
        "Medians over the seeds. Errors are medians over the constrained parameters, as PosteriorDB reports "
        "them: |mean - reference mean| / reference sd, and |log(sd / reference sd)|; what 10,000 reference "
        "draws can tell is about 0.01. Seconds leave out compiling. The settings of peers were tuned for "
        "their ELBO at the same budget, off the clock. Eight schools has one set of reference draws, which "
        "serves both of its forms."
    )
    columns = ["posterior", "arm", "mean error", "sd error", "k-hat", "seconds", "score calls", "setting"]
    return Table("Errors against reference draws", columns, rows, note=note)


def _against(records: Records) -> Table:
    peers = [arm for arm in records.arms if arm.startswith(("NumPyro", "Pathfinder", "PyMC"))]
    rows: list[list[Cell]] = []
    for name in _posteriors(records):
        chosen = records.where(posterior=name).arms
        if AUTO not in chosen:
            continue
        ours = _median(chosen[AUTO], "error")
        cells: list[Cell] = []
        for peer in peers:
            theirs = _median(chosen[peer], "error") if peer in chosen else None
            cells.append(None if theirs is None else f"{theirs:.3f} {_word(ours, theirs)}")
        rows.append([name, ours, *cells])
    note = (
        "Mean error plus sd error, medians over the seeds, and what the default fit is beside it: better or "
        f"worse by more than {TIE:g}, else a tie. 4x: four times the default fit's seconds."
    )
    columns = ["posterior", AUTO, *peers]
    return Table("The default fit beside other libraries' VI", columns, rows, name="beside", note=note)


def _posteriors(records: Records) -> list[str]:
    return list(dict.fromkeys(r.config["posterior"] for r in records))


def _median(records: Records, metric: str) -> float:
    """Over the seeds; a run that broke down counts as infinitely bad."""
    return float(statistics.median(records.values(metric, math.inf)))


def _setting(records: Records) -> str:
    return str(records[0].metrics.get("setting", "")) if records[0].method not in OURS else ""


def _word(ours: float, theirs: float) -> str:
    if abs(ours - theirs) <= TIE:
        return "(tie)"
    return "(better)" if ours < theirs else "(worse)"


def _beats(peer: str) -> Criterion:
    words = (
        f"On every posterior that {peer} ran, compare medians over the seeds of mean error plus sd error, at "
        f"equal seconds. Auto is better or worse where they differ by more than {TIE:g}. Reproduced if it is "
        "better somewhere and worse nowhere; not reproduced here if it is worse at least as often as better; "
        "partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        found: dict[str, list[str]] = {"(better)": [], "(tie)": [], "(worse)": []}
        lower = 0
        for name in _posteriors(records):
            arms = records.where(posterior=name).arms
            if AUTO in arms and peer in arms:
                ours, theirs = _median(arms[AUTO], "error"), _median(arms[peer], "error")
                found[_word(ours, theirs)].append(name)
                lower += ours < theirs
        better, ties, worse = (len(names) for names in found.values())
        if not better + ties + worse:
            return Judgement(None, f"These records do not have what the rule compares: {AUTO} and {peer}.")
        verdict: Verdict = PARTLY
        if better and not worse:
            verdict = REPRODUCED
        elif worse >= better:
            verdict = NOT_REPRODUCED
        where = f" ({', '.join(found['(worse)'])})" if worse else ""
        sentence = (
            f"Auto is better on {better}, ties on {ties} and is worse on {worse}{where}; "
            f"its error is the lower one on {lower} of {better + ties + worse}."
        )
        numbers = {"better": better, "ties": ties, "worse": worse, "lower": lower}
        shown = f"better on {better}, level on {ties}, worse on {worse}"
        return Judgement(verdict, sentence, numbers, shown)

    return Criterion(words, judge)


CLAIMS = tuple(
    Claim(
        f"The default fit beats {words} in median error at equal wall-clock.",
        "not in the paper",
        _beats(peer),
    )
    for peer, words in (
        ("NumPyro", "NumPyro's AutoMultivariateNormal"),
        ("PyMC", "PyMC's full-rank ADVI"),
        ("Pathfinder", "BlackJAX's pathfinder"),
    )
)


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


EXPERIMENT = Experiment(
    id="posteriordb-more",
    title="Twelve real posteriors beside other libraries",
    location="not in the paper",
    shows="Errors of means and standard deviations against reference draws, k-hat and wall-clock, with the "
    "default fit and with NumPyro, BlackJAX and PyMC at the same seconds and at four times as many.",
    methods=(*OURS, *PEERS),
    profiles={
        "quick": Profile(seeds=1, minutes=4, settings={"posteriors": ["kidiq-kidscore_interaction"]}),
        "paper": Profile(seeds=5, minutes=30, settings={}),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.posteriordb.more_fits:execute"),
    tables=tables,
    figures=figures,
    claims=CLAIMS,
)
