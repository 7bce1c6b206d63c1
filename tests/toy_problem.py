"""A small classification problem, and a posterior of every kind on it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from bayescore.families import PlanarFlow

__all__ = ["POSTERIORS", "loader", "network", "rings"]


def rings(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two classes: inside and outside a circle."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x.square().sum(1) > 1.4).long()


def loader(n: int, seed: int, batch: int = 32, regression: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    x, y = rings(n, seed)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin() if regression else y)
    return DataLoader(data, batch, shuffle=True, generator=torch.Generator().manual_seed(0))


def network(out: int = 2, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, out))


def swag(model: nn.Module) -> bnn.SwagPosterior:
    collector = bnn.SWAG(model, rank=3)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(5):
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=rng))
            collector.collect()
    return collector.posterior()


def ensemble(model: nn.Module) -> bnn.Ensemble:
    """A plain network and one with dropout, in one module."""
    first = bnn.PointPosterior(model)
    with torch.no_grad():
        model[0].weight.mul_(2)
    return bnn.Ensemble([first, bnn.DropoutPosterior(model, 0.2)])


def flow(model: nn.Module) -> bnn.FamilyPosterior:
    """A planar flow around the network's weights, with a bend that shows."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    q = PlanarFlow.init(len(weights), layers=2, mean=weights.double(), scale=0.1)
    return bnn.FamilyPosterior(model, q.replace({**q.parameters(), "u": 3 * q.u}))


POSTERIORS: dict[str, Callable[[nn.Module], bnn.Posterior]] = {
    "point": lambda model: bnn.PointPosterior(model, temperature=1.5),
    "dropout": lambda model: bnn.DropoutPosterior(model, 0.3),
    "swag": swag,
    "ensemble": ensemble,
    "laplace": lambda model: bnn.fit_laplace(model, loader(64, 0), prior_sd=1.0),
    "family": flow,
    "gaussian": lambda model: bnn.GaussianPosterior(
        model,
        {k: p.detach().clone() for k, p in model.named_parameters()},
        {k: torch.full_like(p, 0.1) for k, p in model.named_parameters()},
    ),
}
