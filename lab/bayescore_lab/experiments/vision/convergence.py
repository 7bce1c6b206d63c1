"""The convergence figure: test loss against epochs of fine-tuning, ours and ADVI's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import (
    Experiment,
    Figure,
    Imported,
    Profile,
    Records,
    Run,
    Table,
    arm_table,
    captioned,
    mean_interval,
    panels,
    plot_traces,
    shared_legend,
)
from bayescore_lab.experiments.vision.arms import ARMS, OURS, arm_runs
from bayescore_lab.experiments.vision.vision import PAPER, QUICK, SMALL, places

METHODS = ("ADVI", OURS)


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    cells = [{k: v for k, v in place.items() if k not in ("only", "seeds")} for place in settings["cells"]]
    return arm_runs(ARMS, {**settings, "cells": cells}, seeds, methods)


def tables(records: Records) -> list[Table]:
    metrics = {"first epoch": "first_loss", "best": "best_loss", "last": "last_loss"}
    return [
        arm_table(chosen, metrics, title=f"Test loss, {name}", name=f"{number}", interval=mean_interval)
        for number, (name, chosen) in enumerate(places(records).items(), 1)
    ]


def figures(records: Records) -> list[Figure]:
    found = places(records)
    drawing, axes = panels(min(3, len(found)), -(-len(found) // 3))
    for ax, (name, chosen) in zip(axes, found.items(), strict=False):
        plot_traces(ax, chosen, "test_loss", label="test loss", axis="epoch", log_x=False, log_y=False)
        ax.set_title(name)
    shared_legend(drawing)
    return [captioned(drawing, records, title="Test loss against epochs")]


def _cells(settings: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {**settings, "cells": settings["cells"][:count]}


EXPERIMENT = Experiment(
    id="vision-convergence",
    title="Convergence of fine-tuning",
    location="Fig. in Appendix D.1",
    shows="The test loss after every epoch of fine-tuning, ProximalScore and ADVI.",
    methods=METHODS,
    profiles={
        "quick": Profile(seeds=1, minutes=2, settings=QUICK),
        "small": Profile(seeds=3, minutes=20, settings=_cells(SMALL, 6)),
        "paper": Profile(seeds=5, minutes=20_000, settings=PAPER),
    },
    runs=runs,
    execute=Imported("bayescore_lab.experiments.vision.fits:execute_convergence"),
    tables=tables,
    figures=figures,
    axis="epoch",
)
