"""With a random last layer the rest of the network runs once, and the numbers are those of full passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bayescore.nn as bnn
from bayescore.posteriors import base
from bayescore.posteriors.forward import random_layer


class Counted(nn.Module):
    """A body that counts its passes, and a head that is used as `how` says."""

    def __init__(self, how: str = "last") -> None:
        super().__init__()
        self.body, self.head, self.how, self.passes = nn.Linear(4, 300), nn.Linear(300, 300), how, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        phi = self.body(x).tanh()
        if self.how == "twice":
            phi = self.head(phi)
        if self.how == "within":
            phi = phi @ self.head.weight
        out: Tensor = self.head(phi)
        return out.log_softmax(-1) if self.how == "before the end" else out


def posterior(model: Counted, *names: str) -> bnn.GaussianPosterior:
    own = dict(model.named_parameters())
    mean = {name: own[name].detach().clone() for name in names}
    return bnn.GaussianPosterior(model, mean, {k: torch.full_like(v, 0.05) for k, v in mean.items()})


def both(model: Counted, q: bnn.GaussianPosterior, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Rows that pass through the body, with and without the short cut, after the predictions were equal."""
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    fast = q.predict(x, 7, batch_size=20)
    short, model.passes = model.passes, 0
    monkeypatch.setattr(base, "random_layer", lambda *_: None)
    full = q.predict(x, 7, batch_size=20)
    torch.testing.assert_close(fast.probs, full.probs, rtol=0, atol=0)
    return short, model.passes


def test_the_body_runs_once_per_chunk_and_once_for_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Counted()
    assert both(model, posterior(model, "head.weight", "head.bias"), monkeypatch) == (3 + 1, 21)


@pytest.mark.parametrize("how", ["twice", "before the end", "within"])
def test_a_layer_that_is_not_the_end_of_the_network_is_no_short_cut(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Counted(how)
    short, full = both(model, posterior(model, "head.weight"), monkeypatch)
    assert short >= full


def test_only_a_layer_of_its_own_is_a_random_layer() -> None:
    model = Counted()
    assert random_layer(model, ["head.weight"]) is model.head
    assert random_layer(model, ["head.weight", "body.bias"]) is None
    assert random_layer(nn.Linear(2, 2), ["weight"]) is None
    tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    assert random_layer(tied, ["0.weight"]) is None
