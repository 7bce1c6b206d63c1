"""The default fit beside other libraries' variational inference, at equal numbers of scores.

Every peer gets the same density and gradient through a callback (peers_density.py), and as many scores as the
default fit took on that posterior with that seed; peers_methods.py says how each uses them. What is compared
is the largest error of a mean, in reference sds, and of a log sd, against long MCMC:
    error           of the draws that a method gives: the default fit and Pathfinder weight theirs, others not
    weighted error  of draws that are weighted in the same way for all, by Pareto-smoothed Phi/q
and the ELBO over 40,000 draws. Scores are counted, values of the density (of weights, of a diagnosis, of the
ELBOs on Pathfinder's way) are told apart, and seconds are not compared: a callback costs a peer more than us.
Every posterior is a profile.
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
from bayescore_lab.experiments.posteriordb.all_models import REVISION
from bayescore_lab.experiments.posteriordb.models import MODELS
from bayescore_lab.experiments.posteriordb.more import AUTO, POSTERIORS

__all__ = ["EXPERIMENT", "FLOWS", "FLOW_POSTERIORS", "GAUSSIANS"]

GAUSSIANS = ("NumPyro Gaussian", "Pathfinder", "PyMC ADVI", "PyMC full-rank ADVI", "DADVI")
#: with the same scores, and until its loss no longer falls
FLOWS = ("NumPyro flow", "NumPyro flow to convergence")
FLOW_POSTERIORS = tuple(
    name for name in POSTERIORS if name not in ("diamonds-diamonds", "earnings-logearn_interaction")
)
ENOUGH = 0.8  # of the posteriors, ties counted half
TIE = 0.03  # the largest of ten or so Monte Carlo errors of 10,000 draws


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return [
        Run(method, seed, {"posterior": name, "revision": REVISION}, f"{name} {seed}")
        for name in settings.get("posteriors", [*POSTERIORS, *MODELS])
        for seed in seeds
        for method in methods
        if method not in FLOWS or name in FLOW_POSTERIORS
    ]


def tables(records: Records) -> list[Table]:
    return [_everything(records), _counts(records)]


def _everything(records: Records) -> Table:
    rows: list[list[Cell]] = []
    for name, chosen in _by_posterior(records).items():
        best = _median(chosen.arms[AUTO], "elbo", -math.inf) if AUTO in chosen.arms else math.nan
        for arm, few in chosen.arms.items():
            numbers: list[Cell] = [_known(few, metric) for metric in ("error", "weighted_error")]
            behind = best - _median(few, "elbo", -math.inf)
            scores = round(statistics.median(record.score_calls for record in few))
            values: list[Cell] = [round(v) if math.isfinite(v := _median(few, "values", math.nan)) else None]
            settings = dict.fromkeys(str(record.metrics.get("setting", "")) for record in few)
            rows.append([name, arm, len(few), *numbers, behind, scores, *values, "; ".join(settings)])
    note = (
        "Medians over seeds. Errors are the largest over the constrained parameters, against long MCMC: "
        "|mean - reference mean| / reference sd and |log(sd / reference sd)|; of the draws that a method "
        "gives, and of draws weighted by Pareto-smoothed Phi/q. Nats: how far the ELBO is below that of the "
        "default fit. Scores are the budget, values are further values of the log density. Of several "
        "trials of a peer the one with the best ELBO is shown, and the others are not counted."
    )
    columns = ["posterior", "arm", "seeds", "error", "weighted error", "nats", "scores", "values", "setting"]
    return Table("The default fit and its peers at equal scores", columns, rows, note=note)


def _counts(records: Records) -> Table:
    rows: list[list[Cell]] = []
    for peer in (*GAUSSIANS, *FLOWS):
        for metric, words in (("error", "as given"), ("weighted_error", "weighted")):
            wins, ties, losses = _compared(records, peer, metric)
            if wins or ties or losses:
                counts: list[Cell] = [len(wins), len(ties), len(losses)]
                rows.append([peer, words, *counts, ", ".join(losses)])
    note = (
        f"Posteriors on which the median error of the default fit is smaller than the peer's by over {TIE:g},"
        " equal to it within that, and larger."
    )
    columns = ["peer", "draws", "better", "tie", "worse", "worse on"]
    return Table("Posteriors won and lost", columns, rows, name="counts", note=note)


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _by_posterior(records: Records) -> dict[str, Records]:
    names = dict.fromkeys(record.config["posterior"] for record in records)
    return {name: records.where(posterior=name) for name in names}


def _median(records: Records, metric: str, broken: float) -> float:
    return float(statistics.median(records.values(metric, broken)))


def _known(records: Records, metric: str) -> float | None:
    """The median over seeds, None where there is no reference."""
    if not any(record.metrics.get("reference", True) for record in records):
        return None
    return _median(records, metric, math.inf)


def _compared(records: Records, peer: str, metric: str) -> tuple[list[str], list[str], list[str]]:
    """The posteriors with a reference on which the default fit is better, level and worse."""
    wins: list[str] = []
    ties: list[str] = []
    losses: list[str] = []
    for name, chosen in _by_posterior(records).items():
        arms = chosen.arms
        if AUTO not in arms or peer not in arms:
            continue
        ours, theirs = (_known(arms[arm], metric) for arm in (AUTO, peer))
        if ours is None or theirs is None:
            continue
        level = ours == theirs or abs(ours - theirs) <= TIE
        (ties if level else wins if ours < theirs else losses).append(name)
    return wins, ties, losses


def _better_than(peer: str, metric: str) -> Criterion:
    words = (
        f"Reproduced if the median error over seeds is smaller on {ENOUGH:.0%} of the posteriors that have a "
        f"reference; differences of at most {TIE:g} are ties and count half."
    )

    def judge(records: Records) -> Judgement:
        wins, ties, losses = _compared(records, peer, metric)
        n = len(wins) + len(ties) + len(losses)
        if not n:
            return Judgement(None, f"These records do not have the default fit beside {peer}.")
        share = (len(wins) + len(ties) / 2) / n
        verdict: Verdict = REPRODUCED if share >= ENOUGH else PARTLY if share >= 0.5 else NOT_REPRODUCED
        sentence = f"Better on {len(wins)}, level on {len(ties)}, worse on {len(losses)} of {n}"
        numbers = {"better": len(wins), "level": len(ties), "worse": len(losses)}
        return Judgement(
            verdict, sentence + (f" ({', '.join(losses)})." if losses else "."), numbers, f"{share:.0%}"
        )

    return Criterion(words, judge)


CLAIMS = (
    *(
        Claim(
            f"With as many scores the default fit is closer to long MCMC than {peer}.",
            "not in the paper",
            _better_than(peer, "error"),
        )
        for peer in (*GAUSSIANS, *FLOWS)
    ),
    *(
        Claim(
            f"It is also closer than {peer} if the draws of both are weighted.",
            "not in the paper",
            _better_than(peer, "weighted_error"),
        )
        for peer in (*GAUSSIANS, *FLOWS)
    ),
)

EXPERIMENT = Experiment(
    id="posteriordb-peers",
    title="The default fit and its peers at equal scores",
    location="not in the paper",
    shows="Errors against long MCMC of the default fit, NumPyro's Gaussian and flow, Pathfinder, and PyMC's "
    "ADVI and DADVI, each with the scores that the default fit took.",
    methods=(AUTO, *GAUSSIANS, *FLOWS),
    profiles={
        "quick": Profile(1, 4, {"posteriors": ["sblrc-blr"]}),
        "shared": Profile(2, 60, {"posteriors": list(POSTERIORS)}),
        "paper": Profile(5, 900, {}),
        **{
            name.lower().replace("_", "-"): Profile(5, 20, {"posteriors": [name]})
            for name in (*POSTERIORS, *MODELS)
        },
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.posteriordb.peers_fits:execute"),
    tables=tables,
    figures=figures,
    claims=CLAIMS,
)
