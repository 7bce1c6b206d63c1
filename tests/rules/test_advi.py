"""ADVI's diagonal step is Adam on the negative ELBO, differentiated by autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.rules import Draws
from bayescore.rules.adam import B1, corrections
from bayescore.rules.advi import ADVIOptions, advi_step
from bayescore.rules.terms import Largest
from cases import F64, normal

DIM, S, LR, SD_LR = 4, 3, 0.02, 0.05


def per_datum(theta: Tensor) -> Tensor:
    """A loss per datum that is not quadratic, by coordinate."""
    return theta.cosh() + 0.3 * theta


def negative_elbo(m: Tensor, rho: Tensor, eps: Tensor, c: float, m0: Tensor, s0: float) -> Tensor:
    """E loss/c + KL(q | prior), the expectation over the given draws."""
    q = torch.distributions.Normal(m, rho.exp())
    prior = torch.distributions.Normal(m0, torch.full_like(m0, s0))
    fit = per_datum(m + rho.exp() * eps).mean(0).sum() / c
    return fit + torch.distributions.kl_divergence(q, prior).sum()


def draws_at(m: Tensor, sd: Tensor, eps: Tensor) -> Draws:
    theta = (m + sd * eps).detach().requires_grad_()
    (g,) = torch.autograd.grad(per_datum(theta).sum(), theta)
    return Draws.of_scores(eps, -g)


@given(seed=st.integers(0, 10_000), c=st.sampled_from([1.0, 0.01]), s0=st.sampled_from([0.5, 10.0]))
@settings(max_examples=30)
def test_the_gradient_is_that_of_the_negative_elbo(seed: int, c: float, s0: float) -> None:
    """Read off Adam's first moment, (1 - b1) times the gradient; that of the mean in per-datum units."""
    m, rho, m0 = 0.5 * normal(3, DIM, seed=seed)
    eps, zeros = normal(S, DIM, seed=seed + 1), torch.zeros(DIM, dtype=F64)
    options = ADVIOptions(c, s0**-2.0, LR, SD_LR, *corrections(1))
    draws = draws_at(m, rho.exp(), eps)
    (_, _, first_m, first_r, *_), (slope, square, _) = advi_step(
        m, rho.exp(), zeros, zeros, zeros, zeros, m0, draws, options
    )
    m, rho = m.requires_grad_(), rho.requires_grad_()
    by_mean, by_rho = torch.autograd.grad(negative_elbo(m, rho, eps, c, m0, s0), (m, rho))
    torch.testing.assert_close(first_m / (1 - B1), c * by_mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(first_r / (1 - B1), by_rho, rtol=1e-10, atol=1e-8)
    torch.testing.assert_close(slope, by_rho, rtol=1e-10, atol=1e-8)
    torch.testing.assert_close(square, slope.square())


@pytest.mark.parametrize("c", [1.0, 0.01])
def test_ten_steps_are_adam_of_torch_on_the_negative_elbo(c: float) -> None:
    m0, s0 = normal(DIM, seed=3), 2.0
    m, rho = 0.5 * normal(2, DIM)
    mean, sd, moments = m, rho.exp(), [torch.zeros(DIM, dtype=F64)] * 4
    m, rho = m.clone().requires_grad_(), rho.clone().requires_grad_()
    optimizer = torch.optim.Adam([{"params": [m], "lr": LR}, {"params": [rho], "lr": SD_LR}])
    for k in range(1, 11):
        eps = normal(S, DIM, seed=k)
        options = ADVIOptions(c, s0**-2.0, LR, SD_LR, *corrections(k))
        (mean, sd, *moments), _ = advi_step(mean, sd, *moments, m0, draws_at(mean, sd, eps), options)
        optimizer.zero_grad()
        negative_elbo(m, rho, eps, c, m0, s0).backward()
        m.grad *= c
        optimizer.step()
        torch.testing.assert_close(mean, m.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(sd, rho.detach().exp(), rtol=1e-10, atol=1e-10)


def test_the_third_term_is_how_slowly_the_sd_answers_to_its_slope() -> None:
    """In the first step log sd moves by the corrected moment over it."""
    m, rho = 0.5 * normal(2, DIM)
    zeros, eps = torch.zeros(DIM, dtype=F64), normal(S, DIM, seed=1)
    options = ADVIOptions(1.0, 0.0, LR, SD_LR, *corrections(1))
    (_, sd, *_), (slope, _, slow) = advi_step(
        m, rho.exp(), zeros, zeros, zeros, zeros, 0.0, draws_at(m, rho.exp(), eps), options
    )
    assert isinstance(slow, Largest)
    torch.testing.assert_close(sd.log() - rho, -slope / slow.values, rtol=1e-10, atol=1e-12)
