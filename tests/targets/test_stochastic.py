"""Noisy and mini-batch scores are unbiased, of the stated size, and reproducible stream by stream."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.rng import Streams
from bayescore.targets import Banana, Gaussian, LogDensity, MiniBatchPosterior, NoisyScore, ScoreFunction
from cases import F64, normal, streams, z_score


def regression(size: int = 40, batch_size: int | None = 5) -> MiniBatchPosterior:
    """A logistic regression with a normal prior."""
    features, labels = normal(size, 2, seed=1), (normal(size, seed=2) > 0).double()

    def log_likelihood(theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = theta @ x.T
        return y * torch.nn.functional.logsigmoid(logits) + (1 - y) * torch.nn.functional.logsigmoid(-logits)

    def prior(theta: torch.Tensor) -> torch.Tensor:
        return -0.5 * theta.square().sum(-1)

    return MiniBatchPosterior(log_likelihood, (features, labels), prior, dim=2, batch_size=batch_size)


@pytest.mark.parametrize("inner", [Gaussian.random(3), Banana(3)], ids=["gaussian", "banana"])
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_noisy_score_is_unbiased_with_one_scale_for_all_coordinates(inner, beta: float) -> None:
    target, n = NoisyScore(inner, beta), 40_000
    x = normal(1, 1, 3)
    noisy = target.score(x.expand(1, n, 3).contiguous(), streams())[0]
    exact = inner.score(x)[0, 0]
    assert z_score(noisy, exact).abs().max() < 4.5
    error = noisy - exact
    scale = beta * exact.abs().max()  # beta |s|_inf, eq. (noisy_score)
    assert z_score(error.square(), scale.square()).abs().max() < 4.5
    cross = torch.stack([error[:, 0] * error[:, 1], error[:, 0] * error[:, 2], error[:, 1] * error[:, 2]], -1)
    assert z_score(cross).abs().max() < 4.5, "the coordinates' noise is independent"
    assert z_score((error / scale).pow(4), 3.0).abs().max() < 4.5, "and normal"


def test_noise_vanishes_at_the_mode() -> None:
    inner = Gaussian.random(3)
    x = inner.mean.expand(1, 4, 3)
    assert NoisyScore(inner, 10.0).score(x, streams()).abs().max() < 1e-12


def test_no_noise_gives_the_exact_score_and_needs_no_streams() -> None:
    inner, x = Gaussian.random(3), normal(1, 4, 3)
    assert torch.equal(NoisyScore(inner, 0.0).score(x), inner.score(x))


def test_noise_comes_from_the_stream_of_each_fit() -> None:
    inner, x = Gaussian.random(3), normal(1, 4, 3).expand(2, 4, 3)
    together = NoisyScore(inner, 1.0).score(x, Streams([5, 6]))
    alone = NoisyScore(inner, 1.0).score(x[1:], Streams([6]))
    assert torch.equal(together[1:], alone)


def test_noisy_target_keeps_density_draws_and_dimension() -> None:
    inner = Gaussian.random(3)
    target, x = NoisyScore(inner, 0.3), normal(4, 3)
    assert target.stochastic
    assert target.normalised
    assert target.has_samples
    assert torch.equal(target.log_prob(x), inner.log_prob(x))
    assert torch.equal(target.sample(3, seed=1), inner.sample(3, seed=1))
    assert not NoisyScore(LogDensity(lambda x: -x.square().sum(-1), 2), 0.3).has_samples
    assert not NoisyScore(ScoreFunction(lambda x: -x, 2), 0.3).has_density


def test_noisy_targets_stack_if_they_share_beta() -> None:
    a, b = (NoisyScore(Gaussian.random(3, seed=s), 0.3) for s in (0, 1))
    stacked, x = NoisyScore.stack([a, b]), normal(2, 4, 3)
    assert stacked.batch_shape == (2,)
    together = stacked.score(x, Streams([1, 2]))
    assert torch.equal(together[:1], a.score(x[:1], Streams([1])))
    with pytest.raises(ValueError, match="must share beta"):
        NoisyScore.stack([a, NoisyScore(Gaussian.random(3), 0.4)])


@pytest.mark.parametrize("beta", [-0.1, float("nan"), float("inf")])
def test_an_impossible_noise_level_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match=f"beta.*{beta}"):
        NoisyScore(Gaussian.random(3), beta)


@pytest.mark.parametrize(
    "target", [NoisyScore(Gaussian.random(2), 0.1), regression()], ids=["noisy", "minibatch"]
)
def test_a_random_score_without_streams_says_what_it_needs(target) -> None:
    with pytest.raises(TypeError, match="needs `streams`"):
        target.score(normal(1, 3, 2))


@pytest.mark.parametrize("batch_size", [1, 5, 39])
def test_minibatch_score_is_unbiased(batch_size: int) -> None:
    target, exact = regression(batch_size=batch_size), regression(batch_size=None)
    x = normal(1, 1, 2, seed=3)
    draws = target.score(x.expand(1500, 1, 2), streams(1500))[:, 0]  # 1500 fits, each with its own mini-batch
    assert z_score(draws, exact.score(x)[0, 0]).abs().max() < 4.5


@given(size=st.integers(1, 20), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_the_average_over_all_data_taken_one_by_one_is_the_exact_score(size: int, seed: int) -> None:
    """Unbiased without statistics: the mean of (2) over every mini-batch of one datum is (1)."""
    whole, x = regression(size, None), normal(1, 3, 2, seed=seed)

    class InTurn(Streams):
        def subsets(self, population: int, size: int) -> torch.Tensor:
            return torch.tensor([[self.turn]])

    parts = []
    for turn in range(size):
        random = InTurn([0])
        random.turn = turn
        parts.append(regression(size, 1).score(x, random) if size > 1 else whole.score(x))
    torch.testing.assert_close(torch.stack(parts).mean(0), whole.score(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("batch_size", [None, 40])
def test_the_full_batch_is_exact_and_not_stochastic(batch_size: int | None) -> None:
    target, x = regression(batch_size=batch_size), normal(2, 3, 2)
    assert not target.stochastic
    value = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(target.log_prob(value).sum(), value)
    torch.testing.assert_close(target.score(x), expected, rtol=1e-12, atol=1e-12)


def test_log_prob_of_a_minibatch_posterior_uses_all_data() -> None:
    x = normal(2, 3, 2)
    assert torch.equal(regression(batch_size=5).log_prob(x), regression(batch_size=None).log_prob(x))


def test_points_of_one_step_share_the_minibatch_and_fits_draw_their_own() -> None:
    target = regression(batch_size=3)
    x = normal(1, 1, 2).expand(2, 4, 2)
    score = target.score(x, Streams([1, 2]))
    assert torch.equal(score[0, 0], score[0, 3])
    assert not torch.equal(score[0, 0], score[1, 0])
    assert torch.equal(score[1:], target.score(x[1:], Streams([2])))


def test_subsets_are_drawn_without_replacement_and_uniformly() -> None:
    random = streams(2)
    draws = torch.stack([random.subsets(7, 3) for _ in range(2000)])  # (n, F, 3)
    assert all(len(set(row.tolist())) == 3 for row in draws[:, 0])
    share = torch.stack([(draws[:, 0] == i).any(-1).double() for i in range(7)], -1)
    assert z_score(share, 3 / 7).abs().max() < 4.5


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1; got 0"),
        ({"batch_size": 41}, ValueError, "batch_size 41 exceeds the 40 data"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number; got 2.5"),
    ],
)
def test_impossible_minibatches_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        regression(**options)


def test_data_of_different_lengths_are_refused_with_a_sentence() -> None:
    like, prior = (lambda t, *d: t), (lambda t: t.sum(-1))
    with pytest.raises(ValueError, match=r"share a first dimension of at least 1; got \[3, 4\]"):
        MiniBatchPosterior(like, (torch.zeros(3), torch.zeros(4)), prior, dim=1)
    with pytest.raises(ValueError, match="share a first dimension"):
        MiniBatchPosterior(like, torch.zeros(0), prior, dim=1)


def test_a_likelihood_that_sums_over_the_data_is_refused_with_a_sentence() -> None:
    target = MiniBatchPosterior(
        lambda theta, y: -(y - theta).square().sum(-1),
        torch.zeros(9, dtype=F64),
        lambda t: -t.square().sum(-1),
        dim=1,
    )
    with pytest.raises(
        ValueError, match=r"log_likelihood must map points \(4, 1\) to \(4, 9\); it returned \(4,\)"
    ):
        target.log_prob(normal(4, 1))
