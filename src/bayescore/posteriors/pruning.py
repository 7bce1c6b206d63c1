"""Pruning: weights that the posterior cannot tell from zero become zero.

signal-to-noise of weight i = |mean_i| / sd_i                                                      (1)
"""

from __future__ import annotations

import torch

from bayescore.checks import check_number
from bayescore.posteriors.base import instead
from bayescore.posteriors.gaussian import GaussianPosterior

__all__ = ["pruned"]


def pruned(posterior: GaussianPosterior, share: float) -> GaussianPosterior:
    """The posterior with a share of its weights, those of least signal-to-noise (1), at zero without noise.

    >>> net = torch.nn.Linear(3, 1, bias=False)
    >>> mean, sd = torch.tensor([[3.0, 0.1, -2.0]]), torch.tensor([[1.0, 1.0, 4.0]])
    >>> pruned(GaussianPosterior(net, {"weight": mean}, {"weight": sd}), 1 / 3).mean["weight"]
    tensor([[ 3.,  0., -2.]])
    """
    if not isinstance(posterior, GaussianPosterior):
        raise TypeError(f"signal and noise are those of a Gaussian posterior; got {instead(posterior)}")
    check_number("share", share, "be a share of the weights, from 0 to below 1", zero=True)
    if share >= 1:
        raise ValueError(f"share must be below 1, which would leave no weight; got {share}")
    ratios = {name: posterior.mean[name].abs() / posterior.sd[name] for name in posterior.names}
    flat = torch.cat([ratio.flatten() for ratio in ratios.values()])
    count = round(share * len(flat))
    cut = torch.zeros_like(flat, dtype=torch.bool)
    cut[flat.argsort(stable=True)[:count]] = True
    masks = dict(zip(ratios, cut.split([ratio.numel() for ratio in ratios.values()]), strict=True))
    mean, sd = {}, {}
    for name, ratio in ratios.items():
        mask = masks[name].view_as(ratio)
        mean[name] = posterior.mean[name].masked_fill(mask, 0.0)
        sd[name] = posterior.sd[name].masked_fill(mask, 0.0)
    return GaussianPosterior(posterior.model, mean, sd, likelihood=posterior.likelihood)
