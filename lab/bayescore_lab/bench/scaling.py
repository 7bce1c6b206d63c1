"""`bench scaling`: what the update costs per weight, from 1e5 to 3e8 weights, and with 1 to 50 draws a step.

There is no forward pass: the gradients exist already. In addition to the methods, `copy_` measures the memory
bandwidth. A step of a method must move at least, in numbers per weight,
    ProximalScore              reads gradient, draw, mean, sd, momentum; writes mean (twice), sd, momentum   9
    ProximalDescent            the same with four moments instead of the momentum; so does ADVI             15
    AdamW                      reads weight, gradient, two moments; writes weight, two moments               7
    SGD                        reads weight, gradient; writes weight                                         3
    copy_                      reads one; writes one                                                         2
    sample()                   reads mean, sd; writes weight; and back: reads and writes weight and mean     7
The bandwidth of a method is these bytes divided by the time of `step()`, which generates no noise. The time
of the noise is that of `sample()` minus the time in which `copy_` would move the same bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bayescore_lab.bench.choices import bare_weights
from bayescore_lab.bench.results import Part, Row
from bayescore_lab.bench.step import Measurement, Measurements, StepPlan, measure
from bayescore_lab.bench.timing import Notify, prefixed

__all__ = ["DRAWS_SIZE", "METHODS", "scaling_parts"]

DRAWS_SIZE = 1_000_000
METHODS = ("adamw", "adamw-fused", "sgd", "proximal", "proximal-gradient", "advi", "copy")
DRAWS = (2, 5, 10, 20, 50)
MOVED = {
    "proximal": 9,
    "proximal-gradient": 15,
    "advi": 15,
    "adamw": 7,
    "adamw-fused": 7,
    "sgd": 3,
    "copy": 2,
}
SAMPLE_MOVED = 7
NOISY = ("proximal", "proximal-gradient", "advi")
REFERENCE, LARGEST, BAR = 10_000_000, 300_000_000, 1.25  # cost per weight at the largest over the reference
BANDWIDTH_BAR = 0.7


def scaling_parts(
    plan: StepPlan, sizes: Sequence[int], store: Measurements, notify: Notify
) -> Iterator[Part]:
    """Measure; yields both parts as they grow, whenever a block is finished."""
    plans = {size: replace(plan, net=bare_weights(size), methods=METHODS) for size in sizes}
    for size, each in plans.items():
        for _ in measure(each, store, prefixed(f"{size:,} weights", notify)):
            yield _sizes(plans, store)
    yield _sizes(plans, store)
    names = tuple(f"proximal-{draws}-draws" for draws in DRAWS)
    many = replace(plan, net=bare_weights(min(DRAWS_SIZE, max(sizes))), methods=("proximal", *names))
    for _ in measure(many, store, prefixed("draws per step", notify)):
        yield _draws(many, store)
    yield _draws(many, store)


def _sizes(plans: dict[int, StepPlan], store: Measurements) -> Part:
    rows: list[Row] = []
    for size, plan in plans.items():
        found = store.of(plan.key)
        rows += [_row(size, found, name) for name in METHODS if name in found]
    return Part(
        name="update",
        title="an optimizer step without forward and backward",
        kind="curve",
        config={"size": "weights", "bytes_moved": MOVED, **next(iter(plans.values())).key},
        rows=tuple(rows),
        notes=(
            "GB/s: the bytes a step must move over the time of step(); share of copy_: of the same run's",
            *_bar_notes(rows),
        ),
    )


def _row(size: int, found: dict[str, Measurement], name: str) -> Row:
    one = found[name]
    numbers: dict[str, float] = {**one.numbers, "size": size}
    if one.seconds:
        numbers["ns_per_weight"] = 1e9 * statistics.median(one.seconds) / size
        numbers |= _bandwidths(size, name, found)
    seconds, phases = tuple(one.seconds), {k: tuple(v) for k, v in one.phases.items()}
    return Row(f"{size:,}", name, seconds, note=one.note, phases=phases, numbers=numbers)


def _bandwidths(size: int, name: str, found: dict[str, Measurement]) -> dict[str, float]:
    row, copy = found[name], found.get("copy")
    moved, spent = 4.0 * MOVED[name] * size, _median(row, "update")
    numbers = {"gigabytes_per_second": moved / spent / 1e9}
    if copy is None or not copy.seconds:
        return numbers
    bandwidth = 4.0 * MOVED["copy"] * size / _median(copy, "update")
    numbers["share_of_copy"] = moved / spent / bandwidth
    if name in NOISY:
        noise = max(0.0, _median(row, "noise") - 4.0 * SAMPLE_MOVED * size / bandwidth)
        numbers["noise_ns"] = 1e9 * noise / size
    return numbers


def _median(row: Measurement, phase: str) -> float:
    return statistics.median(row.phases[phase])


def _bar_notes(rows: Sequence[Row]) -> list[str]:
    """The bars as sentences, where their sizes were measured."""
    cost = {row.numbers["size"]: row for row in rows if row.arm == "proximal" and row.seconds}
    words = []
    if REFERENCE in cost and LARGEST in cost:
        ratio = cost[LARGEST].numbers["ns_per_weight"] / cost[REFERENCE].numbers["ns_per_weight"]
        met = "met" if ratio <= BAR else "missed"
        words.append(f"proximal, cost per weight at 3e8 over 1e7: {ratio:.3g} (<= {BAR}: {met})")
    if LARGEST in cost and "share_of_copy" in cost[LARGEST].numbers:
        share = cost[LARGEST].numbers["share_of_copy"]
        met = "met" if share >= BANDWIDTH_BAR else "missed"
        words.append(f"proximal, share of copy_ at 3e8: {share:.0%} (>= {BANDWIDTH_BAR:.0%}: {met})")
    return words


def _draws(plan: StepPlan, store: Measurements) -> Part:
    """The cost of a step against its number of draws."""
    found = store.of(plan.key)
    rows = []
    for draws, name in ((1, "proximal"), *((d, f"proximal-{d}-draws") for d in DRAWS)):
        if name in found:
            row = found[name]
            numbers: dict[str, float] = {**row.numbers, "size": draws}
            if row.seconds:
                numbers["seconds_per_sample"] = statistics.median(row.seconds) / draws
            rows.append(Row(f"S = {draws}", "proximal", tuple(row.seconds), note=row.note, numbers=numbers))
    return Part(
        name="draws",
        title=f"an optimizer step with several draws, {plan.net.title}",
        kind="curve",
        config={"size": "draws per step", **plan.key},
        rows=tuple(rows),
    )
