"""Whether standard deviations have been learned, in a sentence, from the measured noise of their estimate.

The slope estimate of one step has the relative variance V; after t steps the precision is known at best to a
relative error of sqrt(V/t), the sd to half of that.
"""

from __future__ import annotations

import math

__all__ = ["precision_sentence"]

LEARNED = 0.1  # relative error of the sd up to which it counts as learned


def precision_sentence(rows: list[tuple[int, float, int]], how: str, patience: float) -> str:
    """The state of the precision.

    Arguments:
        rows: (number of weights, V, steps) of every tensor.
        how: what stands in while eps*score is too noisy: "squares" (squared gradients), "initial" (the precision
            is left as it was) or "score" (nothing does).
        patience: the constant of optim/exact.py (7).
    """
    size = sum(n for n, _, _ in rows)
    if not size or not rows[0][2]:
        return "precision not learned: no update yet"
    V = sum(n * v for n, v, _ in rows) / size
    t = rows[0][2]
    if not math.isfinite(V):
        return "precision not learned: its estimate is not finite"
    error = 0.5 * math.sqrt(V / t)
    rho = sum(n * t / (t + patience * v) for n, v, _ in rows) / size
    need = math.ceil(V / (2 * LEARNED) ** 2)
    if error <= LEARNED / 2 or (how == "score" and error <= LEARNED):
        share = f", {rho:.0%} of it by eps*score" if how != "score" and rho < 0.95 else ""
        return f"precision learned to about {100 * error:.1g} %{share}"
    if how == "squares":
        return (
            f"precision not learned from eps*score (it would take about {need} steps): "
            f"{1 - rho:.0%} of it comes from squared gradients, which equal the curvature where the model fits; "
            "two draws per step on the same batch learn it exactly"
        )
    kept = "it stays near its initial value" if how == "initial" else "it is mostly noise"
    return (
        f"precision not learned (it would take about {need} steps): {kept}; "
        "give batch_size= (ProximalScore), or make two draws per step on the same batch"
    )
