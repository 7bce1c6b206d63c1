"""The loss of a posterior on held-out batches, and a check that a user's loss is a mean over data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.posteriors.base import Posterior
from bayescore.posteriors.inputs import inputs_and_targets, require_tensor
from bayescore.posteriors.likelihoods import Function, Likelihood

__all__ = ["check_mean_loss", "nll"]

VALIDATION_DRAWS = 5


def nll(
    posterior: Posterior, batches: Iterable[Any], device: torch.device, draws: int = VALIDATION_DRAWS
) -> float:
    """Mean negative log predictive probability; for a callable likelihood, the mean loss over draws."""
    total, count = 0.0, 0
    for batch in batches:
        x, y = inputs_and_targets(batch)
        prediction = posterior.predict(x, draws)
        y = y.to(device)
        if isinstance(posterior.likelihood, Function):
            losses = [float(posterior.likelihood(out, y)) for out in prediction.outputs]
            value = sum(losses) / len(losses) * len(x)
        else:
            value = -float(prediction.log_prob(y).sum())
        total, count = total + value, count + len(x)
    if not count:
        raise ValueError("the validation loader gave no batch")
    return total / count


def check_mean_loss(model: nn.Module, like: Likelihood, loader: Iterable[Any]) -> None:
    """Refuse a loss that sums over the batch, and warn about one that averages over the outputs of a datum.

    The loss of a batch is compared with those of its two halves: it is their sum if the loss is a sum, and
    their mean if it is a mean.
    """
    x, y = inputs_and_targets(next(iter(loader)))
    device = next(model.parameters()).device
    half = len(x) // 2
    if not half:
        return
    x, y = x[: 2 * half].to(device), y[: 2 * half].to(device)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        out = require_tensor(x.run(model))
    for module, mode in modes.items():
        module.training = mode
    whole, one, two = _losses_of_halves(like, out, y, 0)
    if abs(whole - one - two) < 0.1 * abs(whole - (one + two) / 2):
        raise ValueError(
            "the loss is a sum over the batch (its halves add up to the whole); "
            "return the mean over data instead: the number of data enters through num_data"
        )
    if isinstance(out, Tensor) and out.shape == y.shape and out.dim() > 1 and out.shape[1] > 1:
        count = out.shape[1] // 2 * 2
        try:
            whole, one, two = _losses_of_halves(like, out[:, :count], y[:, :count], 1)
        except (RuntimeError, ValueError, TypeError, IndexError):  # the loss takes all outputs or none
            return
        if abs(whole - (one + two) / 2) < 0.1 * abs(whole - one - two):
            warnings.warn(
                f"the loss is a mean over the {out[0].numel()} outputs of a datum, and a negative "
                "log-likelihood their sum, as in likelihood='gaussian'; with the mean the posterior is wider",
                RuntimeWarning,
                stacklevel=3,
            )


@torch.no_grad()
def _losses_of_halves(like: Likelihood, out: Any, y: Tensor, dim: int) -> tuple[float, float, float]:
    """The loss of the whole, and of its two halves along a dimension."""
    parts = [(out, y), *zip(out.chunk(2, dim), y.chunk(2, dim), strict=True)]
    whole, one, two = (float(like(o, t)) for o, t in parts)
    return whole, one, two
