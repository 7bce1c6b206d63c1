"""What the PosteriorDB experiments share: rules on one posterior, and the table of learning rates."""

from __future__ import annotations

from typing import Any

from bayescore.experiments import Judgement, Records, Rule, Table

__all__ = ["on", "rates_table"]


def on(posterior: str, rule: Rule, **case: Any) -> Rule:
    """The rule for the records of one posterior (and noise level)."""
    where = " ".join([posterior, *(f"{k}={v:g}" for k, v in case.items())])

    def judge(records: Records) -> Judgement:
        found = rule.judge(records.where(posterior=posterior, **case))
        return Judgement(found.verdict, f"{where}: {found.sentence}", found.numbers)

    return Rule(f"On {where}: {rule.words}", judge)


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
