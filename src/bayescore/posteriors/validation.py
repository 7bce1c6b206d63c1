"""The loss of a posterior on held-out batches, and a check that a user's loss is a mean over data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.posteriors.base import Posterior
from bayescore.posteriors.inputs import inputs_and_targets, require_tensor
from bayescore.posteriors.likelihoods import Function, Likelihood

__all__ = ["CRITERIA", "check_mean_loss", "mse", "nll"]

VALIDATION_DRAWS = 5


def nll(
    posterior: Posterior, batches: Iterable[Any], device: torch.device, draws: int = VALIDATION_DRAWS
) -> float:
    """Mean negative log predictive probability; for a callable likelihood, the mean loss over draws."""

    def loss(prediction: Any, y: Tensor) -> float:
        if isinstance(posterior.likelihood, Function):
            losses = [float(posterior.likelihood(out, y)) for out in prediction.outputs]
            return sum(losses) / len(losses)
        return -float(prediction.log_prob(y).mean())

    return _mean(loss, posterior, batches, device, draws)


def mse(
    posterior: Posterior, batches: Iterable[Any], device: torch.device, draws: int = VALIDATION_DRAWS
) -> float:
    """Mean squared error of the predictive mean, over data and outputs."""
    if posterior.likelihood.kind != "values":
        raise TypeError(
            f"validate_by='mse' is for values; the likelihood is {posterior.likelihood.name!r}: use 'nll'"
        )
    return _mean(lambda p, y: float((p.mean - y).square().mean()), posterior, batches, device, draws)


#: what `fit` can choose the best epoch by
CRITERIA = {"nll": nll, "mse": mse}


def _mean(
    loss: Callable[[Any, Tensor], float],
    posterior: Posterior,
    batches: Iterable[Any],
    device: torch.device,
    draws: int,
) -> float:
    """The mean over data of a loss that is a mean over a batch."""
    total, count = 0.0, 0
    for batch in batches:
        x, y = inputs_and_targets(batch)
        total += loss(posterior.predict(x, draws), y.to(device)) * len(x)
        count += len(x)
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
