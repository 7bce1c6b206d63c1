"""The rules against their problems: autograd with torch's own optimizers, and the full covariance.

Both shells call the same rules (tests/optim/test_twins.py), so that one cannot vouch for the other. Here a
network optimizer takes the steps of somebody who knows the losses only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from bayescore.methods.bam import bam_full
from bayescore.optim import ADVI, BaM, ProximalDescent
from bayescore.optim.base import BayesianOptimizer

DIM, STEPS, SD = 7, 6, 0.3
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCALE, CENTRE, START = numbers(DIM, seed=1).exp(), numbers(DIM, seed=2), numbers(DIM, seed=3)


def score(x: Tensor) -> Tensor:
    """Of a target that is not Gaussian."""
    return -SCALE * (x - CENTRE) - 0.1 * x**3


def network(kind: Callable[..., BayesianOptimizer], **options: Any) -> BayesianOptimizer:
    return kind([torch.nn.Parameter(START.clone())], 1, **{"init_sd": SD, "prior_sd": math.inf, **options})


def step(opt: BayesianOptimizer, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sd after a step with the noise (draws, DIM)."""
    (p,) = opt.param_groups[0]["params"]
    opt.noise = lambda bucket, draw: eps[draw].clone()  # type: ignore[method-assign]
    for _ in eps:
        with opt.sample():
            p.grad = -score(p.detach())
    opt.step()
    return opt.state[p]["mean"], opt.state[p]["sd"]


def leaves() -> tuple[Tensor, Tensor]:
    """Mean and log sd."""
    return START.clone().requires_grad_(), torch.full_like(START, SD).log().requires_grad_()


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_descent_goes_down_the_gradient_of_the_proximal_loss(optimizer: str, draws: int) -> None:
    """Algorithm 1 as printed: alpha_t = t/T, N steps on alpha |g - g_t|^2 + |g - s|^2, autograd."""
    m, rho = leaves()
    if optimizer == "adam":
        theirs: torch.optim.Optimizer = torch.optim.Adam([m, rho], 0.01)
    else:
        theirs = torch.optim.SGD([m, rho], 1e-4, momentum=0.5)
    opt = network(
        ProximalDescent, steps=STEPS, inner_steps=4, optimizer=optimizer, lr=theirs.defaults["lr"], floor=0.0,
        momentum=theirs.defaults.get("momentum", 0.0),
    )  # fmt: skip
    for t in range(STEPS):
        eps = numbers(draws, DIM, seed=100 + t)
        with torch.no_grad():
            theta = m + rho.exp() * eps
            s, g_t = score(theta), (m - theta) / rho.exp().square()
        for _ in range(4):
            g = (m - theta) / rho.exp().square()
            loss = (t / STEPS * (g - g_t).square() + (g - s).square()).sum(-1).mean()
            theirs.zero_grad()
            loss.backward()
            theirs.step()
        mean, sd = step(opt, eps)
        torch.testing.assert_close(mean, m.detach(), **EXACT)
        torch.testing.assert_close(sd, rho.detach().exp(), **EXACT)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("prior", [None, (0.2, 2.0)])
def test_advi_goes_up_the_gradient_of_the_elbo(prior: tuple[float, float] | None, draws: int) -> None:
    m, rho = leaves()
    adam = torch.optim.Adam([m, rho], 0.01)
    given = {} if prior is None else {"prior_mean": prior[0], "prior_sd": prior[1]}
    opt = network(ADVI, lr=0.01, **given)
    for t in range(STEPS):
        eps = numbers(draws, DIM, seed=100 + t)
        theta = m + rho.exp() * eps
        likelihood = (score(theta.detach()) * theta).sum(-1).mean()  # its gradient is that of log p
        q = Normal(m, rho.exp())
        known = None if prior is None else Normal(*(torch.tensor(x, dtype=m.dtype) for x in prior))
        penalty = -q.entropy() if known is None else kl_divergence(q, known)
        adam.zero_grad()
        (penalty.sum() - likelihood).backward()
        adam.step()
        mean, sd = step(opt, eps)
        torch.testing.assert_close(mean, m.detach(), **EXACT)
        torch.testing.assert_close(sd, rho.detach().exp(), **EXACT)


@pytest.mark.parametrize("draws", [2, 5])
def test_published_bam_is_the_full_covariance_of_every_coordinate_alone(draws: int) -> None:
    opt = network(BaM, lr=0.7)
    mean, factor = START[:, None].clone(), torch.full((DIM, 1, 1), SD, dtype=torch.float64)
    for t in range(STEPS):
        eps = numbers(draws, DIM, seed=100 + t)
        theta = mean[:, 0] + factor[:, 0, 0] * eps
        z, g = (x.T.unsqueeze(-1) for x in (theta, score(theta)))  # (DIM, draws, 1)
        mean, factor = bam_full(mean, factor, z, g, torch.full((DIM, 1), 0.7, dtype=torch.float64))
        found = step(opt, eps)
        torch.testing.assert_close(found[0], mean[:, 0], **EXACT)
        torch.testing.assert_close(found[1], factor[:, 0, 0], **EXACT)
