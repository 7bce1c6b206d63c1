"""Draws that run together give what they give one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayescore.nn as bnn
from bayescore.posteriors import base
from bayescore.posteriors.forward import DRAWS_AT_ONCE, MAX_ROWS, can_batch
from toy_problem import POSTERIORS, network, rings


@pytest.mark.parametrize("kind", ["gaussian", "swag"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batched_draws_predict_what_single_draws_predict(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network().to(dtype)
    posterior = POSTERIORS[kind](model)
    x = rings(50, 1)[0].to(dtype)
    assert can_batch(model, 50)
    together = posterior.predict(x, DRAWS_AT_ONCE + 3, batch_size=20)
    monkeypatch.setattr(base, "can_batch", lambda *_: False)
    alone = posterior.predict(x, DRAWS_AT_ONCE + 3, batch_size=20)
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(together.probs, alone.probs, rtol=0, atol=tolerance)
    torch.testing.assert_close(together.mutual_information, alone.mutual_information, rtol=0, atol=tolerance)


def test_weights_outside_the_posterior_are_those_kept_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    last = {name: p.detach().clone() for name, p in model.named_parameters() if name.startswith("3.")}
    posterior = bnn.GaussianPosterior(model, last, {k: torch.full_like(v, 0.1) for k, v in last.items()})
    with torch.no_grad():
        model[0].weight.mul_(9)
    x, _ = rings(10, 1)
    together = posterior.predict(x, 3)
    monkeypatch.setattr(base, "can_batch", lambda *_: False)
    torch.testing.assert_close(together.probs, posterior.predict(x, 3).probs)


def test_only_small_plain_networks_are_batched() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if x.sum() > 0 else -self.layer(x)

    assert not can_batch(network(), MAX_ROWS + 1)
    assert not can_batch(Branching(), 1)
    assert not can_batch(nn.Linear(200, 200), 1)
    watched = network()
    watched[0].register_forward_hook(lambda *_: None)
    assert not can_batch(watched, 1)
    mean = {k: p.detach().clone() for k, p in Branching().named_parameters()}
    posterior = bnn.GaussianPosterior(Branching(), mean, {k: torch.ones_like(v) for k, v in mean.items()})
    assert posterior.predict(rings(5, 0)[0], 4).probs.shape == (5, 2)
