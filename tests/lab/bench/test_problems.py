"""The ELBO that everybody is judged by is exact."""

from __future__ import annotations

import math

import pytest
import torch

from bayescore.families import FullGaussian
from bayescore.metrics.divergence import gaussian_kl
from bayescore_lab.bench.problems import banana, gaussian


def any_gaussian(dim: int, seed: int) -> FullGaussian:
    rng = torch.Generator().manual_seed(seed)
    mean = torch.randn(dim, generator=rng, dtype=torch.float64)
    x = torch.randn(dim, 2 * dim, generator=rng, dtype=torch.float64)
    return FullGaussian.from_moments(mean, x @ x.T / dim)


@pytest.mark.parametrize("form", ["covariance", "precision"])
def test_elbo_on_a_gaussian_is_minus_the_divergence(form):
    problem, q = gaussian(dim=7, condition=30.0), any_gaussian(7, 0)
    kl = gaussian_kl(q, problem.target.density)
    assert problem.elbo(q.in_form(form)) == pytest.approx(-float(kl), rel=1e-10)


def test_elbo_of_the_target_itself_is_the_best():
    problem = gaussian(dim=7)
    q = FullGaussian.from_moments(problem.target.mean, problem.target.covariance)
    assert problem.elbo(q) == pytest.approx(problem.best, abs=1e-9)


def test_elbo_on_the_banana_is_the_mean_over_many_draws():
    problem, q = banana(), any_gaussian(2, 1)
    x = q.sample(400_000, seed=0)
    terms = problem.target.log_prob(x) - q.log_prob(x)
    assert problem.elbo(q) == pytest.approx(
        float(terms.mean()), abs=5 * float(terms.std()) / math.sqrt(len(x))
    )


def test_no_gaussian_does_better_on_the_banana_than_the_best():
    problem = banana()
    assert problem.goal < problem.best < 0
    assert all(problem.elbo(any_gaussian(2, seed)) < problem.best for seed in range(50))
    assert problem.elbo(problem.q0) < problem.goal


def test_an_elbo_that_is_not_a_number_is_minus_infinity():
    problem = banana()
    q = problem.q0.replace({"mean": torch.full((2,), torch.inf, dtype=torch.float64), "raw": problem.q0.raw})
    assert problem.elbo(q) == -math.inf
