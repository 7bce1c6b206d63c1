"""The losses of a run in a bounded memory, and one sentence about the mean: has it arrived?

Losses are recorded every `loss_stride` steps, together with the learning rate. When there are 128 of them,
every second one is dropped and the stride doubles, so that they always span the whole run.

With a, s, n the mean, standard deviation and number of losses in a part of the run, l0 the first loss, and
    z(x, y) = (a_x - a_y) / e(x, y),   e(x, y) = sqrt(s_x^2/n_x + s_y^2/n_y)                              (1)
the sentences are, in this order (parts 1 and 4 are the first and last quarters of the run):
    above its first value      a_4 - l0 > 3 s_4 sqrt(1 + 1/n_4), or the median of 4 is above l0 + |l0|
    still falling              z(x, y) > 3 and a_x - a_y > 0.02 (l0 - a_y)
    rising again               z(x, y) < -3 and a_y - a_x > 0.02 (l0 - a_y)
    has hardly moved           z(1, 4) < 3 and l0 - a_4 < 3 s_4 sqrt(1 + 1/n_4)
    arrived                    a_x - a_y + 2 e(x, y) < 0.1 (l0 - a_y)
    cannot be told             otherwise: the losses are too noisy
Here x and y are the last two quarters of the run up to where a schedule has lowered the rate for good below a
quarter of its largest value; afterwards any loss stops falling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, variance
from typing import Any

from bayescore.checks import check_count

__all__ = ["LOSSES", "check_losses", "is_recorded", "mean_sentence", "record_loss"]

#: the record of a run in a parameter group, empty
LOSSES: dict[str, Any] = {"loss_stride": 1, "losses": (), "loss_lrs": ()}
MOST, LEAST = 128, 16  # losses that are kept, and losses that are needed for a sentence
DECAYED = 0.25  # share of the largest rate below which a schedule has ended
SURE = 3.0  # z of (1)
MATERIAL, SMALL = 0.02, 0.1  # shares of the whole fall: a fall that counts, and one that need not be excluded


def is_recorded(group: dict[str, Any]) -> bool:
    """Whether the loss of the present step is to be recorded."""
    return bool(group["step"] % group["loss_stride"] == 0)


def record_loss(groups: Sequence[dict[str, Any]], loss: float) -> None:
    """Add a loss to the record."""
    if not math.isfinite(loss):
        return
    head = groups[0]
    stride, losses, lrs = head["loss_stride"], (*head["losses"], loss), (*head["loss_lrs"], float(head["lr"]))
    if len(losses) == MOST:
        stride, losses, lrs = 2 * stride, losses[::2], lrs[::2]
    for group in groups:  # tuples: a state dict that was saved does not change with the run
        group.update(loss_stride=stride, losses=losses, loss_lrs=lrs)


def check_losses(group: dict[str, Any]) -> None:
    """Raise unless a group's record is one that `record_loss` makes."""
    check_count("loss_stride", group["loss_stride"])
    for name in ("losses", "loss_lrs"):
        values = group[name]
        numbers = isinstance(values, tuple | list) and all(isinstance(v, float) for v in values)
        if not numbers or len(values) >= MOST or not all(map(math.isfinite, values)):
            raise ValueError(f"{name} must be fewer than {MOST} finite numbers; got {values!r}")
    if len(group["losses"]) != len(group["loss_lrs"]):
        raise ValueError("losses and loss_lrs must have one length")


def mean_sentence(losses: Sequence[float], lrs: Sequence[float]) -> str:
    """One sentence about the mean, with the one thing to change; empty if there are too few losses."""
    if len(losses) < LEAST:
        return ""
    quarter, first = len(losses) // 4, losses[0]
    begin, last = losses[:quarter], losses[-quarter:]
    level, spread = fmean(last), SURE * math.sqrt(variance(last) * (1 + 1 / quarter))
    moved = f"{level:.3g}, after {first:.3g} at first"
    if level - first > spread or median(last) - first > abs(first):
        return f"the loss is above its first value ({moved}): lower lr"
    end = 1 + max(i for i, lr in enumerate(lrs) if lr >= DECAYED * max(lrs))
    end = len(losses) if end < LEAST else end
    third, fourth = losses[end // 2 : end - end // 4], losses[end - end // 4 : end]
    fall, error = fmean(third) - fmean(fourth), _error(third, fourth)
    whole = first - fmean(fourth)
    if abs(fall) > max(SURE * error, MATERIAL * whole):
        change = f"({fmean(third):.3g}, then {fmean(fourth):.3g})"
        if fall < 0:
            return f"the loss rises again {change}: lower lr"
        if end < 0.9 * len(losses):
            return f"the loss still fell {change} when the schedule lowered lr: train longer"
        return f"the loss still falls {change}: train longer, or raise lr"
    if first - level <= spread and fmean(begin) - level <= SURE * _error(begin, last):
        return f"the loss has hardly moved ({moved}): raise lr, unless training began at the optimum"
    if fall + 2 * error < SMALL * whole:
        return f"the mean has arrived: the loss has stopped falling ({moved})"
    return f"the loss is too noisy to tell whether it still falls ({moved}): judge by held-out data"


def _error(one: Sequence[float], two: Sequence[float]) -> float:
    """e of (1)."""
    return math.sqrt(variance(one) / len(one) + variance(two) / len(two))
