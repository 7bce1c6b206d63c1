"""AUROC is the rank statistic, and risk-coverage curves do not depend on the order of the data."""

from __future__ import annotations

import pytest
import torch
from classifiers import classifier
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from bayescore.metrics import aurc, auroc, error, risk_coverage

scores = st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(lambda v: torch.tensor(v).double())


@given(scores, scores)
def test_auroc_is_the_share_of_ordered_pairs_with_ties_half(low: torch.Tensor, high: torch.Tensor) -> None:
    pairs = high[:, None] - low[None]
    expected = float(((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean())
    assert auroc(low, high) == pytest.approx(expected)
    assert auroc(low, high) + auroc(high, low) == pytest.approx(1)


def test_auroc_is_the_mann_whitney_statistic() -> None:
    rng = torch.Generator().manual_seed(0)
    low, high = torch.randn(300, generator=rng), torch.randn(200, generator=rng) + 0.5
    statistic = mannwhitneyu(high.numpy(), low.numpy()).statistic
    assert auroc(low, high) == pytest.approx(statistic / (300 * 200))


def test_auroc_refuses_scores_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="not numbers"):
        auroc(torch.tensor([0.0, float("nan")]), torch.ones(2))
    with pytest.raises(ValueError, match="two vectors"):
        auroc(torch.ones(0), torch.ones(2))


def test_risk_at_full_coverage_is_the_error() -> None:
    probs, labels = classifier(n=700)
    curve = risk_coverage(probs, labels)
    assert float(curve.risk[-1]) == pytest.approx(error(probs, labels))
    assert float(curve.coverage[-1]) == 1
    assert curve.area == aurc(probs, labels)
    assert curve.area < error(probs, labels)


def test_risk_is_the_error_among_the_most_confident() -> None:
    probs, labels = classifier(n=500)
    order = probs.max(1).values.argsort(descending=True)
    curve = risk_coverage(probs, labels)
    for k in (1, 50, 300):
        kept = order[:k]
        assert float(curve.risk[k - 1]) == pytest.approx(error(probs[kept], labels[kept]))


def test_equal_confidences_give_a_flat_curve_in_any_order() -> None:
    probs = torch.tensor([[0.6, 0.4]]).repeat(10, 1)
    labels = torch.tensor([0, 0, 0, 1, 1, 0, 0, 0, 0, 0])
    curve = risk_coverage(probs, labels)
    torch.testing.assert_close(curve.risk, torch.full((10,), 0.2, dtype=torch.float64))


def test_a_better_confidence_has_a_smaller_area() -> None:
    probs, labels = classifier(n=500)
    right = (probs.argmax(1) == labels).double()
    assert risk_coverage(probs, labels, right).area < aurc(probs, labels)
    assert risk_coverage(probs, labels, -right).area > aurc(probs, labels)
    with pytest.raises(ValueError, match="one number per datum"):
        risk_coverage(probs, labels, right[:3])
