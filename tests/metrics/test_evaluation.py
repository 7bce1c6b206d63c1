"""One dictionary of metrics, whatever was predicted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescore.metrics import evaluate, nll
from bayescore.plotting import plot_reliability, plot_risk_coverage, plot_values
from bayescore.posteriors import ClassPrediction, ValuePrediction
from bayescore.posteriors.likelihoods import Gaussian, HeteroscedasticGaussian, Poisson


def normal(n: int = 4000) -> tuple[ValuePrediction, Tensor]:
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(n, 1, generator=rng, dtype=torch.float64)
    y = mean + 2 * torch.randn(n, 1, generator=rng, dtype=torch.float64)
    return ValuePrediction(1, mean.unsqueeze(0), Gaussian(2.0)), y


def test_values_with_the_right_noise_have_the_scores_of_a_calibrated_normal() -> None:
    prediction, y = normal()
    scores = evaluate(prediction, y)
    assert scores["nll"] == pytest.approx(math.log(2) + 0.5 * math.log(2 * math.pi * math.e), abs=0.03)
    assert scores["rmse"] == pytest.approx(2, rel=0.03)
    assert scores["crps"] == pytest.approx(2 / math.sqrt(math.pi), rel=0.03)  # of N(m, sd^2): sd/sqrt(pi)
    assert scores["coverage_90"] == pytest.approx(0.9, abs=0.015)
    assert scores["width_90"] == pytest.approx(2 * 1.6449 * 2, rel=1e-3)
    assert scores["width_50"] == pytest.approx(2 * 0.6745 * 2, rel=1e-3)
    assert scores["pit_distance"] < 1.63 / math.sqrt(len(y))  # the 1 % level of Kolmogorov's test
    too_sure = evaluate(ValuePrediction(1, prediction.outputs, Gaussian(0.5)), y)
    assert too_sure["pit_distance"] > 0.2
    assert too_sure["crps"] > scores["crps"]


def test_values_may_be_a_list_of_one_number_per_row() -> None:
    prediction, y = normal(20)
    assert evaluate(prediction, y[:, 0].tolist()) == pytest.approx(evaluate(prediction, y), rel=1e-5)
    with pytest.raises(ValueError, match=r"shape of the prediction's mean, \(20, 1\); got \(19, 1\)"):
        evaluate(prediction, y[1:])


def test_the_crps_is_the_integral_of_the_squared_distance_of_distributions() -> None:
    rng = torch.Generator().manual_seed(1)
    outputs = torch.randn(3, 2, 2, generator=rng, dtype=torch.float64)
    y = torch.tensor([[0.3], [-1.0]], dtype=torch.float64)
    grid = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    prediction = ValuePrediction(3, outputs, HeteroscedasticGaussian())
    for i in range(2):
        one = ValuePrediction(3, outputs[:, i : i + 1].expand(-1, len(grid), -1), prediction.likelihood)
        gap = one.cdf(grid[:, None])[:, 0] - (grid >= y[i]).double()
        assert float(prediction.crps(y)[i]) == pytest.approx(
            float(torch.trapezoid(gap.square(), grid)), abs=1e-4
        )


def test_counts_have_a_ranked_probability_score() -> None:
    rate = torch.full((1, 1, 1), math.log(3.0), dtype=torch.float64)
    prediction = ValuePrediction(1, rate, Poisson())
    terms = torch.distributions.Poisson(3.0).log_prob(torch.arange(60.0)).double().exp()
    at = torch.arange(60)
    expected = float((terms.cumsum(0) - (at >= 5).double()).square().sum())
    assert float(prediction.crps(torch.tensor([[5.0]]))) == pytest.approx(expected, abs=1e-5)


def test_the_two_parts_of_the_standard_deviation_add_up_in_squares() -> None:
    outputs = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(2))
    prediction = ValuePrediction(5, outputs, Gaussian([0.5, 2.0]))
    total = prediction.epistemic_std.square() + prediction.aleatoric_std.square()
    torch.testing.assert_close(prediction.std.square(), total)
    torch.testing.assert_close(prediction.aleatoric_std[0], torch.tensor([0.5, 2.0]))
    several = prediction.quantile([0.1, 0.5])
    torch.testing.assert_close(several[1], prediction.quantile(0.5))
    assert several.shape == (2, 4, 2)


def test_the_noise_is_a_number_learned_or_given() -> None:
    assert Gaussian("learned").noise_sd == 1.0
    assert Gaussian(0.25).noise_sd == pytest.approx(0.25)
    assert Gaussian([0.25, 4.0]).noise_sd == pytest.approx([0.25, 4.0])
    said = [Gaussian(noise).status for noise in (1.0, "learned", [0.25, 4.0])]
    assert said == ["noise fixed at 1", "noise 1", ""]
    with pytest.raises(ValueError, match="one for each output"):
        Gaussian([1.0, -1.0])


def test_every_position_of_a_map_is_a_datum_except_those_without_a_label() -> None:
    rng = torch.Generator().manual_seed(3)
    probs = torch.rand(2, 3, 4, 5, generator=rng).softmax(1)
    labels = torch.randint(0, 3, (2, 4, 5), generator=rng)
    flat = probs.permute(0, 2, 3, 1).reshape(-1, 3)
    assert evaluate(probs, labels) == evaluate(flat, labels.flatten())
    labels[0, 0] = -100
    kept = labels.flatten() >= 0
    assert evaluate(probs, labels)["nll"] == pytest.approx(nll(flat[kept], labels.flatten()[kept]))
    with pytest.raises(ValueError, match=r"one for each position"):
        evaluate(probs, labels[0])


def test_probabilities_may_be_an_array_as_predict_proba_returns_them() -> None:
    probs, labels = torch.rand(20, 3).softmax(1).double(), torch.arange(20) % 3
    assert evaluate(probs.numpy(), labels.numpy()) == evaluate(probs, labels)


def test_several_labels_at_once_count_one_by_one() -> None:
    probs = torch.tensor([[0.9, 0.2], [0.4, 0.7]])
    labels = torch.tensor([[1, 0], [1, 1]])
    prediction = ClassPrediction(1, probs, torch.zeros(2, 2), binary=True)
    scores = evaluate(prediction, labels)
    assert scores["error"] == 0.25
    expected = -torch.tensor([0.9, 0.8, 0.4, 0.7]).log().mean()
    assert scores["nll"] == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(ValueError, match="shape of the probabilities"):
        evaluate(prediction, labels[:, 0])


def test_plots_take_what_predict_returns() -> None:
    probs = torch.rand(50, 3, generator=torch.Generator().manual_seed(4)).softmax(1)
    prediction, y = ClassPrediction(1, probs, torch.zeros(50)), torch.arange(50) % 3
    assert len(plot_reliability({"ours": (prediction, y)}).axes) == 1
    assert len(plot_risk_coverage({"ours": (prediction, y)}).axes) == 1
    values, targets = normal(300)
    left, right = plot_values(values, targets).axes
    inside = left.lines[1].get_ydata()
    assert abs(float(inside[90]) - 90) < 6
    assert "90 %" in right.get_xlabel()
