"""GSM: the nearest Gaussian that has the target's score at the draw."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.families import FullGaussian
from bayescore.methods import GSM
from bayescore.methods.bam import bam_full
from bayescore.methods.gsm import gsm_update
from bayescore.targets import Gaussian, ScoreFunction
from cases import F64, covariance, family, gaussian, kl, normal, one_step, walk

cases = given(dim=st.integers(1, 6), seed=st.integers(0, 10_000), size=st.floats(0.01, 100))


def problem(dim: int, seed: int, size: float) -> tuple[torch.Tensor, ...]:
    """Mean, covariance, one draw and one score, each a batch of one."""
    q = gaussian(dim, seed)
    z = q.sample(1, seed=seed)
    return q.mean[None], q.covariance[None], z[None], size * normal(1, 1, dim, seed=seed + 1)


@cases
@settings(max_examples=50)
def test_after_one_draw_the_new_gaussian_has_the_given_score_there(dim: int, seed: int, size: float) -> None:
    mu, sigma, z, g = problem(dim, seed, size)
    mean, V = gsm_update(mu, sigma, z, g)
    score = torch.linalg.solve(V[0], mean[0] - z[0, 0])
    torch.testing.assert_close(score, g[0, 0], rtol=1e-6, atol=1e-6 * size)
    torch.testing.assert_close(V, V.mT, rtol=1e-10, atol=1e-10)


@cases
@settings(max_examples=30)
def test_no_other_gaussian_with_that_score_is_nearer(dim: int, seed: int, size: float) -> None:
    """With mean z + V g the constraint holds for every V: the divergence is stationary at the update's V."""
    mu, sigma, z, g = problem(dim, seed, size)
    _, V = gsm_update(mu, sigma, z, g)
    L = torch.linalg.cholesky(V[0]).requires_grad_()

    def divergence(L: torch.Tensor) -> torch.Tensor:
        W = L.tril() @ L.tril().T
        return kl(mu[0], sigma[0], z[0, 0] + W @ g[0, 0], W)

    (grad,) = torch.autograd.grad(divergence(L), L)
    assert (L.T @ grad).abs().max() < 1e-6 * max(1.0, size**2)  # in the units of L


@cases
@settings(max_examples=30)
def test_it_is_batch_and_match_of_one_draw_without_regularisation(dim: int, seed: int, size: float) -> None:
    mu, sigma, z, g = problem(dim, seed, size)
    mean, V = gsm_update(mu, sigma, z, g)
    bam_mean, factor = bam_full(mu, torch.linalg.cholesky(sigma), z, g, torch.full((1, 1), 1e12, dtype=F64))
    scale = float(V.abs().max())
    torch.testing.assert_close(factor @ factor.mT, V, rtol=1e-4, atol=1e-5 * scale)
    torch.testing.assert_close(bam_mean, mean, rtol=1e-4, atol=1e-4)


def test_several_draws_average_their_updates() -> None:
    q = gaussian(3)
    z, g = q.sample(4, seed=1)[None], normal(1, 4, 3)
    mean, V = gsm_update(q.mean[None], q.covariance[None], z, g)
    parts = [gsm_update(q.mean[None], q.covariance[None], z[:, i : i + 1], g[:, i : i + 1]) for i in range(4)]
    torch.testing.assert_close(mean, torch.stack([p[0] for p in parts]).mean(0))
    torch.testing.assert_close(V, torch.stack([p[1] for p in parts]).mean(0))


@given(dim=st.integers(1, 5), seed=st.integers(0, 1000), size=st.sampled_from([1e-8, 1.0, 1e4, 1e8, 1e12]))
@settings(max_examples=40)
def test_no_score_makes_the_covariance_indefinite(dim: int, seed: int, size: float) -> None:
    scores = size * normal(3, dim, seed=seed)
    q = one_step(GSM(draws=3), family("full", dim, seed), ScoreFunction(lambda x: scores, dim))
    assert q.flat().isfinite().all()
    assert (q.factor.diagonal() > 0).all()


@pytest.mark.parametrize("size", [1e160, 1e200, 1e300])
def test_a_step_that_overflows_is_dropped_whole(size: float) -> None:
    q = family("full")
    after = one_step(GSM(), q, ScoreFunction(lambda x: torch.full_like(x, size), 3))
    assert torch.equal(after.flat(), q.flat())


def test_it_arrives_from_a_far_start() -> None:
    target = Gaussian(normal(3), covariance(3))
    q = FullGaussian.init(3, mean=torch.full((3,), 10.0, dtype=F64))
    after = walk(GSM(draws=4), q, target, steps=100)[0]
    assert (after.mean - target.mean).norm() < 0.1 * (q.mean - target.mean).norm()
