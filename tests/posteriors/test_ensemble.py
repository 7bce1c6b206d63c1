"""An ensemble is the mixture of its members with equal weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import bayescore.nn as bnn
from bayescore.posteriors.likelihoods import Gaussian
from toy_problem import POSTERIORS, loader, network, rings


def test_a_deep_ensemble_averages_the_probabilities_of_its_members() -> None:
    members = [bnn.PointPosterior(network(seed=seed)) for seed in range(3)]
    x, _ = rings(10, 0)
    rows = torch.stack([member.predict(x).probs for member in members])
    prediction = bnn.Ensemble(members).predict(x, draws=1)
    torch.testing.assert_close(prediction.probs, rows.mean(0))
    single = -(rows * rows.log()).sum(2).mean(0)
    torch.testing.assert_close(prediction.mutual_information, prediction.entropy - single)
    assert prediction.draws == 3


def test_members_of_different_kinds_weigh_the_same() -> None:
    point, gaussian = (
        POSTERIORS[kind](network(seed=seed)) for seed, kind in enumerate(("point", "gaussian"))
    )
    x, _ = rings(10, 0)
    prediction = bnn.Ensemble([point, gaussian]).predict(x, draws=40)
    expected = (point.predict(x).probs + gaussian.predict(x, 20, seed=1).probs) / 2
    torch.testing.assert_close(prediction.probs, expected)


def test_draws_are_split_over_the_members_and_rounded_up() -> None:
    members = [POSTERIORS["gaussian"](network(seed=seed)) for seed in range(3)]
    assert bnn.Ensemble(members).predict(rings(4, 0)[0], draws=10).draws == 12


def test_values_are_a_mixture_of_the_members_noise_levels() -> None:
    """Two constant networks, N(-1, 0.1^2) and N(1, 2^2): the mixture's mean and variance are known."""
    members = []
    for level, noise in ((-1.0, 0.1), (1.0, 2.0)):
        model = nn.Linear(1, 1)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.fill_(level)
        members.append(bnn.PointPosterior(model, likelihood=Gaussian(noise)))
    prediction = bnn.Ensemble(members).predict(torch.zeros(2, 1))
    torch.testing.assert_close(prediction.mean, torch.zeros(2, 1))
    torch.testing.assert_close(prediction.std, torch.full((2, 1), (1 + (0.01 + 4) / 2) ** 0.5))
    y = torch.tensor([[-1.0], [1.0]])
    parts = [torch.distributions.Normal(-1.0, 0.1), torch.distributions.Normal(1.0, 2.0)]
    density = sum(part.log_prob(y).exp() for part in parts) / 2
    torch.testing.assert_close(prediction.log_prob(y), density.log().squeeze(1))  # type: ignore[union-attr]
    low, high = prediction.interval(0.9)
    assert (low < -1).all()
    assert (high > 1).all()


def test_ensembles_of_different_architectures_are_loaded_into_a_model_each(tmp_path: Path) -> None:
    def small() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))

    made = bnn.Ensemble([bnn.PointPosterior(network()), bnn.PointPosterior(small())])
    made.save(tmp_path / "both")
    loaded = bnn.Posterior.load(tmp_path / "both", [network(seed=7), small()])
    x, _ = rings(5, 0)
    assert torch.equal(loaded.predict(x).probs, made.predict(x).probs)
    with pytest.raises(ValueError, match="another model"):
        bnn.Posterior.load(tmp_path / "both", network())
    with pytest.raises(ValueError, match="ensemble of 2"):
        bnn.Posterior.load(tmp_path / "both", [network()])


def test_trained_members_differ_repeat_under_the_seed_and_beat_their_mean() -> None:
    runs = [
        bnn.fit_ensemble(lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)), loader(128, 0),
                         members=3, epochs=10, lr=1e-2, seed=4)
        for _ in range(2)
    ]  # fmt: skip
    x, y = rings(400, 2)
    one, two = (run.predict(x) for run in runs)
    assert torch.equal(one.probs, two.probs)
    rows = [member.predict(x) for member in runs[0].members]
    assert not torch.equal(rows[0].probs, rows[1].probs)
    single = sum(-float(row.log_prob(y).mean()) for row in rows) / 3
    assert -float(one.log_prob(y).mean()) < single
    assert runs[0].status.count("member") == 3


def test_what_is_no_ensemble_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        bnn.Ensemble([])
    with pytest.raises(TypeError, match="posteriors"):
        bnn.Ensemble([network()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="one likelihood"):
        bnn.Ensemble([bnn.PointPosterior(network()), bnn.PointPosterior(network(), likelihood="gaussian")])
    with pytest.raises(TypeError, match="fresh weights"):
        bnn.fit_ensemble(network(), loader(32, 0))
    with pytest.raises(ValueError, match="fit_ensemble"):
        bnn.fit(network(), loader(32, 0), method="ensemble")
