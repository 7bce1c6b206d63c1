"""ADVI, Fisher and Score: their stochastic gradients are unbiased for the objective each is named after."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescore.families import DiagonalGaussian, Family, GaussianMixture
from bayescore.methods import ADVI, Fisher, Method, Score
from bayescore.targets import Banana, Gaussian, MiniBatchPosterior, NoisyScore, ScoreFunction
from bayescore.targets import GaussianMixture as MixtureTarget
from cases import F64, family, gaussian, kl, normal, one_step, streams, walk, z_score

SGD = {"optimizer": "sgd", "lr": 1.0, "schedule": "constant"}
TARGET = Gaussian(normal(3), gaussian(3, 77).covariance)


def gradients(method: Method, q: Family, target, n: int = 8000) -> Tensor:
    """n independent stochastic gradients at q, (n, P)."""
    q = q.in_form("covariance")
    many = type(q).stack([q] * n)
    return many.flat() - walk(method, many, target, seeds=list(range(n))).flat()


def exact_gradient(q: Family, objective) -> Tensor:
    flat = q.flat().requires_grad_()
    return torch.autograd.grad(objective(q.from_flat(flat)), flat)[0]


def agree(stochastic: Tensor, exact: Tensor) -> None:
    moving = stochastic.std(0) > 1e-10 * (1 + stochastic.abs().max())
    assert moving.any()
    assert z_score(stochastic[:, moving], exact[moving]).abs().max() < 4.5
    torch.testing.assert_close(stochastic.mean(0)[~moving], exact[~moving], rtol=1e-8, atol=1e-8)


def reverse_kl(q: Family) -> Tensor:
    """KL(q | target) = log Z - ELBO."""
    return kl(q.mean, q.covariance, TARGET.mean, TARGET.covariance)


@pytest.mark.parametrize("kind", ["full", "diagonal", "low-rank"])
@pytest.mark.parametrize("stick", [False, True])
def test_advi_follows_the_gradient_of_the_elbo(kind: str, stick: bool) -> None:
    q = family(kind)
    agree(gradients(ADVI(stick=stick, **SGD), q, TARGET), exact_gradient(q, reverse_kl))


@pytest.mark.parametrize("stick", [False, True])
def test_advi_needs_scores_alone(stick: bool) -> None:
    """On the same target without its density it takes the same steps.

    The function is asked at points (S, D), and answers as the target does at (1, S, D): the same product.
    """
    blind = ScoreFunction(lambda x: TARGET.score(x.unsqueeze(0)).squeeze(0), 3)
    q, method = family("full"), ADVI(stick=stick, draws=2)
    a, b = walk(method, q, TARGET, steps=3), walk(method, q, blind, steps=3)
    assert torch.equal(a.flat(), b.flat())


@pytest.mark.parametrize("stick", [False, True])
def test_advi_follows_the_gradient_of_the_elbo_of_a_flow(stick: bool) -> None:
    q = family("planar")
    flat = q.flat().requires_grad_()
    moved = q.from_flat(flat)
    x = moved.transform(normal(200_000, 3, seed=8))  # the expectation by many draws
    (expected,) = torch.autograd.grad((moved.log_prob(x) - TARGET.log_prob(x)).mean(), flat)
    drawn = gradients(ADVI(stick=stick, **SGD), q, TARGET)
    error = (drawn.std(0) / math.sqrt(len(drawn))).square() + (drawn.std(0) / math.sqrt(200_000)).square()
    assert ((drawn.mean(0) - expected) / error.sqrt().clamp_min(1e-12)).abs().max() < 5


def line_mixture() -> tuple[GaussianMixture, MixtureTarget]:
    means = torch.tensor([[-1.0], [0.3], [2.0]], dtype=F64)
    q = GaussianMixture(
        torch.tensor([0.2, -0.3, 0.5], dtype=F64), DiagonalGaussian(means, 0.3 * normal(3, 1))
    )
    return q, MixtureTarget.random(1, 3, seed=5)


def line_elbo(q: GaussianMixture, target: MixtureTarget) -> Tensor:
    """Minus the ELBO on the line, by quadrature."""
    x = torch.linspace(-25, 25, 20_001, dtype=F64).unsqueeze(-1)
    log_q = q.log_prob(x)
    return torch.trapezoid(log_q.exp() * (log_q - target.log_prob(x)), x.squeeze(-1))


def test_the_stratified_estimator_follows_the_gradient_of_the_elbo_of_a_mixture() -> None:
    q, target = line_mixture()
    agree(
        gradients(ADVI(mixture="stratified", **SGD), q, target),
        exact_gradient(q, lambda moved: line_elbo(moved, target)),
    )


@pytest.mark.parametrize("draws", [1, 4])
def test_the_gumbel_estimator_is_close_to_the_gradient_of_the_elbo_of_a_mixture(draws: int) -> None:
    """The relaxation is biased; at temperature 0.05 it points the right way."""
    q, target = line_mixture()
    drawn = gradients(ADVI(mixture="gumbel", draws=draws, **SGD), q, target, n=40_000).mean(0)
    exact = exact_gradient(q, lambda moved: line_elbo(moved, target))
    assert torch.nn.functional.cosine_similarity(drawn, exact, dim=0) > 0.9


def test_more_draws_give_the_mean_of_their_gradients() -> None:
    q = family("full")
    one, four = (gradients(ADVI(draws=n, **SGD), q, TARGET, 4000).var(0) for n in (1, 4))
    moving = one > 1e-8
    assert ((one / four)[moving].log() - math.log(4)).abs().max() < 0.5


@pytest.mark.parametrize("mixture", ["gumbel", "stratified"])
def test_noise_on_the_score_is_never_silently_ignored(mixture: str) -> None:
    """An estimator that cannot work from noisy scores has to refuse them, not to look up exact ones."""
    target, quiet = (NoisyScore(MixtureTarget.random(3), beta) for beta in (5.0, 0.0))
    q, method = family("mixture"), ADVI(mixture=mixture)
    try:
        method.check(q, target)
    except TypeError as refusal:
        assert "stratified" in str(refusal)  # noqa: PT017
        return
    noisy, exact = one_step(method, q, target), one_step(method, q, quiet)
    assert not torch.equal(noisy.flat(), exact.flat())


def test_a_stratified_fit_of_a_minibatch_posterior_refuses_or_uses_minibatches() -> None:
    data = normal(100, 1)
    target = MiniBatchPosterior(
        lambda theta, y: -0.5 * (y.T - theta[:, :1]).square(),
        data,
        lambda t: -t.square().sum(-1),
        3,
        batch_size=2,
    )
    method, q = ADVI(mixture="stratified"), family("mixture")
    try:
        method.check(q, target)
    except TypeError as refusal:
        assert "stratified" in str(refusal)  # noqa: PT017
        return
    full = MiniBatchPosterior(target.log_likelihood, data, target.log_prior, 3)
    assert not torch.equal(one_step(method, q, target).flat(), one_step(method, q, full).flat())


def fisher(q: Family) -> Tensor:
    """E|g - s|^2 for two Gaussians: with x = m + L e it is |P (m - mu)|^2 + |L^{-T} - P L|_F^2."""
    P, L = torch.linalg.inv(TARGET.covariance), torch.linalg.cholesky(q.covariance)
    inverse = torch.linalg.inv(L).mT
    return (P @ (q.mean - TARGET.mean)).square().sum() + (inverse - P @ L).square().sum()


def score(q: Family) -> Tensor:
    """E (g - s)^T V (g - s): |L^T P (m - mu)|^2 + |I - L^T P L|_F^2."""
    P, L = torch.linalg.inv(TARGET.covariance), torch.linalg.cholesky(q.covariance)
    eye = torch.eye(3, dtype=F64)
    return (L.mT @ P @ (q.mean - TARGET.mean)).square().sum() + (eye - L.mT @ P @ L).square().sum()


@pytest.mark.parametrize("kind", ["full", "diagonal", "low-rank"])
@pytest.mark.parametrize(("method", "objective"), [(Fisher, fisher), (Score, score)])
def test_score_divergences_follow_the_gradient_of_their_closed_form(kind: str, method, objective) -> None:
    q = family(kind)
    agree(gradients(method(**SGD), q, TARGET), exact_gradient(q, objective))


@pytest.mark.parametrize("method", [Fisher, Score])
def test_score_divergences_differentiate_through_the_hessian_of_the_target(method: type[Method]) -> None:
    """On a curved target, one gradient equals autograd through everything, the target's score included."""
    target, q = Banana(2), family("full", 2)
    rule = method(**SGD)
    change = q.flat() - one_step(rule, q, target, seed=3).flat()
    flat = q.flat().requires_grad_()
    moved = q.from_flat(flat)
    theta = moved.transform(q.noise(streams(1, 3), 1)[0])
    (s,) = torch.autograd.grad(target.log_prob(theta).sum(), theta, create_graph=True)
    residual = moved.score(theta) - s
    weighted = residual @ moved.factor if method is Score else residual
    (expected,) = torch.autograd.grad(weighted.square().sum(), flat)
    torch.testing.assert_close(change, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: ADVI(draws=0), ValueError, "draws must be at least 1; got 0"),
        (lambda: ADVI(mixture="reinforce"), ValueError, "'gumbel' or 'stratified'; got 'reinforce'"),
        (lambda: ADVI(temperature=0.0), ValueError, "temperature must be positive; got 0.0"),
        (lambda: ADVI(temperature=float("nan")), ValueError, "temperature.*nan"),
        (lambda: ADVI(lr=-1), ValueError, "lr must be positive; got -1"),
        (lambda: Fisher(draws=0), ValueError, "draws must be at least 1; got 0"),
        (lambda: Score(optimizer="newton"), ValueError, "optimizer must be 'adam' or 'sgd'; got 'newton'"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(make, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        make()


def test_stratified_advi_refuses_sticking_and_targets_without_a_density() -> None:
    q = family("mixture")
    with pytest.raises(ValueError, match="stick=True goes with mixture='gumbel'"):
        ADVI(stick=True, mixture="stratified").check(q, MixtureTarget.random(3))
    with pytest.raises(TypeError, match="ScoreFunction has scores only; use mixture='gumbel'"):
        ADVI(mixture="stratified").check(q, ScoreFunction(lambda x: -x, 3))
