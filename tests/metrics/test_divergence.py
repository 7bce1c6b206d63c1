"""Divergences: closed forms against simulation, and simulation against its own error."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayescore as bs
from bayescore.families import FullGaussian
from bayescore.inference.result import Trust
from bayescore.metrics import ELBO, Estimate, ForwardKL, gaussian_kl, parameter_errors
from bayescore.targets import Banana, Gaussian, GaussianMixture, LogDensity, NoisyScore
from cases import EVERY, F64, GAUSSIANS, family, gaussian, kl, z_score


@given(
    dim=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    kinds=st.tuples(st.sampled_from(GAUSSIANS), st.sampled_from(GAUSSIANS)),
)
@settings(max_examples=40)
def test_gaussian_kl_is_that_of_torch(dim: int, seed: int, kinds: tuple[str, str]) -> None:
    p, q = family(kinds[0], dim, seed), family(kinds[1], dim, seed + 5)
    a, b = (torch.distributions.MultivariateNormal(d.mean, d.covariance) for d in (p, q))
    expected = torch.distributions.kl_divergence(a, b)
    torch.testing.assert_close(gaussian_kl(p, q), expected, rtol=1e-9, atol=1e-9)
    assert gaussian_kl(p, p).abs() < 1e-10


@pytest.mark.parametrize("form", ["covariance", "precision"])
def test_forward_kl_of_two_gaussians_is_the_closed_form(form: str) -> None:
    target, q = Gaussian.random(3), gaussian(3).in_form(form)
    assert isinstance(q, FullGaussian)
    expected = kl(target.mean, target.covariance, q.mean, q.covariance)
    torch.testing.assert_close(ForwardKL(target, draws=None)(q), expected)
    torch.testing.assert_close(ForwardKL(target, draws=10)(q), expected)


@pytest.mark.parametrize("kind", EVERY)
def test_forward_kl_of_any_family_is_the_mean_over_exact_draws(kind: str) -> None:
    q, target = family(kind), GaussianMixture.random(3, 2, seed=3)
    value = ForwardKL(target, draws=4000, seed=1)(q)
    x = target.sample(40_000, seed=77)
    terms = target.log_prob(x) - q.log_prob(x)
    error = terms.std() * (1 / 40_000 + 1 / 4000) ** 0.5
    assert ((value - terms.mean()) / error).abs() < 4.5


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    "target", [Gaussian.random(3, seed=3), GaussianMixture.random(3, 2, seed=3)], ids=["gaussian", "mixture"]
)
def test_forward_kl_of_a_single_target_serves_a_batch_of_families(kind: str, target) -> None:
    """What a fit records: its family always has a batch dimension, its target may have none."""
    q = family(kind)
    one = type(q).stack([q])
    torch.testing.assert_close(ForwardKL(target, draws=50)(one)[0], ForwardKL(target, draws=50)(q))


def test_forward_kl_of_a_batch_is_that_of_its_members() -> None:
    members = [GaussianMixture.random(3, 2, seed=s) for s in range(3)]
    q = type(family("full")).stack([family("full", seed=s) for s in range(3)])
    together = ForwardKL(GaussianMixture.stack(members), draws=100)(q)
    for i, member in enumerate(members):
        torch.testing.assert_close(together[i], ForwardKL(member, draws=100)(q[i]), rtol=1e-12, atol=1e-12)


def test_forward_kl_uses_one_set_of_draws() -> None:
    metric, q = ForwardKL(Banana(3), draws=50), family("full")
    assert torch.equal(metric(q), metric(q))
    assert torch.equal(metric(q), ForwardKL(Banana(3), draws=50)(q))
    assert not torch.equal(metric(q), ForwardKL(Banana(3), draws=50, seed=1)(q))


def test_forward_kl_of_the_target_itself_is_zero() -> None:
    target = GaussianMixture.random(3, 2)
    assert ForwardKL(target, draws=100)(target.density).abs() < 1e-12


def test_a_closed_form_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="GaussianMixture has no closed-form KL; give a number of draws"):
        ForwardKL(GaussianMixture.random(3), draws=None)
    for kind in ("mixture", "planar"):
        with pytest.raises((TypeError, ValueError), match=r"closed.form"):
            ForwardKL(Gaussian.random(3), draws=None)(family(kind))


def test_forward_kl_needs_exact_draws_and_says_so() -> None:
    with pytest.raises(TypeError, match="LogDensity has no exact sampler"):
        ForwardKL(LogDensity(lambda x: -x.square().sum(-1), 3))(family("full"))


@pytest.mark.parametrize("draws", [0, -1, 2.5])
def test_an_impossible_number_of_draws_is_refused(draws: object) -> None:
    with pytest.raises((TypeError, ValueError), match=f"draws.*{draws}"):
        ForwardKL(Gaussian.random(3), draws=draws)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match=f"draws.*{draws}"):
        ELBO(draws=draws)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_elbo_of_a_normalised_target_is_minus_the_kl_divergence(kind: str) -> None:
    target, q = Gaussian.random(3), family(kind)
    exact = -kl(q.mean, q.covariance, target.mean, target.covariance)
    x = q.sample(20_000, seed=4)
    assert z_score(target.log_prob(x) - q.log_prob(x), exact).abs() < 4.5
    values = torch.stack([ELBO(64, seed=s)(q, target) for s in range(400)])
    assert z_score(values, exact).abs() < 4.5


def test_elbo_over_fixed_noise_is_sharp_in_differences() -> None:
    metric, target, q = ELBO(32), Gaussian.random(3), gaussian(3)
    assert torch.equal(metric(q, target), metric(q, target))
    shifted = FullGaussian.from_moments(q.mean + 1e-6, q.covariance)
    assert (metric(q, target) - metric(shifted, target)).abs() < 1e-4


def test_parameter_errors_are_the_norms_of_the_differences() -> None:
    target, q = Gaussian.random(3), gaussian(3)
    mean, cov = parameter_errors(target, q)
    torch.testing.assert_close(mean, (q.mean - target.mean).square().sum().sqrt())
    torch.testing.assert_close(cov, (q.covariance - target.covariance).square().sum().sqrt())


def test_an_estimate_is_a_number_with_its_error() -> None:
    estimate = Estimate(1.2345, 0.01)
    assert str(estimate) == "1.234 ± 0.010"
    assert float(estimate) == 1.2345
    assert estimate.error == 0.01


def test_an_estimate_of_zero_has_no_minus() -> None:
    assert str(Estimate(-1e-9, 1e-9)) == "0.000 ± 0.000"
    assert str(Estimate(-0.0006, 0.0)) == "-0.001 ± 0.000"


# -- the diagnosis of a fit -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fits() -> list[bs.Fit]:
    target = Gaussian.random(3, seed=8)
    return bs.fit_many(target, gaussian(3), bs.methods.GSM(), steps=3, seeds=list(range(30)))


def test_elbo_of_a_fit_agrees_with_the_closed_form_within_its_error(fits: list[bs.Fit]) -> None:
    scores = []
    for fit in fits:
        q, target = fit.family, fit.target
        exact = -kl(q.mean, q.covariance, target.mean, target.covariance)
        scores.append((fit.elbo.value - float(exact)) / fit.elbo.error)
    values = torch.tensor(scores, dtype=F64)
    assert values.abs().max() < 4.5
    assert 0.6 < values.std() < 1.5, "the stated error is the size of the actual ones"


def test_khat_of_a_fit_separates_good_from_bad() -> None:
    target = Gaussian.random(3, seed=8)
    good = bs.fit(target, gaussian(3), bs.methods.BaM(), steps=100)
    assert good.khat.value < 0.5
    narrow = bs.fit(target, FullGaussian.init(3, scale=0.1), bs.methods.ADVI(lr=1e-6), steps=1)
    assert narrow.khat.value > 0.7
    assert "do not trust" in narrow.summary()


def test_the_diagnosis_is_reproducible(fits: list[bs.Fit]) -> None:
    fit = fits[0]
    again = bs.fit(fit.target, gaussian(3), bs.methods.GSM(), steps=3, seed=0)
    assert again.elbo == fit.elbo
    assert again.khat == fit.khat


def test_scores_alone_leave_elbo_and_khat_none_and_the_verdict_says_why() -> None:
    target = bs.targets.ScoreFunction(lambda x: -x, 3)
    for method in (
        bs.methods.ADVI(),
        bs.methods.ProximalDescent(),
        bs.methods.WhitenedDescent(),
        bs.methods.GSM(),
        bs.methods.BaM(),
    ):
        fit = bs.fit(target, gaussian(3), method, steps=5)
        assert fit.elbo is None
        assert fit.khat is None
        assert fit.verdict == "unknown: ScoreFunction has scores but no log density"
        assert fit.trust is Trust.UNKNOWN
        assert "none: ScoreFunction has scores but no log density" in fit.summary()
        assert "elbo" not in fit.history


def test_advi_converges_from_scores_alone() -> None:
    target = bs.targets.ScoreFunction(lambda x: -(x - 2) / 0.25, 3)
    fit = bs.fit(target, FullGaussian.init(3), bs.methods.ADVI(lr=0.05, draws=4), steps=800)
    torch.testing.assert_close(fit.family.mean, torch.full((3,), 2.0, dtype=F64), atol=0.1, rtol=0)
    torch.testing.assert_close(
        fit.family.covariance.diagonal().sqrt(), torch.full((3,), 0.5, dtype=F64), atol=0.1, rtol=0
    )


def test_a_noisy_target_is_diagnosed_by_its_exact_density() -> None:
    inner = Gaussian.random(3, seed=8)
    fit = bs.fit(NoisyScore(inner, 0.3), gaussian(3), bs.methods.GSM(), steps=5)
    exact = -kl(fit.family.mean, fit.family.covariance, inner.mean, inner.covariance)
    assert abs(fit.elbo.value - float(exact)) < 4.5 * fit.elbo.error


def test_inference_data_has_draws_their_densities_and_what_made_them() -> None:
    target = Gaussian.random(3, seed=8)
    fit = bs.fit(target, gaussian(3), bs.methods.BaM(), steps=20)
    data = fit.to_arviz(draws=500, seed=2)
    x = torch.from_numpy(data.posterior["theta"].to_numpy()[0])
    assert torch.equal(x, fit.family.sample(500, seed=2))
    torch.testing.assert_close(torch.from_numpy(data.sample_stats["lp"].to_numpy()[0]), target.log_prob(x))
    torch.testing.assert_close(
        torch.from_numpy(data.sample_stats["log_q"].to_numpy()[0]), fit.family.log_prob(x)
    )
    assert data.posterior["theta"].shape == (1, 500, 3)
    assert data.posterior.attrs["status"] == fit.status
    assert data.posterior.attrs["score_calls"] == 40
    assert "BaM" in data.posterior.attrs["method"]
    assert data.posterior.attrs["khat"] == fit.khat.value


def test_inference_data_of_scores_alone_has_no_target_density() -> None:
    fit = bs.fit(bs.targets.ScoreFunction(lambda x: -x, 3), gaussian(3), bs.methods.GSM(), steps=3)
    data = fit.to_arviz(draws=10)
    assert "lp" not in data.sample_stats
    assert "khat" not in data.posterior.attrs


def test_inference_data_without_arviz_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = bs.fit(Gaussian.random(3), gaussian(3), bs.methods.GSM(), steps=2)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'bayescore\[arviz\]'"):
        fit.to_arviz()


def test_metrics_agree_whether_or_not_normal_numbers_are_batched() -> None:
    q = type(gaussian(3)).stack([gaussian(3, s) for s in range(3)])
    target = Gaussian.random(3)
    values = ELBO(16)(q, target)
    for i in range(3):
        torch.testing.assert_close(values[i], ELBO(16)(q[i], target), rtol=1e-12, atol=1e-12)
