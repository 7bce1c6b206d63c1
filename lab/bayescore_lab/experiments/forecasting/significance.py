"""Appendix D.3: paired t-tests of ours against ADVI on the NLL, from the records of other experiments.

Nothing is trained here. A cell is an experiment and a data set; the config of its run holds the NLLs by seed
that are recorded in the folder `results` when the command starts, so that new records of the other experiment
make a new run here. Beside the paper's test stand Holm's correction for the number of cells, and Wilcoxon's
signed-rank test.
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

__all__ = ["CELLS", "EXPERIMENT"]

LEVEL = 0.05
METRIC = "nll"


class Compared(NamedTuple):
    """Two arms on one data set of an experiment, and the paper's p-value."""

    experiment: Experiment
    data: str
    paper: float | None = None


#: what is compared, by name: experiments on other data add their cells here
CELLS = {
    f"Koopa, {data}": Compared(KOOPA, data, paper)
    for data, paper in {"ETTh2": 0.2237, "Exchange": 0.0233, "ILI": 6.83e-7, "Weather": 0.0007}.items()
}
PAIRS = {f"{OURS} against {ADVI}": (OURS, ADVI), f"{PROXIMAL} against {ADVI}": (PROXIMAL, ADVI)}
PAPERS, DEFAULT = PAIRS
SETTINGS = {"folder": "results"}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    folder = Path({**SETTINGS, **settings}["folder"])
    found = []
    for cell, compared in CELLS.items():
        store = RecordStore(folder / compared.experiment.id)
        records = plan(compared.experiment, "paper").choose(store.read()).where(data=compared.data)
        for name in methods:
            ours, theirs = records.pairs(METRIC, *PAIRS[name])
            config = {"cell": cell, "ours": ours.tolist(), "theirs": theirs.tolist()}
            found.append(Run(name, seeds[0], config))
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
                CELLS[record.config["cell"]].paper if name == PAPERS else None,
            ]
            for record, *numbers in zip(ready, t, holm(t), ranks, holm(ranks), strict=True)
        ]
        tests = ["p, paired t", "p, paired t, Holm", "p, Wilcoxon", "p, Wilcoxon, Holm"]
        columns = ["cell", "pairs", "difference of NLL", *tests, "p, paired t, paper"]
        title = f"{name}, NLL with 5 draws"
        file = "ours" if name == PAPERS else "default"
        note = "Two-sided. Below 0: ours is better. A cell without two recorded pairs is left out."
        found.append(Table(title, columns, rows, name=file, note=note))
    return found


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _mostly_significant(name: str) -> Criterion:
    words = (
        f"Reproduced if the paired t-test has p < {LEVEL:g} and ours has the lower mean in at least half of "
        "the cells, as in 9 of the paper's 14; partly if in some, not reproduced here if in none."
    )

    def judge(records: Records) -> Judgement:
        ready = [r for r in records.arms.get(name, ()) if r.metrics["pairs"] > 1]
        if len(ready) < len(CELLS):
            return Judgement(None, f"{len(ready)} of {len(CELLS)} cells have records.")
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
    methods=tuple(PAIRS),
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
