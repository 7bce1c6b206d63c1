"""Calibration and scores of class probabilities, against torchmetrics and by hand."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from classifiers import classifier

from bayescore.metrics import all_class_ece, brier, ece, ece_floor, error, evaluate, mce, nll, reliability
from bayescore.nn import ClassPrediction
from bayescore.operators import declare_vision_operators


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    declare_vision_operators()
    return pytest.importorskip("torchmetrics.functional.classification")


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("bins", [10, 15])
def test_top_label_calibration_errors_are_those_of_torchmetrics(
    oracle: ModuleType, sharpness: float, bins: int
) -> None:
    probs, labels = classifier(sharpness=sharpness)
    for norm, ours in (("l1", ece), ("max", mce)):
        theirs = oracle.multiclass_calibration_error(probs, labels, 5, n_bins=bins, norm=norm)
        assert ours(probs, labels, bins) == pytest.approx(float(theirs), rel=1e-4)  # theirs is float32


def test_error_and_likelihood_are_those_of_torchmetrics_and_torch(oracle: ModuleType) -> None:
    probs, labels = classifier()
    accuracy = oracle.multiclass_accuracy(probs, labels, 5, average="micro")
    assert error(probs, labels) == pytest.approx(1 - float(accuracy), abs=1e-6)
    assert nll(probs, labels) == pytest.approx(float(torch.nn.functional.nll_loss(probs.log(), labels)))


def test_the_brier_score_of_two_classes_is_twice_the_squared_error() -> None:
    probs, labels = classifier(k=2)
    squared = (probs[:, 1] - labels).square().mean()
    assert brier(probs, labels) == pytest.approx(2 * float(squared))
    certain = torch.eye(3)[torch.tensor([0, 1, 2])]
    assert brier(certain, torch.tensor([0, 1, 2])) == 0
    assert brier(certain, torch.tensor([1, 2, 0])) == 2


def test_all_class_error_is_the_binned_gap_over_all_pairs_in_percent() -> None:
    """By hand: 4 data, 2 classes, 2 bins; bin 0 holds .1, .2, .4, .3, bin 1 their complements."""
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0])
    low = abs((0 + 0 + 1 + 1) / 4 - (0.1 + 0.2 + 0.4 + 0.3) / 4)
    high = abs((1 + 1 + 0 + 0) / 4 - (0.9 + 0.8 + 0.6 + 0.7) / 4)
    assert all_class_ece(probs, labels, 2) == pytest.approx(100 * (low / 2 + high / 2))


def test_all_class_error_of_two_classes_is_the_top_label_error_with_mirrored_bins() -> None:
    """With an even number of bins every pair (p, 1 - p) has gaps of one size in mirrored bins."""
    probs, labels = classifier(k=2, sharpness=2.0)
    assert all_class_ece(probs, labels, 10) == pytest.approx(100 * ece(probs, labels, 10), rel=1e-9)


def test_bins_of_equal_mass_hold_equal_shares_and_keep_ties_together() -> None:
    probs, labels = classifier(n=3000)
    curve = reliability(probs, labels, 15, by="mass")
    torch.testing.assert_close(curve.share, torch.full((15,), 1 / 15, dtype=torch.float64))
    tied = torch.tensor([[0.7, 0.3]]).repeat(100, 1)
    curve = reliability(tied, torch.zeros(100, dtype=torch.long), 15, by="mass")
    assert curve.share.tolist() == [1.0]
    shuffle = torch.randperm(3000, generator=torch.Generator().manual_seed(1))
    assert ece(probs[shuffle], labels[shuffle], by="mass") == pytest.approx(ece(probs, labels, by="mass"))


def test_certainty_belongs_to_the_last_bin() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05]], dtype=torch.float64)
    curve = reliability(probs, torch.tensor([1, 0]), 10)
    assert curve.share.tolist() == [1.0]
    assert curve.ece == pytest.approx(0.975 - 0.5)


def test_a_reliability_curve_has_the_overall_accuracy_and_confidence() -> None:
    probs, labels = classifier(sharpness=3.0)
    curve = reliability(probs, labels)
    assert float((curve.share * curve.accuracy).sum()) == pytest.approx(1 - error(probs, labels))
    assert float((curve.share * curve.confidence).sum()) == pytest.approx(float(probs.max(1).values.mean()))
    assert curve.ece <= curve.mce


def test_a_calibrated_classifier_lies_within_its_noise_floor_and_a_sharpened_one_far_above() -> None:
    probs, labels = classifier(n=2000, k=10)
    floor = ece_floor(probs)
    assert 0 < floor.mean < floor.quantile < 2 * floor.mean
    assert all_class_ece(probs, labels) < 1.2 * floor.quantile
    sharp, labels = classifier(n=2000, k=10, sharpness=2.0)
    assert all_class_ece(sharp, labels) > 3 * ece_floor(sharp).quantile


def test_the_noise_floor_is_the_mean_error_of_calibrated_labels() -> None:
    probs, _ = classifier(n=1000, k=4)
    rng = torch.Generator().manual_seed(9)
    values = [all_class_ece(probs, torch.multinomial(probs, 1, generator=rng).squeeze(1)) for _ in range(300)]
    floor = ece_floor(probs, draws=300)
    assert floor.mean == pytest.approx(sum(values) / 300, rel=0.05)
    assert ece_floor(probs, draws=5, seed=3) == ece_floor(probs, draws=5, seed=3)
    assert ece_floor(probs, classes="top").mean < 0.1


def test_the_noise_floor_falls_with_the_square_root_of_the_data() -> None:
    small, _ = classifier(n=500)
    large, _ = classifier(n=8000)
    assert ece_floor(small).mean / ece_floor(large).mean == pytest.approx(4, rel=0.3)


def test_evaluate_gives_every_score_of_a_prediction() -> None:
    probs, labels = classifier(n=500)
    entropy = torch.zeros(500, dtype=torch.float64)
    inside = ClassPrediction(1, probs, entropy)
    outside = ClassPrediction(1, torch.full_like(probs, 0.2), entropy)
    scores = evaluate(inside, labels, outside)
    assert set(scores) == {
        "error", "nll", "brier", "ece", "ece_mass", "mce", "all_class_ece", "all_class_ece_mass",
        "all_class_ece_floor", "all_class_ece_floor95", "aurc", "auroc_entropy", "auroc_mutual_information",
    }  # fmt: skip
    assert all(math.isfinite(value) for value in scores.values())
    assert scores["auroc_entropy"] == 1
    assert {k: v for k, v in scores.items() if "auroc" not in k} == evaluate(probs, labels)


def test_binary_outcomes_are_two_classes() -> None:
    one = torch.tensor([[0.9], [0.2], [0.6]])
    y = torch.tensor([[1.0], [0.0], [0.0]])
    scores = evaluate(ClassPrediction(1, one, torch.zeros(3, 1), binary=True), y)
    assert scores == evaluate(torch.cat([1 - one, one], 1), y.flatten().long())
    assert scores["error"] == pytest.approx(1 / 3)


def test_what_is_not_a_set_of_probabilities_is_refused() -> None:
    probs, labels = classifier(n=10)
    with pytest.raises(ValueError, match="logits"):
        ece(4 * probs - 1, labels)
    with pytest.raises(ValueError, match=r"must lie in 0\.\.4"):
        nll(probs, labels + 5)
    with pytest.raises(ValueError, match="one for each row"):
        brier(probs, labels[:5])
    with pytest.raises(ValueError, match=r"\(N, K\)"):
        error(probs[:, 0], labels)
    with pytest.raises(ValueError, match="did you mean 'mass'"):
        ece(probs, labels, by="mas")
    with pytest.raises(TypeError, match="two class predictions"):
        evaluate(probs, labels, probs)
    with pytest.raises(TypeError, match=r"as in evaluate\(fit\.predict\(x\), y\)"):
        evaluate([0.5], labels)
