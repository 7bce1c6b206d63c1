"""One Gaussian in many forms: covariance, precision, low rank, diagonal, and a mixture of one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.families import DiagonalGaussian, FullGaussian, GaussianMixture, LowRankGaussian
from cases import F64, batch, covariance, family, gaussian, normal

dims, seeds = st.integers(1, 8), st.integers(0, 10_000)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@given(dim=dims, seed=seeds)
@settings(max_examples=30)
def test_log_prob_of_a_full_gaussian_is_that_of_torch(dim: int, seed: int) -> None:
    mean, V, x = normal(dim, seed=seed), covariance(dim, seed), normal(5, dim, seed=seed + 1)
    q = FullGaussian.from_moments(mean, V)
    expected = torch.distributions.MultivariateNormal(mean, V).log_prob(x)
    torch.testing.assert_close(q.log_prob(x), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(q.in_form("precision").log_prob(x), expected, rtol=1e-11, atol=1e-11)


@given(dim=dims, seed=seeds)
@settings(max_examples=30)
def test_covariance_and_precision_forms_agree(dim: int, seed: int) -> None:
    q = gaussian(dim, seed)
    p, x = q.in_form("precision"), normal(5, dim, seed=seed + 3)
    for a, b in ((q.log_prob(x), p.log_prob(x)), (q.score(x), p.score(x)), (q.covariance, p.covariance)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.entropy(), p.entropy(), rtol=1e-10, atol=1e-10)
    assert p.form == "precision"
    back = p.in_form("covariance")
    torch.testing.assert_close(back.flat(), q.flat(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dim", [2, 5, 20])
@pytest.mark.parametrize("seed", range(3))
def test_forms_convert_without_loss_at_condition_number_1e8(dim: int, seed: int) -> None:
    V = covariance(dim, seed, condition=1e8)
    q = FullGaussian.from_moments(normal(dim, seed=seed), V)
    p = q.in_form("precision")
    again = p.in_form("covariance")
    assert relative(again.factor, q.factor) < 1e-10
    assert relative(p.covariance, V) < 1e-10
    torch.testing.assert_close(p.entropy(), q.entropy(), rtol=1e-10, atol=1e-10)
    x = q.sample(20, seed=seed)
    torch.testing.assert_close(p.log_prob(x), q.log_prob(x), rtol=1e-10, atol=1e-8)


def test_a_form_is_kept_if_it_is_the_one_asked_for() -> None:
    q = gaussian(3)
    assert q.in_form("covariance") is q
    assert all(
        family(k).in_form("precision").config() == family(k).config() for k in ("diagonal", "low-rank")
    )


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="'correlation'"):
        gaussian(3).in_form("correlation")


def test_conversion_of_a_batch_is_that_of_its_members() -> None:
    q = batch("full", 3)
    p = q.in_form("precision")
    for i in range(3):
        torch.testing.assert_close(p[i].flat(), q[i].in_form("precision").flat(), rtol=1e-12, atol=1e-12)


def test_a_mixture_converts_every_component() -> None:
    q, x = family("mixture"), normal(6, 3)
    p = q.in_form("precision")
    assert p.components.form == "precision"
    torch.testing.assert_close(p.log_prob(x), q.log_prob(x), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(p.covariance, q.covariance, rtol=1e-11, atol=1e-11)


@given(dim=st.integers(1, 8), rank=st.integers(1, 8), seed=seeds)
@settings(max_examples=40)
def test_low_rank_gaussian_is_the_dense_gaussian(dim: int, rank: int, seed: int) -> None:
    q = family("low-rank", dim, seed, rank=rank)
    dense, x = FullGaussian.from_moments(q.mean, q.covariance), normal(5, dim, seed=seed)
    for a, b in (
        (q.log_prob(x), dense.log_prob(x)),
        (q.score(x), dense.score(x)),
        (q.entropy(), dense.entropy()),
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_low_rank_gaussian_never_forms_a_square_matrix() -> None:
    """At 100,000 dimensions a square matrix would take 80 GB."""
    q = LowRankGaussian.init(100_000, 3, seed=0)
    x = q.sample(2, seed=0)
    g, pullback = q.score_and_pullback(x)
    assert q.log_prob(x).isfinite().all()
    assert float(q.entropy()) == pytest.approx(0.5 * 100_000 * (1 + math.log(2 * math.pi)), rel=0.01)
    assert pullback(g)["columns"].shape == (100_000, 3)


@given(dim=dims, seed=seeds, form=st.sampled_from(["covariance", "precision"]))
@settings(max_examples=30)
def test_a_mixture_of_one_is_its_component(dim: int, seed: int, form: str) -> None:
    component = gaussian(dim, seed).in_form(form)
    q = GaussianMixture(normal(1, seed=seed), FullGaussian.stack([component]))
    x, e = normal(2, 5, dim, seed=seed + 1)
    torch.testing.assert_close(q.log_prob(x), component.log_prob(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(q.score(x), component.score(x), rtol=1e-12, atol=1e-12)
    mine, theirs = q.score_and_pullback(x)[1](e), component.score_and_pullback(x)[1](e)
    assert mine["logits"].abs().max() < 1e-10
    for key, value in theirs.items():
        torch.testing.assert_close(mine[key][0], value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.mean, component.mean)
    torch.testing.assert_close(q.covariance, component.covariance)


@given(dim=dims, seed=seeds)
@settings(max_examples=20)
def test_a_diagonal_gaussian_is_the_full_one_with_that_diagonal(dim: int, seed: int) -> None:
    q = family("diagonal", dim, seed)
    full, x = FullGaussian.from_moments(q.mean, q.covariance), normal(5, dim, seed=seed)
    torch.testing.assert_close(q.log_prob(x), full.log_prob(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.score(x), full.score(x), rtol=1e-10, atol=1e-10)
    noise = normal(4, dim, seed=seed + 9)
    torch.testing.assert_close(q.transform(noise), full.transform(noise), rtol=1e-10, atol=1e-10)


def test_log_prob_of_a_mixture_is_the_log_of_the_weighted_sum() -> None:
    q, x = family("mixture"), normal(7, 3)
    parts = torch.stack([q.components[k].log_prob(x).exp() for k in range(3)])
    torch.testing.assert_close(q.log_prob(x), (q.weights @ parts).log(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(
        q.responsibilities(x), q.weights[:, None] * parts / (q.weights @ parts), rtol=1e-10, atol=1e-10
    )


def test_the_score_of_a_mixture_stays_finite_where_every_component_underflows() -> None:
    q = family("mixture")
    x = 1e6 * torch.ones(2, 3, dtype=F64)
    assert q.log_prob(x).isfinite().all()
    assert q.score(x).isfinite().all()
    assert all(v.isfinite().all() for v in q.score_and_pullback(x)[1](x).values())


def test_shares_of_the_draws_are_the_weights() -> None:
    means = torch.tensor([[-50.0], [0.0], [50.0]], dtype=F64)
    logits = torch.tensor([0.1, 0.6, 0.3], dtype=F64).log()
    q = GaussianMixture(logits, DiagonalGaussian(means, torch.zeros_like(means)))
    x = q.sample(40_000, seed=0).squeeze(-1)
    shares = torch.stack([(x < -25), (x.abs() <= 25), (x > 25)]).double().mean(-1)
    expected = torch.tensor([0.1, 0.6, 0.3], dtype=F64)
    assert ((shares - expected) / (expected * (1 - expected) / 40_000).sqrt()).abs().max() < 4.5


@pytest.mark.parametrize("scale", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("cls", [FullGaussian, DiagonalGaussian])
def test_init_has_the_scale_and_mean_it_is_asked_for(cls: type, scale: float) -> None:
    mean = normal(4)
    q = cls.init(4, scale=scale, mean=mean)
    torch.testing.assert_close(q.mean, mean)
    torch.testing.assert_close(q.covariance, scale**2 * torch.eye(4, dtype=F64))
    assert not cls.init(4).mean.any()
    assert torch.equal(cls.init(4, seed=3).mean, cls.init(4, seed=3).mean)
    assert not torch.equal(cls.init(4, seed=3).mean, cls.init(4, seed=4).mean)


def test_init_of_a_low_rank_gaussian_is_close_to_a_ball() -> None:
    q = LowRankGaussian.init(50, 5, scale=2.0)
    assert q.rank == 5
    assert relative(q.covariance, 4 * torch.eye(50, dtype=F64)) < 0.05
    assert q.columns.any(), "zero columns would be a saddle point"


def test_init_of_a_mixture_has_equal_weights_and_spread_means() -> None:
    q = GaussianMixture.init(3, 400, scale=0.5, spread=2.0, seed=1)
    torch.testing.assert_close(q.weights, torch.full((400,), 1 / 400, dtype=F64))
    assert float(q.components.mean.std()) == pytest.approx(2.0, rel=0.1)
    assert GaussianMixture.init(3, 2, diagonal=True).components.covariance.shape == (2, 3, 3)
