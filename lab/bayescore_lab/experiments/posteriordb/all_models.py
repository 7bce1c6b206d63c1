"""All posteriors of the list: the default fit of twelve of PosteriorDB and of 33 further models.

What is judged: errors against long MCMC after resampling (all_fits.py), the fit's own word (how many
posteriors it calls good or usable, and whether these are right), whether its grade depends on the seed, and
whether centred hierarchical models end at the ELBO of the best Gaussian that any run found, those with
effort="thorough" among them. References: PosteriorDB's draws, and references.json for the further models.
Every posterior is a profile; the profile `folder` has those of a PosteriorDB folder of the user's: `--path`.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.experiments.posteriordb.models import CENTRED, MODELS
from bayescore_lab.experiments.posteriordb.more import AUTO, POSTERIORS

__all__ = ["EXPERIMENT", "GRADES", "THOROUGH"]

THOROUGH = "auto, thorough"
#: of the automatic fit; raise it whenever that changes, so that its runs are made again
REVISION = 4

#: the grades in their order; a fit that is not diagnosed has the last
GRADES = ("GOOD", "USABLE", "POOR")
METRICS = ("khat", "mean_error", "sd_error", "quantile_error", "elbo")
REFERENCES = Path(__file__).with_name("references.json")  # made by references.py
HEAVY = 0.5  # a tail index from which on there is no standard deviation to compare
SHOWN = (3e-3, 10.0)  # errors in the figure
ACCURATE = 0.1  # reference sds of every mean, and of every log sd, after resampling
MEAN_LIMIT, SD_LIMIT = 0.25, math.log(1.25)  # of a posterior that is called good or usable, after resampling
NATS = 2.0  # below the best ELBO that is known
CENTRED_SEEDS = 10
STEADY_SEEDS = 10  # with fewer, grades that agree say little


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    names = _folder() if settings.get("folder") else settings.get("posteriors", [*POSTERIORS, *MODELS])
    return [
        Run(method, seed, {"posterior": name, "revision": REVISION})
        for name in names
        for method in methods
        for seed in seeds
        if method == AUTO or (name in CENTRED and seed < CENTRED_SEEDS)
    ]


def _folder() -> list[str]:
    """The posteriors of the user's folder; the twelve if there is none."""
    if not (own := os.environ.get("BAYESCORE_POSTERIORDB")):
        return list(POSTERIORS)
    files = [*Path(own).glob("posteriors/*.json"), *Path(own).glob("posterior_database/posteriors/*.json")]
    return sorted(file.stem for file in files)


def tables(records: Records) -> list[Table]:
    return [_everything(records), _references(records)]


def _everything(records: Records) -> Table:
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
                *(_median(chosen, metric) for metric in METRICS),
                float(max(elbo) - min(elbo)),
                round(statistics.median(record.score_calls for record in chosen)),
                statistics.median(record.seconds for record in chosen),
            ]
        )
    note = (
        "Medians over the seeds. Errors are the largest over the constrained parameters, against long MCMC, "
        "after resampling: |mean - reference mean| / reference sd, |log(sd / reference sd)|, and of the 5, "
        "50 and 95 % quantiles in units of their range / 3.29; means and sds of parameters without a finite "
        "variance are left out. The spread of the ELBO is its largest minus its smallest value over seeds."
    )
    columns = ["posterior", "kind", "grades", "k-hat", "mean error", "sd error", "quantile error", "ELBO"]
    columns += ["spread", "score calls", "seconds"]
    return Table("Every posterior of the list", columns, rows, note=note)


def _references(records: Records) -> Table:
    """What the MCMC of the further models looks like."""
    known = _reference_file()
    rows: list[list[Cell]] = []
    for name in _by_posterior(records):
        if name in MODELS and name in known:
            found = known[name]
            counted = [found[key] for key in ("divergences", "deepest", "gradients")]
            draws = found["chains"] * found["draws"]
            heavy = sum(tail >= HEAVY for tail in found["tail"])
            quality: list[Cell] = [max(found["rhat"]), round(min(found["ess"]))]
            rows.append([name, draws, *quality, *counted, found["delta"], heavy, found["seconds"]])
    note = (
        "Stan's NUTS, four chains, 1,000 steps of warm-up each. R-hat (rank-normalised, split) is the "
        "largest and the effective sample size the smallest over all numbers that a program names; deepest: "
        f"states at the largest depth of a tree; heavy: numbers whose tail index is {HEAVY:g} or more."
    )
    columns = ["model", "draws", "R-hat", "ESS", "divergences", "deepest", "gradients", "acceptance", "heavy"]
    return Table("References", [*columns, "seconds"], rows, name="references", note=note)


def _reference_file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(REFERENCES.read_text(encoding="utf-8"))["models"]
    return found


def figures(records: Records) -> list[Figure]:
    names = sorted(_by_posterior(records), reverse=True)
    drawing, axes = panels(2, width=4.2, height=max(2.8, 0.16 * len(names)))
    beyond = False
    for panel, metric, label in zip(axes, ("mean_error", "sd_error"), ("mean", "log sd"), strict=True):
        for place, name in enumerate(names):
            values = [r.metrics.get(metric) for r in records.where(posterior=name) if r.method == AUTO]
            known = [float(value) for value in values if value is not None]
            shown = [min(max(value, SHOWN[0]), SHOWN[1]) for value in known]
            panel.plot(shown, [place] * len(shown), ".", color="C0", alpha=0.6)
            if any(not value <= SHOWN[1] for value in known):
                panel.plot(SHOWN[1], place, ">", color="C3", markersize=5, clip_on=False)
                beyond = True
        panel.axvline(ACCURATE, color="0.35", linewidth=1.0, linestyle=(0, (1, 1)))
        panel.set(xscale="log", xlim=SHOWN, ylim=(-0.8, len(names) - 0.2))
        panel.set_title(f"largest error of a {label}")
        panel.set_yticks(range(len(names)), names, fontsize=6)
    axes[1].tick_params(labelleft=False)
    note = "A point per seed, after resampling, in reference standard deviations; the line is 0.1."
    if beyond:
        note += f" An arrow is a seed beyond {SHOWN[1]:g}."
    return [captioned(drawing, records, title="Errors against long MCMC", note=note)]


def _by_posterior(records: Records) -> dict[str, Records]:
    """The records of the default fit."""
    default = records.select(lambda record: record.method == AUTO)
    names = dict.fromkeys(record.config["posterior"] for record in default)
    return {name: default.where(posterior=name) for name in names}


def _median(records: Records, metric: str) -> float | None:
    """Over the seeds; None where it was not measured."""
    found = [float(record.metrics[metric]) for record in records if record.metrics.get(metric) is not None]
    return float(statistics.median(found)) if found else None


def _judged(share: float, enough: float, sentence: str, numbers: dict[str, Any], ours: str) -> Judgement:
    verdict = REPRODUCED if share >= enough else PARTLY if share >= 0.5 else NOT_REPRODUCED
    return Judgement(verdict, sentence, numbers, ours)


def _accurate(records: Records) -> Judgement:
    errors = {
        name: (_median(chosen, "mean_error"), _median(chosen, "sd_error"))
        for name, chosen in _by_posterior(records).items()
    }
    known = {name: max(m, s) for name, (m, s) in errors.items() if m is not None and s is not None}
    if not known:
        return Judgement(None, "These records have no posterior with a reference.")
    within = sum(error <= ACCURATE for error in known.values())
    off = [name for name, error in known.items() if error > ACCURATE]
    words = f"Every mean and log sd is within {ACCURATE:g} on {within} of {len(known)}"
    numbers = {"within": within, "known": len(known)}
    where = f"; not on {', '.join(off)}." if off else "."
    return _judged(within / len(known), 0.9, words + where, numbers, f"{within} of {len(known)}")


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
    if min(map(len, groups.values())) < STEADY_SEEDS:
        return Judgement(None, f"These records have fewer than {STEADY_SEEDS} seeds of a posterior.")
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
    behind = {}
    for name, chosen in _by_posterior(records).items():
        if name in CENTRED:
            best = max(records.where(posterior=name).values("elbo", -math.inf))
            first = chosen.select(lambda record: record.seed < CENTRED_SEEDS)
            behind[name] = float(best - min(first.values("elbo", -math.inf)))
    if not behind:
        return Judgement(None, "These records have no centred hierarchical model.")
    within = sum(gap <= NATS for gap in behind.values())
    words = f"{within} of {len(behind)} models stay within {NATS:g} nats on every seed."
    return _judged(within / len(behind), 1.0, words, dict(behind), f"{within} of {len(behind)}")


def _advised(records: Records) -> Judgement:
    groups = {name: chosen for name, chosen in _by_posterior(records).items() if name in CENTRED}
    told = {
        name: [bool(record.metrics["advice"]) for record in chosen if "advice" in record.metrics]
        for name, chosen in groups.items()
    }
    told = {name: said for name, said in told.items() if said}
    if not told:
        return Judgement(None, "These records have no centred model whose notes were kept.")
    always = [name for name, said in told.items() if all(said)]
    numbers = {name: sum(said) for name, said in told.items()}
    parts = ", ".join(f"{name} {sum(said)} of {len(said)}" for name, said in told.items())
    words = f"Every seed names what to reparametrise on {len(always)} of {len(told)} models: {parts}."
    return _judged(len(always) / len(told), 1.0, words, numbers, f"{len(always)} of {len(told)}")


CLAIMS = (
    Claim(
        "After resampling every mean and every sd agrees with long MCMC.",
        "not in the paper",
        Criterion(
            f"Reproduced if, in the median over seeds, every mean is within {ACCURATE:g} sd and every log sd "
            f"within {ACCURATE:g} of the reference on 90 % of the posteriors that have one.",
            _accurate,
        ),
    ),
    Claim(
        "At least 80 % of the posteriors are called good or usable, and rightly so.",
        "not in the paper",
        Criterion(
            "The most frequent grade over the seeds counts. Reproduced if 80 % are good or usable and none "
            f"of these has, in the median over seeds, a mean off by over {MEAN_LIMIT:g} sd or a sd by more "
            "than 25 % after resampling, where a reference is known.",
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
            f"Reproduced if each of {CENTRED_SEEDS} seeds is within {NATS:g} nats of the best ELBO of any "
            "run on all centred models.",
            _centred,
        ),
    ),
    Claim(
        "The fit of a centred hierarchical model says what to reparametrise.",
        "not in the paper",
        Criterion("Reproduced if a note names it on every seed of every centred model.", _advised),
    ),
)

EXPERIMENT = Experiment(
    id="posteriordb-all",
    title="Every posterior of a long list, by the default fit",
    location="not in the paper",
    shows="Errors against long MCMC after resampling, grades over seeds, k-hat and ELBO: twelve posteriors "
    "of PosteriorDB and 33 models that were listed before the first fit.",
    methods=(AUTO, THOROUGH),
    profiles={
        "quick": Profile(seeds=2, minutes=3, settings={"posteriors": ["arK-arK", "sblrc-blr"]}),
        "shared": Profile(seeds=20, minutes=20, settings={"posteriors": list(POSTERIORS)}),
        "centred": Profile(seeds=10, minutes=60, settings={"posteriors": list(CENTRED)}),
        "folder": Profile(seeds=1, minutes=60, settings={"folder": True}),
        "paper": Profile(seeds=20, minutes=180, settings={}),
        **{
            name.lower().replace("_", "-"): Profile(20, 3, {"posteriors": [name]})
            for name in (*POSTERIORS, *MODELS)
        },
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.posteriordb.all_fits:execute"),
    tables=tables,
    figures=figures,
    claims=CLAIMS,
)
