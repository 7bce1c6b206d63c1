"""SWAG's Gaussian has the moments of the path it was collected on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayescore.nn as bnn
from toy_problem import network


def collected(rank: int = 20, times: int = 30) -> tuple[bnn.SWAG, torch.Tensor]:
    model = nn.Linear(3, 1, bias=False)
    swag, rng = bnn.SWAG(model, rank), torch.Generator().manual_seed(0)
    path = torch.randn(times, 1, 3, generator=rng) @ torch.tensor([[1.0, 0.9, 0], [0, 0.4, 0], [0, 0, 0.1]])
    with torch.no_grad():
        for theta in path:
            model.weight.copy_(theta)
            swag.collect()
    return swag, path


def test_mean_and_variance_are_those_of_the_path() -> None:
    swag, path = collected()
    posterior = swag.posterior("gaussian")
    torch.testing.assert_close(posterior.mean["weight"], path.mean(0))
    torch.testing.assert_close(posterior.var["weight"], path.var(0, correction=0))


def test_deviations_are_the_last_from_the_running_mean() -> None:
    swag, path = collected(rank=4)
    found = swag.posterior("gaussian").deviations["weight"]
    expected = torch.stack([path[t] - path[: t + 1].mean(0) for t in range(26, 30)])
    torch.testing.assert_close(found, expected)


def test_draws_have_half_the_diagonal_and_half_the_low_rank_covariance() -> None:
    posterior = collected()[0].posterior("gaussian")
    draws = torch.stack([posterior.draw(0, i)["weight"].flatten() for i in range(4000)])
    D = posterior.deviations["weight"].flatten(1)
    expected = 0.5 * posterior.var["weight"].flatten().diag() + 0.5 * D.T @ D / (len(D) - 1)
    torch.testing.assert_close(draws.T.cov(), expected, rtol=0.1, atol=0.03)
    torch.testing.assert_close(draws.mean(0), posterior.mean["weight"].flatten(), rtol=0, atol=0.06)


def test_what_was_collected_can_be_carried_over() -> None:
    swag, _ = collected()
    other = bnn.SWAG(swag.model)
    other.load_state_dict(swag.state_dict())
    swag.collect()
    other.collect()
    x = torch.randn(4, 3)
    one, two = (s.posterior("gaussian").predict(x, 3).outputs for s in (swag, other))
    assert torch.equal(one, two)


def test_a_gaussian_needs_two_collections() -> None:
    swag = bnn.SWAG(network())
    swag.collect()
    with pytest.raises(RuntimeError, match="two collections"):
        swag.posterior()
    with pytest.raises(ValueError, match="rank"):
        bnn.SWAG(network(), rank=1)
