"""A posterior as a prior: of the next run, and of runs that are joined afterwards.

With q_1 = N(m, diag s^2) the posterior of earlier data D_1, and new data D_2,
    log p(theta | D_1, D_2) = log p(D_2 | theta) + log q_1(theta) + const                              (1)
In the units of a mean loss l over N new data at temperature tau, that is the loss
    l(theta) + (tau / N) sum_i (theta_i - m_i)^2 / (2 s_i^2)                                           (2)
with a flat prior. Posteriors q_1, ..., q_K of separate data, each with the prior q_0, are joined by
    q ~ q_0 prod_k (q_k / q_0):   precision  P = sum_k P_k - (K - 1) P_0,
                                  P m = sum_k P_k m_k - (K - 1) P_0 m_0                                (3)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.posteriors.base import instead
from bayescore.posteriors.gaussian import GaussianPosterior
from bayescore.posteriors.shards import is_sharded

__all__ = ["GaussianPrior", "combined"]


class GaussianPrior:
    """The term (2) of a network's loss.

    Arguments:
        posterior: the earlier one; it covers all parameters in `chosen`.
        chosen: the parameters that are random, by name.
        weight: tau / N.
    """

    def __init__(self, posterior: Any, chosen: Sequence[tuple[str, nn.Parameter]], weight: float) -> None:
        if not isinstance(posterior, GaussianPosterior):
            raise TypeError(f"prior must be a GaussianPosterior; got {instead(posterior)}")
        self.weight = weight
        self._terms = []
        for name, p in chosen:
            if name not in posterior.mean or posterior.mean[name].shape != p.shape:
                raise ValueError(f"prior is of another network: it lacks {name!r} {tuple(p.shape)}")
            if is_sharded(p):
                raise ValueError("prior= needs whole weights; a sharded network has only parts of them")
            if not bool((posterior.sd[name] > 0).all()):
                raise ValueError(
                    f"the prior's sd of {name!r} has zeros, which no data can move (a pruned posterior?)"
                )
            self._terms.append((p, posterior.mean[name].to(p), posterior.sd[name].to(p)))

    def write_mean(self) -> None:
        """Training begins where the prior has its mean."""
        with torch.no_grad():
            for p, mean, _ in self._terms:
                p.copy_(mean)

    def loss(self) -> Tensor:
        """The term, at the weights as they are now."""
        squares = [((p - mean) / sd).square().sum() for p, mean, sd in self._terms]
        return torch.stack(squares).sum() * (self.weight / 2)

    @property
    def digest(self) -> str:
        """What tells one prior from another, in the checkpoint of a run."""
        found = hashlib.sha256()
        for _, mean, sd in self._terms:
            for tensor in (mean, sd):
                found.update(tensor.float().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


def combined(
    posteriors: Sequence[GaussianPosterior], prior: GaussianPosterior, likelihood: Any = None
) -> GaussianPosterior:
    """The posterior of all data from those of their parts, each trained with `prior=prior` (3).

    Arguments:
        posteriors: of the same network, one for each part of the data.
        prior: that all of them had.
        likelihood: what the outputs mean; that of the first posterior by default.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> def gaussian(mean, sd):
    ...     rows = [{"weight": torch.tensor([[value]])} for value in (mean, sd)]
    ...     return GaussianPosterior(net, *rows)
    >>> joined = combined([gaussian(1.0, 0.5), gaussian(1.0, 0.5)], gaussian(0.0, 1.0))
    >>> joined.sd["weight"] ** -2.0  # 4 + 4 - 1
    tensor([[7.0000]])
    """
    parts = list(posteriors)
    if not parts:
        raise ValueError("there is no posterior to combine; pass one for each part of the data")
    for each in (*parts, prior):
        if not isinstance(each, GaussianPosterior):
            raise TypeError(f"only Gaussian posteriors can be combined; got {instead(each)}")
        if each.names != prior.names or any(each.mean[n].shape != prior.mean[n].shape for n in each.names):
            raise ValueError("the posteriors and the prior must be of one network")
    others = len(parts) - 1
    mean, sd = {}, {}
    for name in prior.names:
        precisions = torch.stack([q.sd[name].double() ** -2 for q in parts])
        before = prior.sd[name].double() ** -2
        precision = precisions.sum(0) - others * before
        if not bool((precision > 0).all()):
            count = int((precision <= 0).sum())
            raise ValueError(
                f"{count} weights of {name!r} would have no precision left: some posteriors are wider than "
                "the prior they began with; train them longer, or by method='calibrated' with draws=2"
            )
        weighted = (precisions * torch.stack([q.mean[name].double() for q in parts])).sum(0)
        centre = (weighted - others * before * prior.mean[name].double()) / precision
        mean[name] = centre.to(prior.mean[name])
        sd[name] = precision.rsqrt().to(prior.sd[name])
    return GaussianPosterior(prior.model, mean, sd, likelihood=likelihood or parts[0].likelihood)
