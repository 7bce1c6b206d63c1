"""Draws of a fit: by the names of the model, resampled by importance, compared with reference draws."""

from __future__ import annotations

import arviz
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import bayescore as bs
from bayescore.inference.export import columns
from bayescore.targets import Gaussian, LogDensity, NoisyScore, Positive, Real, ScoreFunction, TorchModel

Y = torch.tensor([1.2, 0.7, 2.9, 1.1, -0.4, 2.2, 1.9, 0.3], dtype=torch.float64)


def model() -> TorchModel:
    def log_density(mu: Tensor, sigma: Tensor) -> Tensor:
        prior = Normal(0, 5).log_prob(mu) + Normal(0, 2).log_prob(sigma)
        return prior + Normal(mu, sigma).log_prob(Y).sum()

    def generated(mu: Tensor, sigma: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        noise = torch.randn(len(Y), generator=rng, dtype=torch.float64)
        return {"log_lik": Normal(mu, sigma).log_prob(Y), "y_rep": mu + sigma * noise, "twice": 2 * mu}

    return TorchModel({"mu": Real(), "sigma": Positive()}, log_density, generated=generated)


@pytest.fixture(scope="module")
def fit() -> bs.Fit:
    return bs.fit(model(), progress=False)


def test_arviz_gets_the_names_and_groups_of_the_model(fit: bs.Fit) -> None:
    data = fit.to_arviz(draws=500)
    assert set(data.groups()) == {"posterior", "log_likelihood", "posterior_predictive", "sample_stats"}
    assert set(data.posterior.data_vars) == {"mu", "sigma", "twice"}
    assert data.posterior["mu"].shape == (1, 500)
    assert data.posterior_predictive["y_rep"].shape == (1, 500, 8)
    assert (data.posterior["sigma"] > 0).all()
    assert data.posterior.attrs["verdict"] == fit.verdict


def test_loo_works_on_the_draws(fit: bs.Fit) -> None:
    loo = arviz.loo(fit.to_arviz(resample=True))
    assert -20 < loo.elpd_loo < -8
    assert loo.n_data_points == 8


def test_noise_on_the_scores_changes_no_name(fit: bs.Fit) -> None:
    noisy = bs.fit(NoisyScore(model(), 0.1), progress=False, steps=30)
    assert set(noisy.to_arviz(draws=10).posterior.data_vars) == {"mu", "sigma", "twice"}


def test_a_target_without_names_gives_theta() -> None:
    plain = bs.fit(Gaussian.random(3), progress=False)
    assert plain.to_arviz(draws=7).posterior["theta"].shape == (1, 7, 3)


def test_resampled_draws_have_the_moments_of_the_target() -> None:
    narrow = Gaussian(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    wide = bs.fit(
        narrow, bs.families.FullGaussian.init(2, scale=1.6), bs.methods.GSM(), steps=1, progress=False
    )
    wide = bs.Fit(**{**wide.__dict__, "family": bs.families.FullGaussian.init(2, scale=1.6)})
    x = wide.resample(20_000, seed=1)
    assert x.shape == (20_000, 2)
    assert (x.std(0) - 1).abs().max() < 0.05
    assert (wide.family.sample(20_000, 1).std(0) - 1.6).abs().max() < 0.05
    assert torch.equal(x, wide.resample(20_000, seed=1))
    assert len(wide.resample(20_000, seed=1, moves=0).unique(dim=0)) < 20_000  # some are repeated


def test_draws_that_cannot_be_weighted_say_why() -> None:
    scores = bs.fit(ScoreFunction(lambda x: -x, 2), progress=False, steps=5)
    with pytest.raises(ValueError, match="cannot be weighted: ScoreFunction has scores but no log density"):
        scores.resample(10)


def test_a_fit_is_compared_with_draws_on_its_own_space() -> None:
    target = Gaussian.random(3, seed=1)
    done = bs.fit(target, progress=False)
    same = done.compare(target.sample(20_000, 0))
    assert same.mean_errors.max() < 0.05
    assert same.sd_errors.max() < 0.05
    shifted = done.compare(target.sample(20_000, 0) + 2 * target.covariance.diagonal().sqrt())
    assert (shifted.mean_errors - 2).abs().max() < 0.05


def test_a_fit_is_compared_by_name_with_constrained_draws(fit: bs.Fit) -> None:
    x = fit.family.sample(8000, 5).reshape(2, 4000, 2)
    reference = {"sigma": x[..., 1].exp(), "other": x[..., 0]}
    found = fit.compare(reference)
    assert found.names == ("sigma",)
    assert found.mean_error < 0.05
    with pytest.raises(ValueError, match=r"\(other\) name no quantity of the fit; it has mu, sigma, twice"):
        fit.compare({"other": x[..., 0]})
    with pytest.raises(ValueError, match="has no reference draws; give some"):
        fit.compare()


def test_columns_are_named_from_one_as_in_stan() -> None:
    x = torch.arange(12.0).reshape(2, 2, 3)
    assert list(columns({"a": x})) == ["a[1,1]", "a[1,2]", "a[1,3]", "a[2,1]", "a[2,2]", "a[2,3]"]
    assert columns({"a": x})["a[2,1]"].tolist() == [3.0, 9.0]
    assert list(columns({"s": torch.zeros(5)})) == ["s"]


def test_a_density_that_is_not_finite_at_some_draws_is_not_weighted() -> None:
    def half(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > -1, -0.5 * x.square().sum(-1), -torch.inf)

    done = bs.fit(LogDensity(half, 2), progress=False)
    assert "not finite at" in done.verdict


def test_independent_fits_are_chains_and_r_hat_says_whether_they_agree() -> None:
    target = Gaussian.random(3, seed=4)
    fits = bs.fit_many(target, seeds=[0, 1, 2, 3], progress=False)
    data = bs.to_arviz(fits, draws=500)
    assert data.posterior["theta"].shape == (4, 500, 3)
    assert data.sample_stats["lp"].shape == (4, 500)
    assert float(arviz.rhat(data)["theta"].max()) < 1.05
    with pytest.raises(ValueError, match="fits of one target"):
        bs.to_arviz([fits[0], bs.fit(Gaussian.random(3, seed=5), progress=False)])
    with pytest.raises(ValueError, match="at least one fit"):
        bs.to_arviz([])


def test_observed_data_serve_predictive_checks(fit: bs.Fit) -> None:
    data = fit.to_arviz(draws=200, observed={"y": Y})
    assert data.observed_data["y"].values.tolist() == Y.tolist()
    pit = arviz.loo_pit(data, y="y", y_hat="y_rep")
    assert ((pit >= 0) & (pit <= 1)).all()
    assert "observed_data" not in fit.to_arviz(draws=10).groups()


def test_the_data_of_a_program_that_it_replicates_are_observed() -> None:
    class Program(TorchModel):
        @property
        def data(self) -> dict[str, object]:
            return {"N": 8, "y": Y.tolist(), "x": [1.0] * 8, "z": [2.0] * 8, "ragged": [[1], [1, 2]]}

        @property
        def constrained_names(self) -> list[str]:
            return ["mu", "sigma", "z_rep[1]"]

    plain = model()
    program = Program(plain.parameters, plain.log_density, generated=plain.generated)
    data = bs.fit(program, progress=False).to_arviz(draws=50)
    assert set(data.observed_data.data_vars) == {"y", "z"}
    assert set(data.constant_data.data_vars) == {"N", "x"}


def test_a_scale_without_its_bound_is_named() -> None:
    def log_density(mu: Tensor, sigma: Tensor) -> Tensor:
        inside = (
            Normal(mu, sigma.abs()).log_prob(Y[:3]).sum() - 0.5 * (sigma - 1).square() - 0.5 * mu.square()
        )
        return torch.where(sigma > 0, inside, -torch.inf)

    fit = bs.fit(TorchModel({"mu": Real(), "sigma": Real()}, log_density), progress=False)
    assert "the density is finite only where sigma is positive" in fit.verdict
    assert "real<lower=0> sigma" in fit.verdict
