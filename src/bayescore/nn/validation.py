"""The loss of a posterior on held-out batches, and the check that a loss is a mean over data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.nn.inputs import Inputs, a_tensor, described
from bayescore.nn.likelihoods import Function, Likelihood
from bayescore.nn.posterior import Posterior

__all__ = ["check_mean_loss", "nll", "pair"]

VALIDATION_DRAWS = 5


def pair(batch: Any) -> tuple[Inputs, Tensor]:
    """Inputs and targets of a batch."""
    if (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and isinstance(batch[0], Tensor | tuple | list | Mapping)
        and isinstance(batch[1], Tensor)
    ):
        return Inputs.of(batch[0]), batch[1]
    raise TypeError(
        f"a batch must be a pair, inputs and a tensor of targets; got {described(batch)}: "
        "let the loader's collate_fn make pairs, or write the loop yourself (`with opt.sample():`)"
    )


def nll(
    posterior: Posterior, batches: Iterable[Any], place: torch.device, draws: int = VALIDATION_DRAWS
) -> float:
    """Mean negative log predictive probability; for a callable likelihood, the mean loss over draws."""
    total, count = 0.0, 0
    for batch in batches:
        x, y = pair(batch)
        prediction = posterior.predict(x, draws)
        y = y.to(place)
        if isinstance(posterior.likelihood, Function):
            losses = [float(posterior.likelihood(o, y)) for o in prediction.outputs]
            value = sum(losses) / len(losses) * len(x)
        else:
            value = -float(prediction.log_prob(y).sum())
        total, count = total + value, count + len(x)
    if not count:
        raise ValueError("the validation loader gave no batch")
    return total / count


def check_mean_loss(model: nn.Module, like: Likelihood, loader: Iterable[Any]) -> None:
    """Refuse a callable that sums over the batch: then the halves add up to the whole."""
    x, y = pair(next(iter(loader)))
    place = next(model.parameters()).device
    half = len(x) // 2
    if not half:
        return
    x, y = x[: 2 * half].to(place), y[: 2 * half].to(place)
    mode = model.training
    model.eval()
    with torch.no_grad():
        out = a_tensor(x.run(model))
        whole, one, two = (float(like(out[s], y[s])) for s in (slice(None), slice(half), slice(half, None)))
    model.train(mode)
    if abs(whole - one - two) < 0.1 * abs(whole - (one + two) / 2):
        raise ValueError(
            "the loss is a sum over the batch (its halves add up to the whole); "
            "return the mean over data instead: the number of data enters through num_data"
        )
