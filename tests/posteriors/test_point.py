"""The plain network and the temperature of its logits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from toy_problem import network


def logits_loader(temperature: float, n: int = 20000) -> DataLoader[tuple[Tensor, ...]]:
    """Logits z as inputs and labels from softmax(z / temperature)."""
    rng = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, 4, generator=rng)
    y = torch.multinomial((z / temperature).softmax(1), 1, generator=rng).squeeze(1)
    return DataLoader(TensorDataset(z, y), 500)


def identity() -> nn.Linear:
    model = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4))
    return model


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_scaling_finds_the_temperature_that_made_the_labels(temperature: float) -> None:
    scaled = bnn.PointPosterior(identity()).scaled(logits_loader(temperature))
    assert scaled.temperature == pytest.approx(temperature, rel=0.05)


def test_the_temperature_found_is_a_minimum_of_the_validation_loss() -> None:
    batches = logits_loader(2.0, 2000)
    scaled = bnn.PointPosterior(identity()).scaled(batches)
    z, y = batches.dataset.tensors  # type: ignore[attr-defined]

    def loss(t: float) -> float:
        return float(nn.functional.cross_entropy(z.double() / t, y))

    best = loss(scaled.temperature)
    assert best < loss(1.01 * scaled.temperature)
    assert best < loss(0.99 * scaled.temperature)
    torch.testing.assert_close(scaled.predict(z[:5]).probs, (z[:5] / scaled.temperature).softmax(1))


def test_rows_that_are_all_predicted_rightly_do_not_make_the_network_certain() -> None:
    z = 3 * torch.eye(4).repeat(10, 1)
    batches = [(z, torch.arange(4).repeat(10))]
    scaled = bnn.PointPosterior(identity()).scaled(batches)
    assert 0.3 < scaled.temperature < 1
    b = 1 / scaled.temperature
    q = (b * z[:1]).softmax(1)[0]  # (1), written out for rows that are all alike
    slope = float((q * z[0]).sum() - z[0, 0])
    assert b * 40 * slope + math.log(b) == pytest.approx(0, abs=1e-3)


def test_scaling_again_starts_from_the_logits_and_changes_nothing() -> None:
    batches = logits_loader(2.0, 2000)
    once = bnn.PointPosterior(identity()).scaled(batches)
    assert once.scaled(batches).temperature == once.temperature


def test_scaling_uses_the_weights_of_the_posterior_not_those_of_the_module() -> None:
    model = identity()
    posterior = bnn.PointPosterior(model)
    with torch.no_grad():
        model.weight.mul_(7)
    assert posterior.scaled(logits_loader(3.0)).temperature == pytest.approx(3, rel=0.05)
    torch.testing.assert_close(model.weight.detach(), 7 * torch.eye(4))


def test_binary_logits_are_scaled_too() -> None:
    rng = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(20000, 1, generator=rng)
    y = (torch.rand(20000, 1, generator=rng) < (z / 2).sigmoid()).float()
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1)
    scaled = bnn.PointPosterior(model, likelihood="bernoulli").scaled([(z, y)])
    assert scaled.temperature == pytest.approx(2, rel=0.1)


def test_values_have_no_temperature() -> None:
    posterior = bnn.PointPosterior(network(1), likelihood="gaussian")
    with pytest.raises(ValueError, match="divides logits"):
        posterior.scaled([])
    with pytest.raises(ValueError, match="divides logits"):
        bnn.PointPosterior(network(1), likelihood="gaussian", temperature=2.0)
    with pytest.raises(ValueError, match="no batch"):
        bnn.PointPosterior(network()).scaled([])
    with pytest.raises(ValueError, match="temperature"):
        bnn.PointPosterior(network(), temperature=0.0)


def test_one_draw_is_enough_for_a_plain_network() -> None:
    assert bnn.PointPosterior(network()).predict(torch.randn(3, 2), draws=50).draws == 1
