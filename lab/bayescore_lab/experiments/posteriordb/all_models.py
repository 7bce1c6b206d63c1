"""All posteriors of the list: the default fit of twelve of PosteriorDB and of 33 further models.

What is judged is the fit's own word: how many posteriors it calls good or usable, whether its grade depends
on the seed, whether it is right where reference draws are known, and whether centred hierarchical models end
at the ELBO of the best Gaussian that any seed found. all_fits.py executes the runs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
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
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.experiments.posteriordb.models import CENTRED, MODELS
from bayescore_lab.experiments.posteriordb.more import AUTO, POSTERIORS

__all__ = ["EXPERIMENT", "GRADES"]

#: the grades in their order; a fit that is not diagnosed has the last
GRADES = ("GOOD", "USABLE", "POOR")
MEAN_LIMIT, SD_LIMIT = 0.25, math.log(1.25)  # of a posterior that is called good or usable, after resampling
NATS = 2.0  # below the best ELBO over the seeds


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    names = settings.get("posteriors", [*POSTERIORS, *MODELS])
    return [
        Run(method, seed, {"posterior": name}, group=name)
        for name in names
        for method in methods
        for seed in seeds
    ]


def tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for name, chosen in _by_posterior(records).items():
        grades = Counter(str(record.metrics["grade"]) for record in chosen)
        said = ", ".join(f"{grade.lower()} {grades[grade]}" for grade in GRADES if grades[grade])
        elbo = chosen.values("elbo", -math.inf)
        rows.append(
            [
                name,
                MODELS[name].kind if name in MODELS else "PosteriorDB",
                said,
                *(_median(chosen, metric) for metric in ("khat", "mean_error", "sd_error", "elbo")),
                float(max(elbo) - min(elbo)),
                round(statistics.median(record.score_calls for record in chosen)),
                statistics.median(record.seconds for record in chosen),
            ]
        )
    note = (
        "Medians over the seeds. Errors are the largest over the constrained parameters, against reference "
        "draws where they are known, after resampling: |mean - reference mean| / reference sd and "
        "|log(sd / reference sd)|. The spread of the ELBO is its largest minus its smallest value over seeds."
    )
    columns = [
        "posterior",
        "kind",
        "grades",
        "k-hat",
        "mean error",
        "sd error",
        "ELBO",
        "spread",
        "score calls",
        "seconds",
    ]
    return [Table("Every posterior of the list", columns, rows, note=note)]


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _by_posterior(records: Records) -> dict[str, Records]:
    names = dict.fromkeys(record.config["posterior"] for record in records)
    return {name: records.where(posterior=name) for name in names}


def _median(records: Records, metric: str) -> float | None:
    """Over the seeds; None where it was not measured."""
    found = [float(record.metrics[metric]) for record in records if record.metrics.get(metric) is not None]
    return float(statistics.median(found)) if found else None


def _judged(share: float, enough: float, sentence: str, numbers: dict[str, Any], ours: str) -> Judgement:
    verdict = REPRODUCED if share >= enough else PARTLY if share >= 0.5 else NOT_REPRODUCED
    return Judgement(verdict, sentence, numbers, ours)


def _trusted(records: Records) -> Judgement:
    groups = _by_posterior(records)
    called = [name for name, chosen in groups.items() if _typical(chosen) != "POOR"]
    wrong = [name for name in called if _off(groups[name])]
    share = len(called) / len(groups)
    words = f"{len(called)} of {len(groups)} are called good or usable; of these {len(wrong)} are off"
    where = f" ({', '.join(wrong)})." if wrong else "."
    numbers = {"called": len(called), "off": len(wrong)}
    ours = f"{len(called)} of {len(groups)}, {len(wrong)} of them off"
    return _judged(0.0 if wrong else share, 0.8, words + where, numbers, ours)


def _typical(chosen: Records) -> str:
    return Counter(str(record.metrics["grade"]) for record in chosen).most_common(1)[0][0]


def _off(chosen: Records) -> bool:
    mean, sd = _median(chosen, "mean_error"), _median(chosen, "sd_error")
    return mean is not None and sd is not None and (mean > MEAN_LIMIT or sd > SD_LIMIT)


def _steady(records: Records) -> Judgement:
    groups = _by_posterior(records)
    same, neighbours = 0, 0
    for chosen in groups.values():
        grades = [str(record.metrics["grade"]) for record in chosen]
        top = Counter(grades).most_common(1)[0][1]
        same += top >= 0.95 * len(grades)
        places = [GRADES.index(grade) for grade in grades]
        neighbours += max(places) - min(places) <= 1
    words = f"19 of 20 seeds agree on {same} of {len(groups)}; on {neighbours} all grades are neighbours."
    share = same / len(groups) if neighbours == len(groups) else 0.0
    numbers = {"same": same, "neighbours": neighbours}
    return _judged(share, 0.9, words, numbers, f"{same} of {len(groups)}")


def _centred(records: Records) -> Judgement:
    spreads = {}
    for name, chosen in _by_posterior(records).items():
        if name in CENTRED:
            elbo = chosen.values("elbo", -math.inf)
            spreads[name] = float(max(elbo) - min(elbo))
    if not spreads:
        return Judgement(None, "These records have no centred hierarchical model.")
    within = sum(spread <= NATS for spread in spreads.values())
    words = f"{within} of {len(spreads)} models stay within {NATS:g} nats on every seed."
    return _judged(within / len(spreads), 1.0, words, dict(spreads), f"{within} of {len(spreads)}")


CLAIMS = (
    Claim(
        "At least 80 % of the posteriors are called good or usable, and rightly so.",
        "not in the paper",
        Criterion(
            "The most frequent grade over the seeds counts. Reproduced if 80 % are good or usable and none "
            f"of these has, in the median over seeds, a mean off by over {MEAN_LIMIT:g} sd or a sd by more "
            "than 25 % after resampling, where reference draws are known.",
            _trusted,
        ),
    ),
    Claim(
        "The grade does not depend on the seed.",
        "not in the paper",
        Criterion(
            "Reproduced if 19 of 20 seeds agree on 90 % of the posteriors and grades are neighbours on all.",
            _steady,
        ),
    ),
    Claim(
        "Centred hierarchical models end at the ELBO of the best Gaussian.",
        "not in the paper",
        Criterion(
            f"Reproduced if every seed is within {NATS:g} nats of the best one on all centred models.",
            _centred,
        ),
    ),
)

EXPERIMENT = Experiment(
    id="posteriordb-all",
    title="Every posterior of a long list, by the default fit",
    location="not in the paper",
    shows="Grades over seeds, k-hat, ELBO, and errors against reference draws where they are known: twelve "
    "posteriors of PosteriorDB and 33 models that were listed before the first fit.",
    methods=(AUTO,),
    profiles={
        "quick": Profile(seeds=2, minutes=3, settings={"posteriors": ["arK-arK", "sblrc-blr"]}),
        "centred": Profile(seeds=10, minutes=60, settings={"posteriors": list(CENTRED)}),
        "paper": Profile(seeds=20, minutes=180, settings={}),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.posteriordb.all_fits:execute"),
    tables=tables,
    figures=figures,
    claims=CLAIMS,
)
