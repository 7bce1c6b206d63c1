"""Every posterior on every kind of network: a sensible prediction, or a sentence that says what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_networks import NETWORKS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn

Make = Callable[[nn.Module, Any, str], bnn.Posterior]


def swag(model: nn.Module, like: str) -> bnn.SwagPosterior:
    collector = bnn.SWAG(model)
    for _ in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.95)
        collector.collect()
    return collector.posterior(like)


def laplace(weights: str, structure: str) -> Make:
    def make(model: nn.Module, batches: Any, like: str) -> bnn.Posterior:
        return bnn.fit_laplace(model, batches, like, weights=weights, structure=structure, prior_sd=1.0)

    return make


POSTERIORS: dict[str, Make] = {
    "plain": lambda model, _, like: bnn.PointPosterior(model, likelihood=like),
    "dropout": lambda model, _, like: bnn.DropoutPosterior(model, likelihood=like),
    "dropout inserted": lambda model, _, like: bnn.DropoutPosterior(model, 0.2, likelihood=like),
    "swag": lambda model, _, like: swag(model, like),
    "laplace last kron": laplace("last", "kron"),
    "laplace last diag": laplace("last", "diag"),
    "laplace last full": laplace("last", "full"),
    "laplace all kron": laplace("all", "kron"),
    "laplace all diag": laplace("all", "diag"),
    "laplace all full": laplace("all", "full"),
    "ensemble": lambda model, _, like: bnn.Ensemble(
        [bnn.PointPosterior(model, likelihood=like), swag(model, like)]
    ),
}
NO_LAYER = "no dropout layer with a positive rate; pass p="
NO_PLACE = "no activation module .* use nn.ReLU"
NO_RULE = "not implemented for a layer of this network .* use structure='diag', or weights='last'"
USED_TWICE = r"is used [23] times in a pass, .* use weights='all', structure='diag'"
REFUSED = {
    ("dropout", "mlp"): NO_LAYER,
    ("dropout", "conv"): NO_LAYER,
    ("dropout", "lstm"): NO_LAYER,
    ("dropout", "gru"): NO_LAYER,
    ("dropout", "tied"): NO_LAYER,
    ("dropout inserted", "conv"): NO_PLACE,
    ("dropout inserted", "lstm"): NO_PLACE,
    ("dropout inserted", "gru"): NO_PLACE,
    ("dropout inserted", "tied"): NO_PLACE,
    ("dropout inserted", "attention"): "leave p= out",
    ("laplace all kron", "conv"): NO_RULE,
    ("laplace all kron", "lstm"): NO_RULE,
    ("laplace all kron", "gru"): USED_TWICE,
    ("laplace all kron", "attention"): NO_RULE,
    ("laplace all full", "lstm"): NO_RULE,
    ("laplace all full", "attention"): NO_RULE,
    ("laplace last kron", "tied"): USED_TWICE,
    ("laplace last diag", "tied"): USED_TWICE,
    ("laplace last full", "tied"): USED_TWICE,
    ("laplace all kron", "tied"): USED_TWICE,
    ("laplace all full", "tied"): "twin.weight is the second name of a parameter, .* use structure='diag'",
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # Jacobians of attention, in torch
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", POSTERIORS)
def test_a_network_has_a_sensible_prediction_or_is_refused_in_a_sentence(kind: str, network: str) -> None:
    case = NETWORKS[network]
    x, y = case.batch(16)
    batches = DataLoader(TensorDataset(x, y), 8)
    like = "categorical" if case.classes else "gaussian"
    if (kind, network) in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[kind, network]):
            POSTERIORS[kind](case.module(), batches, like)
        return
    found = POSTERIORS[kind](case.module(), batches, like).predict(x[:5], 4)
    if case.classes:
        torch.testing.assert_close(found.probs.sum(1), torch.ones(5))
        assert found.probs.shape == (5, 3)
        assert (found.entropy <= math.log(3) + 1e-5).all()
        spread = found.mutual_information
    else:
        assert found.mean.shape == y[:5].shape
        assert found.mean.isfinite().all()
        assert (found.std >= 1).all()  # the noise's own
        spread = found.epistemic_std
    assert spread.isfinite().all()
    assert (float(spread.max()) > 0) == (kind != "plain")
