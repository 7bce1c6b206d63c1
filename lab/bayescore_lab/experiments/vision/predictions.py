"""The test predictions of a run, packed into its record, and paired comparisons of two arms from them.

A record keeps for every test example -log p(label) in thousandths of a nat, and the largest probability in
ten-thousandths, with 2^15 added where its class is the label: 16 bits each, little-endian, compressed by
zlib, as text in base64.

Two arms with the same k seeds on one test set of n examples differ by d_ij, seed i and example j. Both the
examples and the seeds are samples. With the variance v_E of the n means over seeds, the variance v_S of the
k means over examples, and the variance v_R of what d_ij deviates from the sum of the two, the variance of
the mean difference is
    v_E/n + v_S/k - v_R/(n k)                                                                              (1)
because each of the first two holds the third once. The test is Student's, with Satterthwaite's degrees of
freedom (v_E/n + v_S/k)^2 / ((v_E/n)^2/(n - 1) + (v_S/k)^2/(k - 1)). An ECE is no mean over examples: v_E/n is
then the variance of the difference over resamples of the test set, the same for both arms and all seeds, and
v_R is not subtracted.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayescore_lab.engine.records import Record, Records

__all__ = ["Difference", "Predicted", "pack", "paired_ece", "paired_nll", "unpack"]

Floats = NDArray[np.float64]
NATS, PARTS, RIGHT = 1_000, 10_000, 1 << 15
LARGEST = (1 << 16) - 1
BINS, RESAMPLES = 15, 400


class Predicted(NamedTuple):
    """The log probability of every label, the largest probability, and whether its class is the label."""

    log_prob: Floats
    confidence: Floats
    right: NDArray[np.bool_]


class Difference(NamedTuple):
    """Ours minus theirs, its standard errors over test examples and over seeds, and the p-value with both."""

    mean: float
    over_examples: float
    over_seeds: float
    p: float


def pack(log_prob: Any, confidence: Any, right: Any) -> dict[str, str]:
    """The two entries of a record's metrics."""
    loss = np.nan_to_num(-np.asarray(log_prob, dtype=np.float64) * NATS, nan=LARGEST, posinf=LARGEST)
    top = np.nan_to_num(np.asarray(confidence, dtype=np.float64)) * PARTS
    return {
        "test_losses": _text(np.clip(np.rint(loss), 0, LARGEST)),
        "test_tops": _text(np.rint(top) + RIGHT * np.asarray(right, dtype=np.float64)),
    }


def _text(values: Floats) -> str:
    return base64.b64encode(zlib.compress(values.astype("<u2").tobytes(), 9)).decode()


def unpack(record: Record) -> Predicted | None:
    """What `pack` has kept, or None if the run came to no prediction."""
    if "test_losses" not in record.metrics:
        return None
    losses, tops = (
        np.frombuffer(zlib.decompress(base64.b64decode(record.metrics[name])), dtype="<u2").astype(int)
        for name in ("test_losses", "test_tops")
    )
    return Predicted(-losses / NATS, (tops % RIGHT) / PARTS, tops >= RIGHT)


def paired_nll(ours: Records, theirs: Records) -> Difference | None:
    """The difference in test NLL on the seeds that both arms have; None if there is none."""
    pairs = _pairs(ours, theirs)
    if not pairs:
        return None
    d = np.stack([two.log_prob - one.log_prob for one, two in pairs])  # (k, n)
    k, n = d.shape
    examples, seeds = d.mean(0), d.mean(1)
    rest = d - examples - seeds[:, None] + d.mean()
    of_rest = float((rest**2).sum() / (n - 1) / (k - 1)) if min(n, k) > 1 else 0.0
    return _difference(float(d.mean()), _variance(examples) / n, seeds, n, of_rest / (n * k))


def paired_ece(ours: Records, theirs: Records, seed: int = 0) -> Difference | None:
    """The difference in top-label ECE, a fraction."""
    pairs = _pairs(ours, theirs)
    if not pairs:
        return None
    n = len(pairs[0][0].log_prob)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
    weights = np.concatenate([np.full((1, n), 1 / n), weights])  # the test set itself, then its resamples
    d = np.stack([_ece(one, weights) - _ece(two, weights) for one, two in pairs])  # (k, 1 + resamples)
    return _difference(float(d[:, 0].mean()), _variance(d[:, 1:].mean(0)), d[:, 0], n, 0.0)


def _ece(of: Predicted, weights: Floats) -> Floats:
    """The ECE under each row of weights of the examples."""
    bins = np.minimum((of.confidence * BINS).astype(int), BINS - 1)
    gaps = np.where(bins[:, None] == np.arange(BINS), (of.right - of.confidence)[:, None], 0.0)  # (n, bins)
    found: Floats = np.abs(weights @ gaps).sum(1)
    return found


def _pairs(ours: Records, theirs: Records) -> list[tuple[Predicted, Predicted]]:
    others = {record.seed: unpack(record) for record in theirs}
    found = [(unpack(record), others.get(record.seed)) for record in ours]
    return [(a, b) for a, b in found if a is not None and b is not None and len(a[0]) == len(b[0])]


def _variance(values: Floats) -> float:
    return float(np.var(values, ddof=1)) if len(values) > 1 else math.nan


def _difference(mean: float, examples: float, seeds: Floats, n: int, rest: float) -> Difference:
    """(1), from the variance over examples, the means of the seeds, and what both variances hold."""
    from scipy import stats

    k = len(seeds)
    of_seeds = _variance(seeds) / k
    both = examples + of_seeds
    if not both > 0:  # one seed, or equal predictions
        p = 1.0 if mean == 0 and both == 0 else math.nan
    else:
        freedom = both**2 / (examples**2 / (n - 1) + of_seeds**2 / (k - 1))
        error = math.sqrt(max(both - rest, examples, of_seeds))  # an estimate of a variance may be too small
        p = float(2 * stats.t.sf(abs(mean) / error, freedom))
    return Difference(mean, math.sqrt(examples), math.sqrt(of_seeds), p)
