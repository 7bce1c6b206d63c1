"""Likelihoods: means over data of sums over the event, true to their own mean, variance and cdf."""

from __future__ import annotations

import pytest
import torch
from scipy import special
from torch import Tensor, distributions
from torch.nn import functional as F

import bayescore.nn as bnn
from bayescore.posteriors.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    as_likelihood,
    normal_cdf,
)


def outputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


OUT = outputs(6, 4)
CASES = [
    (Gaussian(0.7), OUT, outputs(6, 4, seed=1), distributions.Normal(OUT, 0.7)),
    (
        HeteroscedasticGaussian(), OUT, outputs(6, 2, seed=1),
        distributions.Normal(OUT[:, :2], OUT[:, 2:].exp()),
    ),
    (Poisson(), OUT, torch.arange(24.0).reshape(6, 4) % 5, distributions.Poisson(OUT.exp())),
    (Bernoulli(), OUT, (outputs(6, 4, seed=1) > 0).float(), distributions.Bernoulli(logits=OUT)),
]  # fmt: skip


@pytest.mark.parametrize(("like", "out", "y", "reference"), CASES, ids=lambda v: getattr(v, "name", ""))
def test_the_loss_is_the_mean_over_data_of_the_sum_over_outputs(
    like: Likelihood, out: Tensor, y: Tensor, reference: distributions.Distribution
) -> None:
    expected = -reference.log_prob(y).sum(1).mean()
    torch.testing.assert_close(like(out, y), expected)
    torch.testing.assert_close(like.log_prob(out, y), reference.log_prob(y).sum(1))
    if like.kind == "values":
        torch.testing.assert_close(like.mean(out), reference.mean)
        torch.testing.assert_close(like.variance(out), reference.variance)


def test_cross_entropy_is_the_categorical_loss() -> None:
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    torch.testing.assert_close(Categorical()(OUT, y), F.cross_entropy(OUT, y))
    torch.testing.assert_close(Categorical().probs(OUT).sum(1), torch.ones(6))


def test_distribution_functions_agree_with_the_densities() -> None:
    y = torch.linspace(-2, 3, 6).unsqueeze(1).expand(6, 4)
    torch.testing.assert_close(Gaussian(0.7).cdf(OUT, y), distributions.Normal(OUT, 0.7).cdf(y))
    counts = torch.arange(60.0)
    rate = torch.full((60,), 1.2)
    mass = distributions.Poisson(rate.exp()).log_prob(counts).exp()
    torch.testing.assert_close(Poisson().cdf(rate, counts), mass.cumsum(0), rtol=1e-4, atol=1e-5)


def test_learned_noise_is_a_parameter_whose_optimum_is_the_residual_sd() -> None:
    like = Gaussian("learned")
    y = 3 * outputs(500, 1, seed=3)
    opt = torch.optim.Adam(like.parameters(), lr=0.05)
    for _ in range(300):
        opt.zero_grad()
        like(torch.zeros_like(y), y).backward()
        opt.step()
    torch.testing.assert_close(like.log_noise.exp().detach(), y.square().mean().sqrt(), rtol=0.01, atol=0)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="must have one shape"):
        Gaussian()(outputs(5, 1), outputs(5))
    with pytest.raises(ValueError, match="even last dimension"):
        HeteroscedasticGaussian()(outputs(5, 3), outputs(5, 1))


def test_likelihoods_come_by_name_or_callable() -> None:
    assert isinstance(as_likelihood("poisson"), Poisson)
    assert float(as_likelihood(lambda o, y: (o - y).square().mean())(OUT, OUT)) == 0
    with pytest.raises(ValueError, match="did you mean 'gaussian'"):
        as_likelihood("gausian")
    with pytest.raises(TypeError, match="a name"):
        as_likelihood(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="noise"):
        bnn.likelihoods.Gaussian(-1.0)


def test_the_normal_distribution_function_is_true_in_both_tails():
    z = torch.linspace(-30, 10, 4001, dtype=torch.float64)
    assert torch.allclose(normal_cdf(z), torch.from_numpy(special.ndtr(z.numpy())), rtol=1e-12, atol=0)
    z = torch.linspace(-10, 10, 4001)
    assert torch.allclose(normal_cdf(z), torch.from_numpy(special.ndtr(z.numpy())), rtol=1e-4, atol=0)
