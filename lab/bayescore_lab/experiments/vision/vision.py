"""Table 1: fine-tuned ResNet-101 and ViT-L-32 on four sets of photographs; smaller networks where that fits.

The profile `paper` is the whole grid and needs a GPU, the ImageNet weights of torchvision and its data sets.
The profile `small` has EfficientNet-Lite0 and MobileNetV2 at 96 pixels, whose weights are in packages, with
the first stages frozen, and the whole network on Pets for three methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

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
    arm_table,
    mean_interval,
)
from bayescore_lab.engine.figures import captioned, panels, plot_points
from bayescore_lab.engine.records import Record
from bayescore_lab.engine.statistics import median_range
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.experiments.vision.arms import (
    ARMS,
    OURS,
    PRINTED_ARM,
    SCALED,
    TRIALS,
    WHOLE,
    arm_runs,
    execute,
)
from bayescore_lab.experiments.vision.predictions import paired_ece, paired_nll
from bayescore_lab.experiments.vision.table_one import METHODS, NETWORKS, SETS, cell, paper_values

LEVEL = 0.05
SMALL_SETS = ("pets", "flowers102", "dtd10")
SMALL_NETWORKS: dict[str, dict[str, Any]] = {
    "efficientnet_lite0": {"weights": "pretrained", "freeze": 16},
    "mobilenet_v2": {"weights": "mobilenet-package", "freeze": 15},
}
SHARED = {"size": 96, "epochs": 10, "batch_size": 16, "draws": 10, "batchnorm": "frozen"}
SMALL: dict[str, Any] = {
    "shared": {**SHARED, "choose_by": 500},  # to predict all of validation would cost more than to train
    "cells": [
        *({"data": data, "net": net, **own, "cost": 60.0}
          for data in SMALL_SETS for net, own in SMALL_NETWORKS.items()),
        *({"data": "pets", "net": net, **own, "freeze": 0, "only": WHOLE, "seeds": 2, "cost": 900.0,
           "turn": 100} for net, own in SMALL_NETWORKS.items()),
    ],
}  # fmt: skip
PAPER: dict[str, Any] = {
    "shared": {**SHARED, "size": 224, "epochs": 50, "draws": 5},
    "cells": [
        {"data": data, "net": net, "weights": "pretrained", "only": (*METHODS, SCALED, PRINTED_ARM)}
        for data in SETS
        for net in NETWORKS
    ],
}
QUICK: dict[str, Any] = {
    "shared": {**SHARED, "epochs": 3, "draws": 2, "limit": 24},
    "cells": [{"data": "digits", "net": "small", "augment": False, "size": 8}],
}
METRICS = {
    "error": "error",
    "NLL": "nll",
    "ECE-15": "ece",
    "all-class ECE, %": "all_class_ece",
    "of a calibrated network, %": "all_class_ece_floor",
    "Brier": "brier",
    "seconds": "training_seconds",
}
NOTE = (
    "Means over seeds with 95 % t intervals. Half of the official training pictures train, the other half "
    "chooses the epoch (in the small profile 500 of it), one permutation per seed (the ten classes of DTD: "
    "40, 40 and 40 per class, seed 0)."
)


def place(record: Record) -> str:
    """The cell of a record."""
    c = record.config
    whole = c["net"] in SMALL_NETWORKS and not c.get("freeze")
    return cell(c["data"], c["net"]) + (", whole network" if whole else "")


def places(records: Records) -> dict[str, Records]:
    """The records of every cell."""
    names = dict.fromkeys(place(record) for record in records)

    def chosen(name: str) -> Records:
        return records.select(lambda record: place(record) == name)

    return {name: chosen(name) for name in names}


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return arm_runs(ARMS, settings, seeds, methods)


def trial_runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    """Six trials per method on the first cell."""
    first = {**settings, "cells": settings["cells"][:1]}
    return [
        Run(run.method, run.seed, {**run.config, **trial, "trial": number}, cost=run.cost)
        for run in arm_runs(ARMS, first, seeds[:1], methods)
        for number, trial in enumerate(TRIALS[run.method])
    ]


def tables(records: Records) -> list[Table]:
    found = []
    for name, chosen in places(records).items():
        first = chosen[0].config
        found.append(
            arm_table(
                chosen,
                METRICS,
                paper_values(first["data"], first["net"]),
                title=name,
                name=name.lower().replace(", ", "-").replace(" ", "-").replace("_", "-"),
                note=NOTE,
                interval=mean_interval,
            )
        )
    found.append(paired_table(places(records)))
    return found


def paired_table(cells: Mapping[str, Records]) -> Table:
    """Ours against every other arm in every cell, paired."""
    rows: list[list[Cell]] = []
    for name, chosen in cells.items():
        if OURS not in chosen.arms:
            continue
        for arm, others in chosen.arms.items():
            nll, ece = (compare(chosen.arms[OURS], others) for compare in (paired_nll, paired_ece))
            if arm != OURS and nll is not None and ece is not None:
                rows.append([name, arm, *nll, *ece])
    columns = ["cell", "than"]
    for metric in ("NLL", "ECE-15"):
        columns += [f"{metric}, ours minus theirs"]
        columns += [f"{metric}, {word}" for word in ("s.e. over test examples", "s.e. over seeds", "p")]
    note = "Paired by test examples and seeds; p is two-sided and counts both sources of variance."
    return Table("Paired differences", columns, rows, name="paired", note=note)


def figures(records: Records) -> list[Figure]:
    found = places(records)
    columns = min(3, len(found))
    drawing, axes = panels(columns, -(-len(found) // 3), width=3.0)
    before: list[str] = []
    for number, (ax, (name, chosen)) in enumerate(zip(axes, found.items(), strict=False)):
        points = {arm: median_range(rows.values("nll", math.inf)) for arm, rows in chosen.arms.items()}
        c = chosen[0].config
        printed = {v.arm: v.value for v in paper_values(c["data"], c["net"]) if v.metric == "nll"}
        plot_points(ax, points, label="test NLL", paper=printed)
        if number % columns and list(points) == before:  # the panel to the left has the same names
            ax.set_yticklabels([])
        before = list(points)
        ax.set_title(name)
    note = "Median over seeds, from the smallest to the largest."
    return [captioned(drawing, records, title="Fine-tuned networks, test NLL", note=note)]


def _at_most(metric: str, than: str, cells: int = 4) -> Criterion:
    """Our mean is at most the other's in so many cells."""
    words = (
        f"Count the cells in which the mean {metric} of {OURS} over seeds is at most that of {than}. "
        f"Reproduced if these are at least {cells} sixths of the cells, not if they are fewer than half."
    )

    def judge(records: Records) -> Judgement:
        held, seen = [], []
        for name, chosen in places(records).items():
            if OURS in chosen.arms and than in chosen.arms and "whole" not in name:
                ours, theirs = (
                    float(np.mean(chosen.arms[arm].values(metric, math.inf))) for arm in (OURS, than)
                )
                seen.append(name)
                held += [name] if ours <= theirs else []
        if not seen:
            return Judgement(None, f"There are no records of {OURS} and {than}.")
        share = len(held) / len(seen)
        verdict = REPRODUCED if share >= cells / 6 else NOT_REPRODUCED if share < 0.5 else PARTLY
        share_held = f"{len(held)} of {len(seen)} cells"
        sentence = f"It is in {share_held} ({', '.join(held) or 'none'})."
        return Judgement(verdict, sentence, ours=share_held)

    return Criterion(words, judge)


def not_above(ours: str, than: str, cells: Callable[[Records], Mapping[str, Records]]) -> Criterion:
    """In no cell is the NLL of an arm above another's by more than the paired interval."""
    words = (
        f"In every cell the NLL of {ours} is at most that of {than}, or above it by no more than the 95 % "
        "interval of the paired difference, with the variance over test examples and over seeds. Reproduced "
        "if so in all cells, not if in fewer than half."
    )

    def judge(records: Records) -> Judgement:
        held: list[str] = []
        above: list[str] = []
        for name, chosen in cells(records).items():
            if ours in chosen.arms and than in chosen.arms:
                found = paired_nll(chosen.arms[ours], chosen.arms[than])
                if found is not None and not math.isnan(found.p):  # of one seed
                    (held if found.mean <= 0 or found.p >= LEVEL else above).append(name)
        seen = len(held) + len(above)
        if not seen:
            return Judgement(None, f"There are no pairs of {ours} and {than}.")
        share_held = f"{len(held)} of {seen} cells"
        verdict = REPRODUCED if not above else NOT_REPRODUCED if 2 * len(held) < seen else PARTLY
        sentence = f"It holds in {share_held}; above in {', '.join(above) or 'none'}."
        return Judgement(verdict, sentence, ours=share_held)

    return Criterion(words, judge)


def _frozen_places(records: Records) -> dict[str, Records]:
    return {name: chosen for name, chosen in places(records).items() if "whole" not in name}


TUNED = tuple(name for name in ARMS if name in TRIALS)


def _no_figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


def _trial_tables(records: Records) -> list[Table]:
    rows: list[list[Cell]] = []
    for arm, chosen in records.arms.items():
        for record in sorted(chosen, key=lambda r: r.metrics.get("validation_nll", math.inf)):
            c = record.config
            words = ", ".join(f"{k}={v}" for k, v in dict(c.get("options", {})).items())
            rows.append(
                [arm, c.get("body_lr"), c.get("head_lr"), words, record.metrics.get("validation_nll")]
            )
    return [Table("Six trials per method", ["arm", "body lr", "head lr", "options", "validation NLL"], rows)]


EXPERIMENTS = (
    Experiment(
        id="vision",
        title="Fine-tuned vision networks",
        location="Table 1, Sec. 5.3",
        shows="Error, calibration and NLL of pretrained networks that are fine-tuned on photographs.",
        methods=tuple(ARMS),
        profiles={
            "quick": Profile(seeds=1, minutes=3, settings=QUICK),
            "pets": Profile(seeds=5, minutes=40, settings={**SMALL, "cells": SMALL["cells"][:2]}),
            "small": Profile(seeds=5, minutes=105, settings=SMALL),
            "paper": Profile(seeds=5, minutes=60_000, settings=PAPER),
        },
        runs=runs,
        execute=execute,
        tables=tables,
        figures=figures,
        claims=(
            Claim("Our method consistently outperforms ADVI in NLL.", "Sec. 5.3", _at_most("nll", "ADVI")),
            Claim(
                "Our method consistently outperforms ADVI in ECE.",
                "Sec. 5.3",
                _at_most("all_class_ece", "ADVI"),
            ),
            Claim(
                "Its NLL is at most that of the plain network with its temperature scaled.",
                "not in the paper",
                _at_most("nll", SCALED),
            ),
            Claim(
                "Untuned, its NLL is not above that of the untuned plain network.",
                "not in the paper",
                not_above("Ours, untuned", "Plain, untuned", _frozen_places),
            ),
        ),
    ),
    Experiment(
        id="vision-tuning",
        title="Settings of the vision methods, chosen on validation",
        location="Sec. 5.3",
        shows="The validation NLL of six trials per method, on Pets with one network and one seed.",
        methods=TUNED,
        profiles={
            "quick": Profile(seeds=1, minutes=5, settings=QUICK),
            "small": Profile(seeds=1, minutes=20, settings=SMALL),
            "paper": Profile(seeds=1, minutes=4_000, settings=PAPER),
        },
        runs=trial_runs,
        execute=Imported("bayescore_lab.experiments.vision.fits:execute_trials"),
        tables=_trial_tables,
        figures=_no_figures,
    ),
)
