"""The theory of the proximal step: what it does in expectation, and which of its gradients are unbiased.

For Gaussian q_t = N(m, V) and target N(mu, Sigma), minimising the population loss
    E_{q_t} [ alpha |g - g_t|^2 + |g - s|^2 ]                                                       (1)
mixes the scores, g = beta g_t + (1 - beta) s with beta = alpha/(1 + alpha): the new precision and mean are
    V'^{-1} = beta V^{-1} + (1-beta) Sigma^{-1},  V'^{-1} m' = beta V^{-1} m + (1-beta) Sigma^{-1} mu   (2)
and after T steps  g_T - s = gamma_T (g_0 - s),  gamma_T = prod_t alpha_t/(1 + alpha_t).                (3)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.families import Family, FullGaussian
from bayescore.methods import ProximalDescent, WhitenedDescent
from bayescore.rng import Streams
from bayescore.rules import Draws
from bayescore.rules.ridge import ridge_step
from bayescore.targets import Gaussian, MiniBatchPosterior, NoisyScore, Target
from cases import F64, covariance, family, gaussian, normal, walk, z_score

# -- the population step ----------------------------------------------------------------------------------


def nodes(dim: int) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite points and weights: expectations of cubics under N(0, I) are exact."""
    line, weight = (
        torch.tensor([-math.sqrt(3), 0.0, math.sqrt(3)], dtype=F64),
        torch.tensor([1.0, 4.0, 1.0], dtype=F64) / 6,
    )
    grid = torch.cartesian_prod(*[line] * dim).reshape(-1, dim)
    weights = torch.cartesian_prod(*[weight] * dim).reshape(-1, dim).prod(-1)
    return grid, weights


def population_step(q: Family, target: Target, alpha: float) -> Family:
    """The family that minimises (1), found by L-BFGS with the library's own score and pullback."""
    grid, weights = nodes(q.dim)
    theta = q.transform(grid)
    g_t, s, w = q.score(theta), target.score(theta), weights.unsqueeze(-1)
    flat = q.flat().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [flat],
        max_iter=2000,
        max_eval=4000,
        history_size=30,
        tolerance_grad=1e-13,
        tolerance_change=1e-18,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        with torch.no_grad():
            g, pullback = q.from_flat(flat.detach()).score_and_pullback(theta)
            gradient = pullback(2 * w * ((1 + alpha) * g - alpha * g_t - s))
            flat.grad = torch.cat([part.reshape(-1) for part in gradient.values()])
            return (w * (alpha * (g - g_t).square() + (g - s).square())).sum()

    optimizer.step(closure)
    return q.from_flat(flat.detach())


@given(
    dim=st.integers(1, 3),
    seed=st.integers(0, 1000),
    alpha=st.sampled_from([0.0, 0.1, 0.5, 1.0, 5.0]),
    form=st.sampled_from(["precision", "covariance"]),
)
@settings(max_examples=20)
def test_the_population_step_has_the_mean_and_covariance_of_the_paper(
    dim: int, seed: int, alpha: float, form: str
) -> None:
    q = gaussian(dim, seed).in_form(form)
    target = Gaussian(normal(dim, seed=seed + 7), covariance(dim, seed + 8))
    new = population_step(q, target, alpha)
    beta = alpha / (1 + alpha)
    P, L = torch.linalg.inv(q.covariance), torch.linalg.inv(target.covariance)
    V = torch.linalg.inv(beta * P + (1 - beta) * L)
    m = V @ (beta * P @ q.mean + (1 - beta) * L @ target.mean)
    torch.testing.assert_close(new.covariance, V, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(new.mean, m, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (lambda t, T: t / T, 0.0),  # alpha_0 = 0: one exact step arrives, whatever comes after
        (lambda t, T: 1.0, 0.5**4),
        (lambda t, T: 0.5, (1 / 3) ** 4),
        (lambda t, T: 1 - t / T, 0.5 * (0.75 / 1.75) * (0.5 / 1.5) * (0.25 / 1.25)),
        (lambda t, T: 0.0, 0.0),
    ],
    ids=["linear", "one", "half", "reverse", "zero"],
)
def test_the_score_of_repeated_population_steps_follows_the_recurrence(
    alpha: Callable[[int, int], float], expected: float
) -> None:
    T, q0 = 4, gaussian(2, 5).in_form("precision")
    target = Gaussian(normal(2, seed=6), covariance(2, 9))
    q, gamma, x = q0, 1.0, normal(6, 2, seed=3)
    for t in range(T):
        q = population_step(q, target, alpha(t, T))
        gamma *= alpha(t, T) / (1 + alpha(t, T))
        mixed = target.score(x) + gamma * (q0.score(x) - target.score(x))
        torch.testing.assert_close(q.score(x), mixed, rtol=1e-7, atol=1e-7)
    assert gamma == pytest.approx(expected, abs=1e-15)


@given(seed=st.integers(0, 1000), alpha=st.sampled_from([10.0, 1e3]))
@settings(max_examples=20)
def test_the_closed_form_of_the_diagonal_gaussian_takes_the_population_step_to_first_order(
    seed: int, alpha: float
) -> None:
    """With eps = +-1 the draws have the moments of q_t; (1 - w/2 + w^2/8)^-2 stands for 1 + w."""
    q = family("diagonal", 3, seed)
    precision, centre = (0.5 * normal(3, seed=seed)).exp(), normal(3, seed=seed + 1)
    eps = torch.tensor([[1.0], [-1.0]], dtype=F64).expand(2, 3)
    draws = Draws.of_scores(eps, precision * (centre - q.mean - q.sd * eps))
    mean, sd = ridge_step(q.mean, q.sd, draws, alpha, alpha)
    P, beta = (-2 * q.log_sd).exp(), alpha / (1 + alpha)
    P_new = beta * P + (1 - beta) * precision
    w = P_new / P - 1
    stand_in = (1 - w / 2 + w.square() / 8).pow(-2)
    assume(bool(w.abs().max() < 1))
    torch.testing.assert_close(sd.pow(-2) / stand_in * (1 + w), P_new, rtol=1e-8, atol=1e-8)
    m_new = (beta * P * q.mean + (1 - beta) * precision * centre) / P_new
    torch.testing.assert_close((mean - q.mean) * stand_in / (1 + w) + q.mean, m_new, rtol=1e-8, atol=1e-8)


# -- unbiased at first, biased later ----------------------------------------------------------------------


class PairedNoise(Target):
    """Noise as in NoisyScore, but given: one number (F, 1, D) for the only draw of each fit."""

    name = "paired"
    has_density = False

    def __init__(self, inner: Target, beta: float, noise: Tensor) -> None:
        self.inner, self.beta, self.noise, self.dim = inner, beta, noise, inner.dim

    def log_prob(self, x: Tensor) -> Tensor:
        raise TypeError("scores only")

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        s = self.inner.score(x)
        return s + self.beta * s.abs().amax(-1, keepdim=True) * self.noise


#: Algorithm 1 in the two norms
Descent = type[ProximalDescent | WhitenedDescent]
both = pytest.mark.parametrize("method", [ProximalDescent, WhitenedDescent])


def inner_gradient(
    method: Descent, n: int, q: Family, target: Target, seeds: list[int], rate: float, alpha: float = 0.0
) -> Tensor:
    """The gradient of inner step n (from 1) of SGD, (F, P): what the step moved, divided by the rate."""
    after = [q.in_form("precision").flat().expand(len(seeds), -1)]
    for count in range(1, n + 1):
        descent = method(inner_steps=count, optimizer="sgd", lr=rate, schedule="constant", alpha=alpha)
        after.append(walk(descent, q, target, seeds=seeds).flat())
    return (after[-2] - after[-1]) / rate


def noise_bias(
    method: Descent, n: int, rate: float, beta: float, pairs: int = 2000
) -> tuple[Tensor, Tensor, Tensor]:
    """Bias of the gradient of inner step n under noise, its standard error, and the exact gradient's mean.

    Noise comes in pairs +e and -e at one draw theta, so that what is linear in the noise cancels exactly.
    """
    q, inner = FullGaussian.init(3), Gaussian(normal(3, seed=2), covariance(3, 4))
    e = normal(pairs, 1, 3, seed=5)
    seeds = list(range(pairs)) * 3
    target = PairedNoise(inner, beta, torch.cat([e, -e, torch.zeros_like(e)]))
    plus, minus, exact = inner_gradient(method, n, q, target, seeds, rate).split(pairs)
    bias = 0.5 * (plus + minus) - exact
    return bias.mean(0), bias.std(0) / math.sqrt(pairs), exact.mean(0)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((WhitenedDescent, kind) for kind in ("full", "diagonal")),
        *((ProximalDescent, kind) for kind in ("full", "diagonal", "low-rank", "mixture", "planar")),
    ],
)
def test_the_first_inner_gradient_is_unbiased_under_a_noisy_score(method: Descent, kind: str) -> None:
    """The same draws with and without noise: the mean difference is zero within its error."""
    n, q, inner = 4000, family(kind), Gaussian(normal(3, seed=2), covariance(3, 4))
    noisy, exact = (
        inner_gradient(method, 1, q, NoisyScore(inner, beta), list(range(n)), 1e-4) for beta in (1.0, 0.0)
    )
    difference = noisy - exact
    moving = difference.std(0) > 1e-9
    assert moving.sum() >= 6
    assert z_score(difference[:, moving]).abs().max() < 4.5


@both
def test_the_first_inner_gradient_is_linear_in_the_score(method: Descent) -> None:
    """So that any unbiased score gives an unbiased gradient: pairs of opposite noise cancel to rounding."""
    bias, _, exact = noise_bias(method, 1, 1e-3, beta=1.0, pairs=200)
    assert bias.norm() < 1e-9 * exact.norm()


@both
def test_the_second_inner_gradient_is_biased_in_proportion_to_the_learning_rate(method: Descent) -> None:
    relative = {}
    for rate in (1e-5, 1e-4, 1e-3):
        bias, error, exact = noise_bias(method, 2, rate, beta=1.0)
        relative[rate] = float(bias.norm() / exact.norm())
        assert (bias / error.clamp_min(1e-300)).abs().max() > 5, "it is not an accident of the noise"
    assert relative[1e-4] / relative[1e-5] == pytest.approx(10, rel=0.05)
    assert relative[1e-3] / relative[1e-4] == pytest.approx(10, rel=0.05)


@both
def test_the_bias_of_the_second_inner_gradient_grows_with_the_variance_of_the_noise(
    method: Descent,
) -> None:
    small, large = (float(noise_bias(method, 2, 1e-4, beta)[0].norm()) for beta in (0.3, 0.6))
    assert large / small == pytest.approx(4.0, rel=0.05)


def posterior(batch_size: int | None) -> MiniBatchPosterior:
    """Six data, a likelihood that is not Gaussian."""
    x, y = normal(6, 2, seed=1), normal(6, seed=2)

    def log_likelihood(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -((y - theta @ x.T).cosh().log())

    return MiniBatchPosterior(
        log_likelihood, (x, y), lambda t: -0.5 * t.square().sum(-1), 2, batch_size=batch_size
    )


class EverySubset(Target):
    """Every mini-batch of two, one for each fit: the mean over the fits is the expectation itself."""

    name = "subsets"
    has_density = False
    pairs = tuple(itertools.combinations(range(6), 2))

    def __init__(self) -> None:
        self.inner, self.dim = posterior(2), 2

    def log_prob(self, x: Tensor) -> Tensor:
        raise TypeError("scores only")

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        chosen = torch.tensor(self.pairs)
        fixed = Streams([0])
        fixed.subsets = lambda population, size: chosen  # type: ignore[method-assign]
        return self.inner.score(x, fixed)


def minibatch_bias(method: Descent, n: int, rate: float, draws: int = 20) -> tuple[Tensor, Tensor]:
    """Bias of inner gradient n over every mini-batch, averaged over draws theta, and the exact gradient."""
    q, biases, exact = FullGaussian.init(2), [], []
    for seed in range(draws):
        subsets = inner_gradient(method, n, q, EverySubset(), [seed] * len(EverySubset.pairs), rate)
        whole = inner_gradient(method, n, q, posterior(None), [seed], rate)[0]
        biases.append(subsets.mean(0) - whole)
        exact.append(whole)
    return torch.stack(biases), torch.stack(exact)


@both
def test_the_first_inner_gradient_is_unbiased_under_mini_batches(method: Descent) -> None:
    bias, exact = minibatch_bias(method, 1, 1e-3)
    assert bias.norm() < 1e-9 * exact.norm()


@both
def test_the_first_inner_gradient_is_unbiased_under_drawn_mini_batches(method: Descent) -> None:
    n, q = 1500, FullGaussian.init(2)
    drawn = inner_gradient(method, 1, q, posterior(2), list(range(n)), 1e-4)
    whole = inner_gradient(method, 1, q, posterior(None), list(range(n)), 1e-4)
    difference = drawn - whole
    moving = difference.std(0) > 1e-9
    assert z_score(difference[:, moving]).abs().max() < 4.5


@both
def test_the_second_inner_gradient_is_biased_under_mini_batches_in_proportion_to_the_learning_rate(
    method: Descent,
) -> None:
    (small, exact), (large, _) = minibatch_bias(method, 2, 1e-4), minibatch_bias(method, 2, 1e-3)
    assert small.mean(0).norm() > 1e-6 * exact.mean(0).norm()
    assert large.norm() / small.norm() == pytest.approx(10, rel=0.1)
