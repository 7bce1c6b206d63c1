"""A posterior with an anchor: unbiased scores, exact at the anchor, and the Gaussian of all data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

import bayescore as bs
from bayescore.targets import AnchoredPosterior, MiniBatchPosterior
from bayescore.targets import minibatch as minibatch_module
from cases import normal, streams, z_score

N, D = 20_000, 5


def logistic(batch_size: int | None = 100, size: int = N) -> MiniBatchPosterior:
    """A logistic regression with correlated features."""
    X = normal(size, D, seed=1) + normal(size, 1, seed=2)
    y = (torch.sigmoid(X @ normal(D, seed=3)) > (normal(size, seed=4).erf() + 1) / 2).double()

    def log_likelihood(theta: Tensor, X: Tensor, y: Tensor) -> Tensor:
        logits = theta @ X.mT
        return y * logits - softplus(logits)

    def log_prior(theta: Tensor) -> Tensor:
        return -0.5 * theta.square().sum(-1)

    return MiniBatchPosterior(log_likelihood, (X, y), log_prior, D, batch_size=batch_size)


def exact(posterior: MiniBatchPosterior) -> tuple[Tensor, Tensor]:
    """The mode over all data, and the covariance there."""
    whole = posterior.subset(posterior.num_data, 0)
    x = torch.zeros(1, D, dtype=torch.float64)
    for _ in range(30):
        H = whole.hessian_product(x.expand(D, D), torch.eye(D, dtype=torch.float64))
        x = x - torch.linalg.solve(H, whole.score(x)[0])
    return x[0], torch.linalg.inv(-H)


@pytest.fixture(scope="module")
def anchored() -> AnchoredPosterior:
    return AnchoredPosterior(logistic(), rows=4000)


def test_the_score_at_the_anchor_is_that_of_all_data(anchored: AnchoredPosterior) -> None:
    whole = logistic(None)
    at = anchored.anchor.expand(1, 3, D)
    torch.testing.assert_close(anchored.score(at, streams()), whole.score(at), rtol=1e-9, atol=1e-7)
    gradient = anchored.log_prob_and_score(at)[1]
    torch.testing.assert_close(gradient, whole.score(at), rtol=1e-9, atol=1e-7)


def test_scores_are_unbiased_and_quieter_than_those_of_a_batch(anchored: AnchoredPosterior) -> None:
    mean, factor = anchored.gaussian
    x = (mean + factor @ normal(D, seed=8)).expand(1, 1, D)
    many = 500
    ours = torch.cat([anchored.score(x, s)[0] for s in [streams()] for _ in range(many)])
    plain = anchored.posterior
    theirs = torch.cat([plain.score(x, s)[0] for s in [streams(1)] for _ in range(many)])
    assert z_score(ours, logistic(None).score(x)[0, 0]).abs().max() < 4.5
    assert (ours.std(0) < 0.1 * theirs.std(0)).all()


def test_the_density_has_the_score_as_its_gradient(anchored: AnchoredPosterior) -> None:
    x = anchored.gaussian[0].expand(2, D).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(anchored.log_prob(x).sum(), x)
    torch.testing.assert_close(gradient, anchored.log_prob_and_score(x)[1])


def test_the_fit_of_mini_batches_is_that_of_all_data(anchored: AnchoredPosterior) -> None:
    mean, covariance = exact(logistic())
    sd = covariance.diagonal().sqrt()
    fit = bs.fit(anchored, seed=0, steps=300, progress=False)
    assert ((fit.family.mean - mean).abs() / sd).max() < 0.05
    assert (fit.family.covariance.diagonal().sqrt() / sd).log().abs().max() < 0.05
    assert "anchor" in " ".join(fit.notes)
    assert anchored.passes < 8
    assert fit.counts.search_calls == anchored.evaluations // 100


def test_sums_over_slices_are_sums_over_all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    target, x = logistic(None, 500), normal(2, 3, D)
    value, score = target.log_prob_and_score(x)
    hessian = target.hessian_product(x, torch.ones_like(x))
    monkeypatch.setattr(minibatch_module, "MOST_NUMBERS", 6 * 70)
    sliced_value, sliced_score = target.log_prob_and_score(x)
    torch.testing.assert_close(sliced_value, value)
    torch.testing.assert_close(sliced_score, score)
    torch.testing.assert_close(target.log_prob(x), value)
    torch.testing.assert_close(target.hessian_product(x, torch.ones_like(x)), hessian)


def test_a_subset_stands_for_all_data() -> None:
    target = logistic(None, 400)
    part = target.subset(100, 3)
    x = normal(2, D)
    rows = part.data
    by_hand = target.log_prior(x) + 4 * target.log_likelihood(x, *rows).sum(-1)
    torch.testing.assert_close(part.log_prob(x), by_hand)
    torch.testing.assert_close(target.subset(400, 3).log_prob(x), target.log_prob(x))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="MiniBatchPosterior with a batch_size"):
        AnchoredPosterior(logistic(None, 200))
    with pytest.raises(ValueError, match=r"start must be torch.float64 of the shape \(5,\)"):
        AnchoredPosterior(logistic(10, 200), start=torch.zeros(3, dtype=torch.float64))
    big = MiniBatchPosterior(
        lambda t, y: t[:, :1] * y, torch.zeros(9), lambda t: -t.square().sum(-1), 401, batch_size=2
    )
    with pytest.raises(ValueError, match="at most 400 dimensions; got 401"):
        AnchoredPosterior(big)
