"""k-hat and the smoothed weights are those of ArviZ."""

from __future__ import annotations

import math

import arviz
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.metrics import pareto_khat, smoothed_log_weights
from bayescore.metrics.psis import tail_indices
from cases import F64, normal


def log_ratios(kind: str, n: int, seed: int) -> torch.Tensor:
    if kind == "cauchy":
        return (normal(n, seed=seed) / normal(n, seed=seed + 1)).abs().log()
    if kind == "normal":
        return 2 * normal(n, seed=seed)
    if kind == "wide":
        return 30 * normal(n, seed=seed)
    if kind == "light":
        return -normal(n, seed=seed).square()
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return -float(kind) * uniform.log()  # a Pareto law of that shape


KINDS = ["cauchy", "normal", "light", "0.2", "0.5", "0.7", "1.0", "1.5"]


@given(kind=st.sampled_from(KINDS), n=st.integers(40, 3000), seed=st.integers(0, 10_000))
@settings(max_examples=80)
def test_khat_is_that_of_arviz(kind: str, n: int, seed: int) -> None:
    values = log_ratios(kind, n, seed)
    _, expected = arviz.psislw(values.numpy().copy())
    assert pareto_khat(values).value == pytest.approx(float(expected), abs=1e-6)


@given(kind=st.sampled_from(KINDS), n=st.integers(40, 3000), seed=st.integers(0, 10_000))
@settings(max_examples=40)
def test_smoothed_weights_are_those_of_arviz(kind: str, n: int, seed: int) -> None:
    values = log_ratios(kind, n, seed)
    expected, _ = arviz.psislw(values.numpy().copy())
    weights, _ = smoothed_log_weights(values)
    np.testing.assert_allclose(weights.numpy(), expected, atol=1e-6)
    assert float(weights.logsumexp(0)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("n", [100, 4000])
@pytest.mark.parametrize("spread", [300.0, 1000.0, 1e5])
def test_ratios_that_underflow_are_not_to_be_trusted(n: int, spread: float) -> None:
    """One draw carries all the weight: whatever its number, k-hat must not say that q is good."""
    khat = pareto_khat(spread * normal(n)).value
    assert not math.isnan(khat)
    assert khat > 0.7


@pytest.mark.parametrize("values", [[0.0, -1.0], [0.0, -1.0, -2.0, -3.0]])
def test_ratios_with_ties_have_a_khat_that_is_a_number(values: list[float]) -> None:
    khat = pareto_khat(torch.tensor(values * 500, dtype=F64)).value
    assert not math.isnan(khat)


def test_khat_recovers_the_shape_of_a_pareto_law() -> None:
    for shape in ("0.2", "0.7", "1.0"):
        estimates = torch.tensor([pareto_khat(log_ratios(shape, 4000, s)).value for s in range(30)])
        # the weak prior pulls towards 0.5 by ten in 190
        expected = float(shape) + (0.5 - float(shape)) * 10 / 200
        assert float(estimates.mean()) == pytest.approx(expected, abs=0.05)


def test_the_error_of_khat_is_of_the_size_of_its_spread() -> None:
    estimates = [pareto_khat(log_ratios("0.5", 4000, s)) for s in range(60)]
    spread = float(torch.tensor([e.value for e in estimates]).std())
    error = sum(e.error for e in estimates) / len(estimates)
    assert 0.5 < error / spread < 2


def test_equal_ratios_are_a_perfect_fit_and_infinite_ones_a_hopeless_one() -> None:
    assert pareto_khat(torch.full((100,), 3.0, dtype=F64)).value == -math.inf
    for bad in (math.inf, math.nan):
        values = normal(100)
        values[7] = bad
        assert pareto_khat(values).value == math.inf


def test_khat_does_not_depend_on_a_constant_or_the_order() -> None:
    values = log_ratios("cauchy", 500, 1)
    assert pareto_khat(values + 1000.0).value == pytest.approx(pareto_khat(values).value, abs=1e-8)
    assert pareto_khat(values.flip(0)).value == pytest.approx(pareto_khat(values).value, abs=1e-12)


def test_the_given_ratios_are_left_alone() -> None:
    values = normal(200)
    before = values.clone()
    smoothed_log_weights(values)
    assert torch.equal(values, before)


@pytest.mark.parametrize("shape", [(10,), (24,), (100, 2), ()])
def test_too_few_ratios_are_refused_with_a_sentence(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"at least 25 log ratios in one dimension; got \("):
        pareto_khat(torch.zeros(shape))


def test_tail_indices_are_the_khats_of_the_columns() -> None:
    columns = [log_ratios(kind, 1000, 7) for kind in KINDS]
    k, errors = tail_indices(torch.stack(columns, -1))
    for i, column in enumerate(columns):
        one = pareto_khat(column)
        assert float(k[i]) == pytest.approx(one.value, abs=1e-9)
        assert float(errors[i]) == pytest.approx(one.error, abs=1e-9)


def test_a_column_that_is_constant_has_no_finite_tail_index() -> None:
    k, _ = tail_indices(torch.zeros(100, 1, dtype=F64))
    assert math.isinf(float(k[0]))
