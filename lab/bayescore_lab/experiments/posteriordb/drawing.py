"""What the PosteriorDB experiments share: rules on one posterior, an axis of gaps, and two tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bayescore_lab.engine import Criterion, Judgement, Records, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["gap_axis", "on", "rates_table", "worst_table"]

MOST = 1e6  # nats above the best Gaussian that a figure still shows


def gap_axis(panel: Axes) -> None:
    """Nats above the best Gaussian, which is a line at 0; linear up to 1 nat and logarithmic beyond."""
    panel.set_yscale("symlog", linthresh=1.0)
    panel.set_ylim(-0.1, min(max(panel.get_ylim()[1], 10.0), MOST))
    panel.axhline(0.0, color="0.35", linewidth=1.0, linestyle=(0, (1, 1)), label="best Gaussian")


def on(posterior: str, rule: Criterion, **case: Any) -> Criterion:
    """The rule for the records of one posterior (and noise level)."""
    where = " ".join([posterior, *(f"{k}={v:g}" for k, v in case.items())])

    def judge(records: Records) -> Judgement:
        found = rule.judge(records.where(posterior=posterior, **case))
        return replace(found, sentence=f"{where}: {found.sentence}")

    return Criterion(f"On {where}: {rule.words}", judge)


def worst_table(records: Records, over: str, values: Sequence[Any], label: str = "") -> Table:
    """The largest gap over the seeds of every arm, a column for every value of a config entry.

    Where the columns are noise levels, `label` names them and there is a row per posterior and arm.
    """
    rows: list[list[Any]] = []
    split = [records] if over == "posterior" else [records.where(posterior=p) for p in _posteriors(records)]
    for part in split:
        for arm, chosen in part.arms.items():
            cells = [chosen.where(**{over: value}) for value in values]
            first = [] if over == "posterior" else [chosen[0].config["posterior"]]
            rows.append(
                [*first, arm, *(float(c.values("gap", math.inf).max()) if c else None for c in cells)]
            )
    columns = [
        *([] if over == "posterior" else ["posterior"]),
        "arm",
        *(f"{label}{value}" for value in values),
    ]
    return Table("Nats above the best Gaussian on the worst seed", columns, rows, name="worst")


def _posteriors(records: Records) -> list[str]:
    return list(dict.fromkeys(record.config["posterior"] for record in records))


def rates_table(records: Records) -> Table:
    """What the pilots gave for each learning rate, and which was chosen."""
    rows: list[list[Any]] = []
    seen = set()
    for record in records:
        key = (record.config["posterior"], record.config.get("beta", 0.0), record.method)
        if key in seen or not record.metrics.get("pilot"):
            continue
        seen.add(key)
        tried = ", ".join(f"{rate}: {gap:.3g}" for rate, gap in record.metrics["pilot"].items())
        rows.append([key[0], key[1], record.method, f"{record.metrics['learning_rate']:g}", tried])
    return Table(
        title="Learning rates, chosen on pilot seeds that no result uses",
        columns=["posterior", "noise", "arm", "chosen", "median final gap of each"],
        rows=rows,
        name="learning-rates",
        note="The same grid and the same budget for every method with a learning rate.",
    )
