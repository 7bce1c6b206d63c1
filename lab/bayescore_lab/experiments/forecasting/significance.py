"""Appendix D.3: paired t-tests of ours against ADVI on the NLL, from the records of other experiments.

Nothing is trained here. A cell is a data set of an experiment, and for vision a network; the config of its
run holds the NLLs by seed that are recorded in the folder `results` when the command starts, so that new
records of the other experiment make a new run here. Beside the paper's test, whose pairs are seeds, stand
Holm's correction for the number of cells, Wilcoxon's signed-rank test and, for vision, where all seeds are
tested on the same pictures, the test that counts the pictures too (vision/predictions.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bayescore_lab.engine import (
    Claim,
    Criterion,
    Experiment,
    Figure,
    Judgement,
    Profile,
    Records,
    Run,
    RunOutcome,
    Table,
    holm,
    mean_interval,
    paired_t,
    plan,
    wilcoxon,
)
from bayescore_lab.engine.records import RecordStore
from bayescore_lab.engine.statistics import differences
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.experiments.forecasting.koopa import EXPERIMENT as KOOPA
from bayescore_lab.experiments.forecasting.koopa_arms import ADVI, OURS, PROXIMAL
from bayescore_lab.experiments.forecasting.koopa_results import FEWEST as PAIRS_NEEDED
from bayescore_lab.experiments.vision import vision
from bayescore_lab.experiments.vision.arms import OURS as VISION_OURS
from bayescore_lab.experiments.vision.arms import PRINTED_ARM
from bayescore_lab.experiments.vision.predictions import paired_nll
from bayescore_lab.experiments.vision.table_one import NETWORKS, cell

__all__ = ["CELLS", "EXPERIMENT"]

LEVEL = 0.05
METRIC = "nll"


class Compared(NamedTuple):
    """Two arms in one cell of an experiment, and the paper's p-value.

    Arguments:
        place: the entries of a run's config that make the cell.
        arms: the arms of each of PAIRS in this experiment.
    """

    experiment: Experiment
    profile: str
    place: dict[str, Any]
    arms: dict[str, tuple[str, str]]
    paper: float | None = None


PAIRS = (f"{OURS} against {ADVI}", f"{PROXIMAL} against {ADVI}")
PAPERS, DEFAULT = PAIRS
OF_KOOPA = {PAPERS: (OURS, ADVI), DEFAULT: (PROXIMAL, ADVI)}
OF_VISION = {PAPERS: (PRINTED_ARM, "ADVI"), DEFAULT: (VISION_OURS, "ADVI")}
VISION = vision.EXPERIMENTS[0]
#: p-values of the paper for the two networks, in the order of `table_one.NETWORKS`
PRINTED = {
    "pets": (0.0019, 0.0004), "flowers102": (0.2420, 0.1100), "aircraft": (1.23e-5, 0.4229),
    "dtd": (0.0005, 2.31e-5),
}  # fmt: skip
#: what is compared, by name: experiments on other data add their cells here
CELLS: dict[str, Compared] = {
    **{
        f"Koopa, {data}": Compared(KOOPA, "paper", {"data": data}, OF_KOOPA, paper)
        for data, paper in {"ETTh2": 0.2237, "Exchange": 0.0233, "ILI": 6.83e-7, "Weather": 0.0007}.items()
    },
    **{
        cell(data, net): Compared(VISION, "small", {"data": data, "net": net, **own}, OF_VISION)
        for data in vision.SMALL_SETS
        for net, own in vision.SMALL_NETWORKS.items()
    },
    **{
        cell(data, net): Compared(VISION, "paper", {"data": data, "net": net}, OF_VISION, paper)
        for data, values in PRINTED.items()
        for net, paper in zip(NETWORKS, values, strict=True)
    },
}
#: as many as can be had without a GPU: four of Koopa, six of vision
FEWEST = 10
SETTINGS = {"folder": "results"}
#: entries of a difference with pictures, and their columns
PICTURES = {
    "over_examples": "s.e. over test pictures",
    "over_seeds": "s.e. over seeds",
    "p": "p, pictures and seeds",
}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    folder = Path({**SETTINGS, **settings}["folder"])
    stored = {one.experiment.id: one.experiment for one in CELLS.values()}
    read = {name: RecordStore(folder / name).read() for name in stored}
    found = []
    for name, compared in CELLS.items():
        whole = plan(compared.experiment, compared.profile).choose(read[compared.experiment.id])
        records = whole.where(**compared.place)
        for method in methods:
            one, other = compared.arms[method]
            ours, theirs = records.pairs(METRIC, one, other)
            config: dict[str, Any] = {"cell": name, "ours": ours.tolist(), "theirs": theirs.tolist()}
            if compared.experiment is VISION and len(ours) > 1:
                both = paired_nll(records.arms[one], records.arms[other])
                config |= {"with_pictures": both._asdict()} if both is not None else {}
            found.append(Run(method, seeds[0], config))
    return found


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """The tests of each cell."""
    for run in todo:
        ours, theirs = run.config["ours"], run.config["theirs"]
        metrics: dict[str, float] = {"pairs": len(ours)}
        if len(ours) > 1:
            metrics |= {
                "difference": mean_interval(differences(ours, theirs)).estimate,
                "t": paired_t(ours, theirs).p,
                "wilcoxon": wilcoxon(ours, theirs).p,
            }
        if "with_pictures" in run.config:
            metrics["with_pictures"] = run.config["with_pictures"]["p"]
        yield RunOutcome(run, metrics, 0, ended="ok" if len(ours) > 1 else "too few records")


def tables(records: Records) -> list[Table]:
    found = []
    for name, chosen in records.arms.items():
        ready = [record for record in chosen if record.metrics["pairs"] > 1]
        t = [float(record.metrics["t"]) for record in ready]
        ranks = [float(record.metrics["wilcoxon"]) for record in ready]
        rows: list[list[Cell]] = [
            [
                record.config["cell"],
                int(record.metrics["pairs"]),
                mean_interval(differences(record.config["ours"], record.config["theirs"])),
                *numbers,
                *(record.config.get("with_pictures", {}).get(word) for word in PICTURES),
                CELLS[record.config["cell"]].paper if name == PAPERS else None,
            ]
            for record, *numbers in zip(ready, t, holm(t), ranks, holm(ranks), strict=True)
        ]
        tests = ["p, paired t", "p, paired t, Holm", "p, Wilcoxon", "p, Wilcoxon, Holm"]
        columns = ["cell", "pairs", "difference of NLL", *tests, *PICTURES.values(), "p, paired t, paper"]
        title = f"{name}, NLL"
        file = "ours" if name == PAPERS else "default"
        note = "Two-sided. Below 0: ours is better. A cell without two recorded pairs is left out."
        found.append(Table(title, columns, rows, name=file, note=note))
    return found


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _mostly_significant(name: str) -> Criterion:
    words = (
        f"Of the cells with {PAIRS_NEEDED} pairs or more, at least {FEWEST}: reproduced if the paired t-test "
        f"has p < {LEVEL:g} and ours has the lower mean in at least half, as in 9 of the paper's 14; partly "
        "if in some, not reproduced here if in none."
    )

    def judge(records: Records) -> Judgement:
        ready = [r for r in records.arms.get(name, ()) if r.metrics["pairs"] >= PAIRS_NEEDED]
        if len(ready) < FEWEST:
            found = f"{len(ready)} of {len(CELLS)} cells have {PAIRS_NEEDED} pairs or more"
            return Judgement(None, f"Not judged: {found}, and {FEWEST} are needed.")
        better = [r.config["cell"] for r in ready if r.metrics["t"] < LEVEL and r.metrics["difference"] < 0]
        worse = [r.config["cell"] for r in ready if r.metrics["t"] < LEVEL and r.metrics["difference"] > 0]
        verdict = REPRODUCED if 2 * len(better) >= len(ready) else PARTLY if better else NOT_REPRODUCED
        sentence = (
            f"Significantly better in {', '.join(better) or 'none'}; worse in {', '.join(worse) or 'none'}."
        )
        ours = f"{len(better)} of {len(ready)} better, {len(worse)} worse"
        return Judgement(verdict, sentence, {"better": better, "worse": worse}, ours)

    return Criterion(words, judge)


EXPERIMENT = Experiment(
    id="significance",
    title="Paired tests of ours against ADVI",
    location="App. D.3",
    shows="p-values of the NLL by data set, from the records of other experiments.",
    methods=PAIRS,
    profiles={
        "quick": Profile(seeds=1, minutes=0.1, settings={}),
        "paper": Profile(seeds=1, minutes=0.1, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=(
        Claim(
            "Ours is significantly better than ADVI in 9 of 14 cells.",
            "App. D.3",
            _mostly_significant(PAPERS),
            paper="9 of 14",
        ),
        Claim("So is ProximalScore.", "not in the paper", _mostly_significant(DEFAULT)),
    ),
)
