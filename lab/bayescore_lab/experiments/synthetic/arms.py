"""One line or row of a synthetic experiment, declared as plain data.

A config says everything that can change a result: the target's generator, the family and its start, the
method and its options, the number of steps, the learning rates that the pilot may choose from, and how often
the forward KL is looked at. Seed i means target i, start i and random stream i, for every arm: arms are
paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayescore_lab.engine import Imported, Run

__all__ = ["ADVI", "BAM", "GSM", "GUMBEL", "LEARNING_RATES", "OURS", "STRATIFIED", "arm", "execute", "grid"]

execute = Imported("bayescore_lab.experiments.synthetic.fits:execute")

#: what the pilot of every method with a step size chooses from (the paper: between 1e-3 and 1e-1)
LEARNING_RATES = (0.001, 0.003, 0.01, 0.03, 0.1)

Spec = dict[str, Any]


def arm(method: str, *, tuned: bool = True, steps: int = 1000, **options: Any) -> Spec:
    """A method with its options; a tuned one has its learning rate chosen on pilot targets."""
    return {
        "method": method,
        "options": options,
        "steps": steps,
        "learning_rates": list(LEARNING_RATES) if tuned else [],
    }


OURS = arm("proximal")
ADVI = arm("advi")
GUMBEL = arm("advi", mixture="gumbel", temperature=0.05)
GSM = arm("gsm", tuned=False, steps=500)
BAM = arm("bam", tuned=False, steps=500)
STRATIFIED = arm("advi", mixture="stratified")


def grid(
    arms: Mapping[str, Spec],
    setting: Mapping[str, Any],
    seeds: Sequence[int],
    methods: Sequence[str],
) -> list[Run]:
    """All seeds of each chosen arm, as one group: they run as one batch.

    `setting` holds what the arms share (target, family, draws) and `scale`, by which a profile shortens them.
    """
    runs = []
    for name in methods:
        spec = dict(arms[name])
        spec["steps"] = max(20, round(spec["steps"] * setting.get("scale", 1.0)))
        config = {**{k: v for k, v in setting.items() if k != "scale"}, **spec}
        cost = spec["steps"] * spec["options"].get("inner_steps", 20 if spec["method"] == "proximal" else 1)
        cost *= 1 + len(spec["learning_rates"])
        runs += [Run(name, seed, config, group=name, cost=float(cost)) for seed in seeds]
    return runs
