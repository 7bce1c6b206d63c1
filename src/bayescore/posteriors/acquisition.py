"""Active learning: the rows of a pool whose labels would say most about the weights.

With class probabilities p_s(y | x) under draws s = 1..S of the weights w, H the entropy, the labels of a set
B say about the weights, in nats,
    I(y_B; w) = H(mean_s prod_{i in B} p_s(y_i)) - sum_{i in B} mean_s H(p_s(y_i))                      (1)
BALD takes the k rows with the largest I(y_i; w). Its batch form takes one row after the other, each time the
one with the largest (1) together with those already taken: rows that say the same count once.
(Houlsby et al. 2011, arXiv 1112.5745; Kirsch et al. 2019, arXiv 1906.08158.)

The first term of (1) is a sum over all labels of B, K^|B| of them. Beyond `LABELLINGS` of them it is
estimated from as many that are drawn from their own distribution, in which the next row joins exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.posteriors.base import Posterior, WeightPosterior, check_request, instead
from bayescore.posteriors.ensemble import Ensemble
from bayescore.rng import generator

__all__ = ["acquire"]

LABELLINGS = 4096  # of the rows taken so far
AT_ONCE = 2**24  # numbers of the product over draws, labellings, rows and classes


def acquire(
    posterior: Posterior,
    pool: Any,
    k: int = 1,
    *,
    joint: bool = True,
    draws: int = 100,
    seed: int = 0,
    batch_size: int | None = None,
) -> Tensor:
    """The numbers of the k rows of `pool` to label next, the most informative first.

    Arguments:
        posterior: of classes.
        pool: inputs without labels, as in `Posterior.predict`.
        joint: the batch form of BALD; False: the k rows with the largest mutual information one by one.
        draws, seed, batch_size: as in `Posterior.predict`.
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(f"acquire(posterior, pool, k) begins with a posterior; got {instead(posterior)}")
    check_count("k", k)
    probs = _probabilities(posterior, pool, draws, seed, batch_size)  # (S, n, K)
    if k > probs.shape[1]:
        raise ValueError(f"k is {k} and the pool has {probs.shape[1]} rows; take fewer, or give more")
    expected = -torch.xlogy(probs, probs).sum(-1).mean(0)  # (n,), mean_s H(p_s)
    if not joint:
        mean = probs.mean(0)
        return (-torch.xlogy(mean, mean).sum(-1) - expected).topk(k).indices
    taken: list[int] = []
    table = probs.new_ones(len(probs), 1)  # (S, L): probabilities of the labellings of the rows taken
    share = probs.new_ones(1)  # (L,): by which each counts in the entropy
    rng = generator(seed, purpose="labellings")
    for _ in range(k):
        gain = _joint_entropy(table, share, probs) - expected
        gain[taken] = -torch.inf
        best = int(gain.argmax())
        taken.append(best)
        table = (table.unsqueeze(2) * probs[:, best].unsqueeze(1)).flatten(1)  # (S, L K)
        share = share.repeat_interleave(probs.shape[2])
        if table.shape[1] > LABELLINGS:
            table, share = _thinned(table, share, rng)
    return torch.tensor(taken, device=probs.device)


def _probabilities(posterior: Posterior, x: Any, draws: int, seed: int, batch_size: int | None) -> Tensor:
    """Class probabilities under every draw, (S, n, K), in float64."""
    if posterior.likelihood.kind == "values":
        raise TypeError(
            f"BALD is about classes, and the likelihood is {posterior.likelihood.name!r}: for values take "
            "the rows with the largest .predict(pool).epistemic_std"
        )
    inputs = check_request(x, draws, batch_size)
    members = posterior.members if isinstance(posterior, Ensemble) else [posterior]
    each, found = -(-draws // len(members)), []
    for member in members:
        if not isinstance(member, WeightPosterior):
            raise TypeError(f"a {type(member).__name__} has no draws of its outputs; use one of weights")
        for outputs in member.outputs(inputs, each, seed, batch_size):
            p = member.likelihood.probs(outputs.double())
            found.append(torch.stack([1 - p, p], -1) if member.likelihood.kind == "binary" else p)
    probs = torch.stack(found)
    if probs.dim() != 3:
        if posterior.likelihood.kind == "binary" and probs.shape[2] == 1 and probs.dim() == 4:
            return probs.squeeze(2)
        raise ValueError(f"BALD needs one label per row; the probabilities are {tuple(probs.shape[1:])}")
    return probs


def _joint_entropy(table: Tensor, share: Tensor, probs: Tensor) -> Tensor:
    """The entropy of the labels taken so far and of one more row, for every row, (n,)."""
    found = []
    step = max(1, AT_ONCE // (table.shape[1] * probs.shape[2] * len(probs)))
    for rows in probs.split(step, 1):  # (S, m, K)
        joint = torch.einsum("sl,smk->mlk", table, rows) / len(probs)
        found.append(-(share.unsqueeze(1) * torch.xlogy(joint, joint)).sum((1, 2)))
    return torch.cat(found)


def _thinned(table: Tensor, share: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """As many labellings as are allowed, drawn in proportion to what they count."""
    weight = share * table.mean(0)
    p = weight / weight.sum()
    chosen = torch.multinomial(p.cpu(), LABELLINGS, replacement=True, generator=rng).to(p.device)
    return table[:, chosen], share[chosen] / (LABELLINGS * p[chosen])
