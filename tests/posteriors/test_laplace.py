"""Laplace is exact where the network is linear, and says what it needs."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from bayescore.posteriors.laplace import last_layer_logits
from bayescore.posteriors.likelihoods import Gaussian
from bayescore.posteriors.validation import nll
from toy_problem import loader, network, rings

NOISE, PRIOR = 0.5, 0.8


def linear() -> tuple[nn.Linear, DataLoader[tuple[torch.Tensor, ...]], torch.Tensor]:
    """A linear model at its MAP estimate, the data, and the exact posterior covariance."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=rng)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + NOISE * torch.randn(40, 1, generator=rng)
    precision = x.T @ x / NOISE**2 + torch.eye(3) / PRIOR**2
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.solve(precision, x.T @ y / NOISE**2).T)
    return model, DataLoader(TensorDataset(x, y), 10), precision.inverse()


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_a_linear_model_gets_its_exact_posterior(structure: str) -> None:
    model, batches, covariance = linear()
    posterior = bnn.fit_laplace(
        model, batches, Gaussian(NOISE), weights="all", structure=structure, prior_sd=PRIOR
    )
    x = torch.eye(3)
    prediction = posterior.predict(x, draws=4000)
    sd = covariance.diag().sqrt().unsqueeze(1)
    torch.testing.assert_close(prediction.epistemic_std, sd, rtol=0.05, atol=0)
    torch.testing.assert_close(prediction.std, (sd.square() + NOISE**2).sqrt(), rtol=0.02, atol=0)
    draws = torch.stack([posterior.draw(0, i)["weight"].flatten() for i in range(3000)])
    torch.testing.assert_close(draws.T.cov(), covariance, rtol=0.15, atol=5e-4)


def test_the_marginal_likelihood_finds_the_scale_of_the_weights() -> None:
    """With twenty weights drawn from N(0, 3^2) and little noise, s0 is about 3."""
    rng = torch.Generator().manual_seed(0)
    x, weights = torch.randn(200, 20, generator=rng), 3 * torch.randn(20, 1, generator=rng)
    y = x @ weights + 0.1 * torch.randn(200, 1, generator=rng)
    model = nn.Linear(20, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    batches = DataLoader(TensorDataset(x, y), 50)
    posterior = bnn.fit_laplace(model, batches, Gaussian(0.1), weights="all", structure="full")
    assert posterior.prior_sd == pytest.approx(float(weights.square().mean().sqrt()), rel=0.1)


@pytest.mark.parametrize("weights", ["last", "all"])
def test_probabilities_are_the_probit_ones_of_laplace_torch(weights: str) -> None:
    posterior = bnn.fit_laplace(network(), loader(64, 0), weights=weights, structure="diag", prior_sd=1.0)
    x, _ = rings(6, 1)
    theirs = posterior.approximation(x, pred_type="glm", link_approx="probit")
    torch.testing.assert_close(posterior.predict(x).probs, theirs)


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize("bias", [True, False])
def test_last_layer_covariances_are_those_of_the_jacobians(structure: str, bias: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3, bias=bias))
    posterior = bnn.fit_laplace(model, loader(64, 0), structure=structure, prior_sd=1.3)
    x, _ = rings(6, 1)
    f, V = last_layer_logits(posterior.approximation, x, structure)
    mean, covariance = posterior.approximation._glm_predictive_distribution(x)
    torch.testing.assert_close(f, mean)
    torch.testing.assert_close(V, covariance, rtol=1e-4, atol=1e-5)


def test_a_wider_prior_is_less_certain() -> None:
    model = network()
    x, _ = rings(30, 1)
    narrow, wide = (
        bnn.fit_laplace(model, loader(16, 0), prior_sd=sd).predict(x, 200).mutual_information.mean()
        for sd in (0.1, 3.0)
    )
    assert float(narrow) < float(wide)


def test_the_prior_can_be_chosen_on_validation_data() -> None:
    """The value chosen is no worse on these data than others of the grid."""
    model, held_out = network(), loader(64, 1)
    bnn.fit(model, loader(64, 0), method="plain", epochs=20, lr=1e-2)
    chosen = bnn.fit_laplace(model, loader(64, 0), prior_sd="validation", validation=held_out)

    def loss(prior_sd: float) -> float:
        posterior = bnn.fit_laplace(model, loader(64, 0), prior_sd=prior_sd)
        return nll(posterior, held_out, torch.device("cpu"))

    assert loss(chosen.prior_sd) <= min(loss(other) for other in (0.01, 0.1, 1.0, 10.0)) + 1e-6


class Head(nn.Module):
    """A last layer whose weight may be used before it, or whose output after it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body, self.head, self.how = nn.Linear(2, 2), nn.Linear(2, 2), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "before":
            x = x @ self.head.weight
        out: torch.Tensor = self.head(self.body(x).tanh())
        return out.log_softmax(1) if self.how == "after" else out


def test_a_curvature_that_would_be_wrong_is_refused() -> None:
    """laplace-torch's own messages, or factors several times off, otherwise."""
    with pytest.raises(
        ValueError, match=r"head.weight is used 2 times .* use weights='all', structure='diag'"
    ):
        bnn.fit_laplace(Head("before"), loader(8, 0))
    with pytest.raises(ValueError, match=r"head.weight is used 2 times .*'kron' counts one"):
        bnn.fit_laplace(Head("before"), loader(8, 0), weights="all")
    with pytest.raises(ValueError, match=r"more after its last layer, .* use weights='all'"):
        bnn.fit_laplace(Head("after"), loader(8, 0))
    frozen = Head("last")
    frozen.body.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="a part of body is frozen"):
        bnn.fit_laplace(frozen, loader(8, 0), weights="all")
    for how in ("before", "after"):
        bnn.fit_laplace(Head(how), loader(8, 0), weights="all", structure="diag", prior_sd=1.0)


def test_what_laplace_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="go together"):
        bnn.fit_laplace(network(), loader(8, 0), prior_sd="validation")
    with pytest.raises(ValueError, match="did you mean 'kron'"):
        bnn.fit_laplace(network(), loader(8, 0), structure="kronecker")
    with pytest.raises(ValueError, match="choose from all, last"):
        bnn.fit_laplace(network(), loader(8, 0), weights="first")
    with pytest.raises(ValueError, match="categorical and gaussian"):
        bnn.fit_laplace(network(), loader(8, 0), "poisson")
    with pytest.raises(ValueError, match="got LayerNorm"):
        bnn.fit_laplace(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), loader(8, 0))
    with pytest.raises(ValueError, match="use weights='all'"):
        bnn.fit_laplace(nn.Linear(2, 2), loader(8, 0))
    posterior = bnn.fit_laplace(network(), loader(8, 0), prior_sd=1.0)
    with pytest.raises(ValueError, match="leave out recalibrate"):
        posterior.predict(rings(2, 0)[0], recalibrate=[])
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ImportError, match=r"bayescore\[laplace\]"):
        bnn.fit_laplace(network(), loader(8, 0))
