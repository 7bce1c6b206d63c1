"""A posterior as the next prior: halves of the data, in turn or side by side, are worth the whole.

The model is linear with Gaussian noise, and its columns are orthogonal in each half, so that the posterior is
a Gaussian with a diagonal covariance: precision 1 + sum x^2, mean X'y / precision.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from bayescore.nn.prior import combined

SIZE = 32
EXACT = {"epochs": 200, "draws": 2, "damping": 3.0, "init_sd": 0.2}  # two draws: the sds are exact


def halves():
    rng = torch.Generator().manual_seed(0)
    signs = torch.linalg.qr(torch.randn(SIZE, 3, generator=rng, dtype=torch.float64))[0] * SIZE**0.5
    xs = [(signs * scale).float() for scale in (1.0, 0.6)]
    w = torch.tensor([[1.0, -0.5, 0.2]])
    return [(x, x @ w.T + torch.randn(SIZE, 1, generator=rng)) for x in xs]


def exact(parts):
    x, y = (torch.cat(tensors).double() for tensors in zip(*parts, strict=True))
    precision = 1 + x.square().sum(0)
    return (x.T @ y).squeeze(1) / precision, precision.rsqrt()


def learned(part, **options):
    loader = DataLoader(TensorDataset(*part), batch_size=SIZE)
    common = {"progress": False, **EXACT}
    return bnn.fit(
        nn.Linear(3, 1, bias=False), loader, "gaussian", "calibrated", **common, **options
    ).posterior


def check(posterior, parts):
    mean, sd = exact(parts)
    found, width = posterior.mean["weight"][0].double(), posterior.sd["weight"][0].double()
    assert ((found - mean) / sd).abs().max() < 0.05
    assert (width / sd - 1).abs().max() < 0.03  # without the prior it would be 88 %


def start():
    net = nn.Linear(3, 1, bias=False)
    return bnn.GaussianPosterior(
        net, {"weight": torch.zeros(1, 3)}, {"weight": torch.ones(1, 3)}, likelihood="gaussian"
    )


@pytest.fixture(scope="module")
def first():
    return learned(halves()[0], prior=start())


def test_one_half_after_the_other_gives_the_posterior_of_the_whole(first):
    one, two = halves()
    check(first, [one])
    check(learned(two, prior=first), [one, two])


def test_halves_side_by_side_are_combined_to_the_posterior_of_the_whole(first):
    one, two = halves()
    check(combined([first, learned(two, prior=start())], start()), [one, two])


def test_the_prior_is_a_term_of_the_gradient():
    prior = start()
    net = nn.Linear(3, 1, bias=False)
    term = bnn.training.GaussianPrior(prior, list(net.named_parameters()), 0.5)
    found = torch.autograd.grad(term.loss(), net.weight)[0]
    assert torch.allclose(found, 0.5 * net.weight)


@pytest.mark.parametrize("method", ["proximal", "advi", "plain"])
def test_every_method_stays_near_a_strong_prior(method):
    part, _ = halves()
    net = nn.Linear(3, 1, bias=False)
    strong = bnn.GaussianPosterior(
        net, {"weight": torch.full((1, 3), 2.0)}, {"weight": torch.full((1, 3), 1e-3)}, likelihood="gaussian"
    )
    loader = DataLoader(TensorDataset(*part), batch_size=SIZE)
    fit = bnn.fit(nn.Linear(3, 1, bias=False), loader, "gaussian", method, epochs=30, prior=strong, lr=1e-3)
    with fit.posterior.mean_() as found:
        assert (found.weight - 2).abs().max() < 0.02


def test_another_prior_is_refused_by_a_checkpoint(tmp_path):
    part, _ = halves()
    loader = DataLoader(TensorDataset(*part), batch_size=SIZE)
    first = start()
    bnn.fit(
        nn.Linear(3, 1, bias=False), loader, "gaussian", prior=first, epochs=1, checkpoint=tmp_path / "run"
    )
    other = bnn.GaussianPosterior(first.model, first.mean, {"weight": torch.full((1, 3), 0.5)})
    with pytest.raises(ValueError, match="its prior is"):
        bnn.fit(
            nn.Linear(3, 1, bias=False),
            loader,
            "gaussian",
            prior=other,
            epochs=1,
            checkpoint=tmp_path / "run",
        )


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"method": "swag", "epochs": 3}, ValueError, "prior= goes with proximal"),
        ({"prior_mean": "current"}, ValueError, "prior= says what prior_mean says"),
        ({"prior": 3}, TypeError, "prior must be a GaussianPosterior; got a int"),
    ],
)
def test_what_a_prior_does_not_go_with_is_named(options, error, sentence):
    part, _ = halves()
    loader = DataLoader(TensorDataset(*part), batch_size=SIZE)
    with pytest.raises(error, match=sentence):
        bnn.fit(nn.Linear(3, 1, bias=False), loader, "gaussian", **{"prior": start(), **options})


def test_posteriors_wider_than_their_prior_are_not_combined():
    narrow = start()
    wide = bnn.GaussianPosterior(narrow.model, narrow.mean, {"weight": torch.full((1, 3), 2.0)})
    with pytest.raises(ValueError, match="3 weights of 'weight' would have no precision left"):
        combined([wide, wide], narrow)


def test_a_last_layer_on_a_fixed_body_is_bayesian_linear_regression():
    part, _ = halves()
    torch.manual_seed(0)
    body = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        body.weight.copy_(torch.linalg.qr(torch.randn(3, 3))[0])  # the features stay orthogonal
    net = nn.Sequential(body, nn.Linear(3, 1, bias=False))
    before = body.weight.detach().clone()
    loader = DataLoader(TensorDataset(*part), batch_size=SIZE)
    fit = bnn.fit(net, loader, "gaussian", "calibrated", bayesian="last", point_lr=0, **EXACT)
    assert torch.equal(body.weight, before)
    assert body.weight.requires_grad
    features = (part[0] @ before.T).double()
    precision = 1 + features.square().sum(0)
    mean = (features.T @ part[1].double()).squeeze(1) / precision
    found, sd = fit.posterior.mean["1.weight"][0].double(), fit.posterior.sd["1.weight"][0].double()
    assert ((found - mean) * precision.sqrt()).abs().max() < 0.05
    assert (sd * precision.sqrt() - 1).abs().max() < 0.03
