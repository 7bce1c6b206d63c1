"""The losses of a run in a bounded memory, and one sentence about the mean: has it arrived?

Losses are recorded every `loss_stride` steps, together with the learning rate. When there are 512 of them,
every second one is dropped and the stride doubles, so that they always span the whole run.

With a, s, n the mean, standard deviation and number of losses in a part of the run, l0 the first loss and s0
the standard deviation of one loss at the beginning,
    z(x, y) = (a_x - a_y) / e(x, y),   e(x, y) = sqrt(s_x^2/n_x + s_y^2/n_y)                              (1)
    z0 = (l0 - a_4) / sqrt(s0^2 + s_4^2/n_4)                                                              (2)
    s0 = the median of the first differences between losses / 0.954, but at most s_4                      (3)
the sentences are, in this order (parts 1 and 4 are the first and last quarters of the run):
    above its first value      z0 < -3, or the median of 4 is above l0 + |l0|
    still falling              z(x, y) > 3 and a_x - a_y > 0.02 (l0 - a_y)
    rising again               z(x, y) < -3 and a_y - a_x > 0.02 (l0 - a_y) + noise
    has hardly moved           z(1, 4) < 3 and z0 < 2
    arrived                    a_x - a_y + 2 e(x, y) < 0.1 (l0 - a_y)
    cannot be told             otherwise: the losses are too noisy
Here x and y are the last two quarters of the run up to where a schedule has lowered the rate for good below a
quarter of its largest value; afterwards any loss stops falling. `noise` is what the noise of the weights adds
to the loss, which grows while the widths are learned. (3) is that of normal numbers without a trend, which
only makes it larger; a single fall does not.

If the optimizer moves like Adam and the rate is larger than the weights were at first, one step is enough to
lose them: unless the loss still falls, it is then the rate that is to be lowered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean, median, variance
from typing import Any

from bayescore.checks import check_count

__all__ = ["LOSSES", "check_losses", "is_recorded", "mean_sentence", "record_loss"]

#: the record of a run in a parameter group, empty
LOSSES: dict[str, Any] = {"loss_stride": 1, "losses": (), "loss_lrs": ()}
MOST, LEAST = 256, 16  # losses that are kept, and losses that are needed to tell
DECAYED = 0.25  # share of the largest rate below which a schedule has ended
SURE, UNSURE = 3.0, 2.0  # z of (1) and (2)
NORMAL, DIFFERENCES = 0.954, 32  # of (3)
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


def mean_sentence(
    losses: Sequence[float], lrs: Sequence[float], size: float = math.inf, noise: float = 0.0
) -> str:
    """One sentence about the mean, with the one thing to change; empty without losses.

    Arguments:
        losses, lrs: the record.
        size: of the weights at first, in units of the learning rate.
        noise: what the noise of the weights adds to the loss.
    """
    if not losses:
        return ""
    if len(losses) < LEAST:
        return f"too few updates to tell whether the loss falls ({_moved(losses, losses[-1])}): train longer"
    quarter, first = len(losses) // 4, losses[0]
    begin, last = losses[:quarter], losses[-quarter:]
    level, away = fmean(last), math.hypot(_spread(losses), math.sqrt(variance(last) / quarter))
    moved = _moved(losses, level)
    if level - first > SURE * away or median(last) - first > abs(first):
        return f"the loss is above its first value ({moved}): lower lr"
    end = 1 + max(i for i, lr in enumerate(lrs) if lr >= DECAYED * max(lrs))
    end = len(losses) if end < LEAST else end
    third, fourth = losses[end // 2 : end - end // 4], losses[end - end // 4 : end]
    fall, error = fmean(third) - fmean(fourth), _error(third, fourth)
    whole = first - fmean(fourth)
    least = max(SURE * error, MATERIAL * whole)
    change = f"({fmean(third):.3g}, then {fmean(fourth):.3g})"
    if fall > least and end < 0.9 * len(losses):
        return f"the loss still fell {change} when the schedule lowered lr: train longer"
    if fall > least:
        return f"the loss still falls {change}: train longer, or raise lr"
    large = "a step of which is larger than the weights were at first" if max(lrs) > size else ""
    if -fall > max(SURE * error, MATERIAL * whole + noise):
        return f"the loss rises again {change}: lower lr"
    if first - level <= UNSURE * away and fmean(begin) - level <= SURE * _error(begin, last):
        if large:
            return f"the loss has not fallen ({moved}): lower lr, {large}"
        return f"the loss has hardly moved ({moved}): raise lr, unless training began at the optimum"
    if large:
        return f"the loss no longer falls ({moved}): lower lr, {large}"
    if fall + 2 * error < SMALL * whole:
        return f"the mean has arrived: the loss has stopped falling ({moved})"
    return f"the loss is too noisy to tell whether it still falls ({moved}): judge by held-out data"


def _moved(losses: Sequence[float], level: float) -> str:
    return f"{level:.3g}, after {losses[0]:.3g} at first"


def _spread(losses: Sequence[float]) -> float:
    """s0 of (3)."""
    early = losses[: DIFFERENCES + 1]
    differences = [abs(b - a) for a, b in itertools.pairwise(early)]
    last = losses[-(len(losses) // 4) :]
    return min(median(differences) / NORMAL, math.sqrt(variance(last)))


def _error(one: Sequence[float], two: Sequence[float]) -> float:
    """e of (1)."""
    return math.sqrt(variance(one) / len(one) + variance(two) / len(two))
