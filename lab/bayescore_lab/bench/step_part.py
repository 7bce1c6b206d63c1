"""From the kept rows of `bench step` to a part with ratios, bars and notes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bayescore_lab.bench.kept import Kept, KeptRow
from bayescore_lab.bench.rows import Part, Ratio, Row
from bayescore_lab.bench.step import Plan
from bayescore_lab.bench.step_methods import ANCHOR, BASELINES, contestant

__all__ = ["step_part"]

#: the largest ratios that count as the price of AdamW, on networks of the paper: (method, baseline) to bar
TIME_BARS = {
    ("proximal", "adamw"): 1.0,
    ("proximal", "adamw-fused"): 1.15,
    ("proximal-gradient", "adamw"): 1.15,
}
MEMORY_BARS = {"proximal": 1.25, "proximal-in-backward": 1.0}  # peak over AdamW's
WITH_BARS = ("resnet101", "vit_l_32")
SMALL, SMALL_BAR = "mlp-small", 1e-3  # seconds that a step of a small network may take longer than AdamW's


def step_part(plan: Plan, kept: Kept) -> Part:
    """One network: a row per method in the order of the table, ratios to the baselines, and notes."""
    found = kept.rows(plan.key)
    names = [name for name in plan.names if name in found]
    rows = tuple(_row(plan, found[name]) for name in names)
    ratios = tuple(
        ratio
        for name in names
        for base in BASELINES
        if (ratio := _ratio(plan, found, name, base)) is not None
    )
    blocks = {row.block for row in found.values() if row.block}
    weights = next((row.numbers["weights"] for row in found.values() if "weights" in row.numbers), 0)
    threads = plan.key["threads"]
    notes = [
        f"{int(weights):,} weights, batch {plan.batch}, {threads} threads, {plan.device}, float32; "
        "medians over rounds with their 95 % intervals",
        *_small_bar(plan, found),
        *_memory_bars(plan, found),
    ]
    if len(blocks) > 1:
        notes.append(
            f"measured in {len(blocks)} blocks, {ANCHOR} again in each: ratios between blocks go through it"
        )
    load = max((row.numbers.get("load_average", 0.0) for row in found.values()), default=0.0)
    if load > threads + 0.5:  # one worker at a time is busy with so many threads
        notes.append(f"the machine was busy (load average {load:g}): trust the ratios, not the times")
    return Part(
        name=plan.net.name,
        title=f"one training step of {plan.net.title}",
        kind="profile",
        config={**plan.key, "methods": list(plan.names), "load_average": load, "blocks": len(blocks)},
        rows=rows,
        ratios=ratios,
        notes=tuple(notes),
    )


def _row(plan: Plan, row: KeptRow) -> Row:
    phases = {name: tuple(values) for name, values in row.phases.items()}
    numbers = {**row.numbers, **_latencies(row)}
    return Row(
        problem=plan.net.name,
        arm=row.method,
        seconds=tuple(row.seconds),
        setting=contestant(row.method).title,
        note=row.note,
        phases=phases,
        numbers=numbers,
    )


def _latencies(row: KeptRow) -> dict[str, float]:
    """What a first step takes beyond a later one, with an empty and with a full cache."""
    found = {}
    for state in ("cold", "warm"):
        first = row.numbers.get(f"{state}_first_step_seconds")
        if first is not None and row.seconds:
            found[f"{state}_latency_seconds"] = max(0.0, first - statistics.median(row.seconds))
    return found


def _ratio(plan: Plan, found: Mapping[str, KeptRow], name: str, base: str) -> Ratio | None:
    """The seconds of a method over those of a baseline.

    Round by round where both were measured together; else both over the anchor in the same rounds, the
    baseline's by its median.
    """
    over, under = found[name], found.get(base)
    if name == base or under is None or not over.seconds or not under.seconds:
        return None
    if base == ANCHOR and over.anchor:
        values = [a / b for a, b in zip(over.seconds, over.anchor, strict=False)]
    elif over.block == under.block:
        values = [a / b for a, b in zip(over.seconds, under.seconds, strict=False)]
    elif over.anchor and (under.anchor or base == ANCHOR):
        scale = statistics.median(a / b for a, b in zip(under.seconds, under.anchor, strict=False))
        values = [a / b / scale for a, b in zip(over.seconds, over.anchor, strict=False)]
    else:
        values = [a / statistics.median(under.seconds) for a in over.seconds]
    bar = TIME_BARS.get((name, base)) if plan.net.name in WITH_BARS else None
    return Ratio(plan.net.name, name, base, tuple(values), bar, at_least=False) if values else None


def _small_bar(plan: Plan, found: Mapping[str, KeptRow]) -> list[str]:
    """What our step adds to AdamW's on a small network, where a ratio says little."""
    row = found.get("proximal")
    if plan.net.name != SMALL or row is None or not row.anchor:
        return []
    more = statistics.median(a - b for a, b in zip(row.seconds, row.anchor, strict=False))
    met = "met" if more <= SMALL_BAR else "missed"
    return [f"a step of proximal takes {1e3 * more:.2f} ms longer than {ANCHOR}'s (<= 1 ms: {met})"]


def _memory_bars(plan: Plan, found: Mapping[str, KeptRow]) -> list[str]:
    """The memory bars as sentences."""
    if plan.net.name not in WITH_BARS or "peak" not in getattr(found.get(ANCHOR), "numbers", {}):
        return []
    most = found[ANCHOR].numbers["peak"]
    words = []
    for name, bar in MEMORY_BARS.items():
        if name in found and "peak" in found[name].numbers:
            ratio = found[name].numbers["peak"] / most
            met = "met" if ratio <= bar else "missed"
            words.append(f"peak memory of {name}: {ratio:.3g} x {ANCHOR} (<= {bar:g}: {met})")
    return words
