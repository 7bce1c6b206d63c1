"""A family refuses what it cannot be made of, with one sentence that names the value."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.families import (
    FAMILIES,
    DiagonalGaussian,
    FullGaussian,
    GaussianMixture,
    LowRankGaussian,
    by_name,
)
from cases import F64, normal

eye, zeros = torch.eye(3, dtype=F64), torch.zeros(3, dtype=F64)
shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)


@given(mean=shapes, factor=shapes)
@settings(max_examples=60)
def test_a_full_gaussian_is_made_of_matching_shapes_or_refused(mean: tuple, factor: tuple) -> None:
    m, L = (
        torch.zeros(mean, dtype=F64),
        torch.ones(factor, dtype=F64).tril() if len(factor) > 1 else torch.ones(factor, dtype=F64),
    )
    good = len(mean) >= 1 and factor == (*mean, mean[-1])
    if good:
        assert FullGaussian(m, L).batch_shape == mean[:-1]
    else:
        with pytest.raises(ValueError, match=r"shape|disagree"):
            FullGaussian(m, L)


@given(mean=shapes, log_sd=shapes)
@settings(max_examples=60)
def test_a_diagonal_gaussian_is_made_of_matching_shapes_or_refused(mean: tuple, log_sd: tuple) -> None:
    m, r = torch.zeros(mean, dtype=F64), torch.zeros(log_sd, dtype=F64)
    if len(mean) >= 1 and mean == log_sd:
        assert DiagonalGaussian(m, r).batch_shape == mean[:-1]
    else:
        with pytest.raises(ValueError, match="shape"):
            DiagonalGaussian(m, r)


@given(mean=shapes, log_diagonal=shapes, columns=shapes)
@settings(max_examples=60)
def test_a_low_rank_gaussian_is_made_of_matching_shapes_or_refused(
    mean: tuple, log_diagonal: tuple, columns: tuple
) -> None:
    parts = [torch.zeros(s, dtype=F64) for s in (mean, log_diagonal, columns)]
    if len(mean) >= 1 and mean == log_diagonal and len(columns) >= 2 and columns[:-1] == mean:
        assert LowRankGaussian(*parts).batch_shape == mean[:-1]
    else:
        with pytest.raises(ValueError, match=r"shape|disagree"):
            LowRankGaussian(*parts)


@given(logits=shapes, mean=shapes.filter(lambda s: len(s) >= 1))
@settings(max_examples=60)
def test_a_mixture_is_made_of_matching_shapes_or_refused(logits: tuple, mean: tuple) -> None:
    parts = DiagonalGaussian(torch.zeros(mean, dtype=F64), torch.zeros(mean, dtype=F64))
    if len(logits) >= 1 and mean[:-1] == logits:
        assert GaussianMixture(torch.zeros(logits, dtype=F64), parts).batch_shape == logits[:-1]
    else:
        with pytest.raises(ValueError, match=r"shape|disagree"):
            GaussianMixture(torch.zeros(logits, dtype=F64), parts)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: FullGaussian(zeros, -eye), ValueError, "positive diagonal"),
        (
            lambda: FullGaussian(zeros, eye, "correlation"),
            ValueError,
            "'covariance' or 'precision'; got 'correlation'",
        ),
        (lambda: FullGaussian([0.0], eye), TypeError, "mean must be a torch.Tensor; got list"),
        (
            lambda: FullGaussian(torch.zeros(3, dtype=torch.long), eye),
            TypeError,
            "floating point numbers; got torch.int64",
        ),
        (lambda: FullGaussian(zeros / 0, eye), ValueError, "mean must be finite; 3 entries are not"),
        (lambda: FullGaussian(zeros, eye + 0.5 * eye.flip(0)), ValueError, "lower triangular"),
        (lambda: FullGaussian(zeros, eye.float()), (TypeError, ValueError), "float32"),
        (lambda: FullGaussian.init(0), ValueError, "dim must be at least 1; got 0"),
        (lambda: FullGaussian.init(2.5), TypeError, "dim must be a whole number; got 2.5"),
        (lambda: FullGaussian.init(True), TypeError, "whole number; got True"),
        (lambda: FullGaussian.init(3, scale=-1.0), ValueError, "scale must be positive; got -1.0"),
        (
            lambda: FullGaussian.init(3, scale=float("nan")),
            ValueError,
            "scale must be positive.*nan|must be finite",
        ),
        (
            lambda: FullGaussian.init(3, mean=normal(4)),
            ValueError,
            r"mean must have the shape \(..., 3\); got \(4,\)",
        ),
        (lambda: FullGaussian.from_moments(zeros, -eye), ValueError, "symmetric positive definite"),
        (
            lambda: FullGaussian.from_moments(zeros, eye + torch.eye(3, dtype=F64).roll(1)),
            ValueError,
            "symmetric",
        ),
        (lambda: DiagonalGaussian.init(3, scale=0.0), ValueError, "scale must be positive; got 0.0"),
        (lambda: DiagonalGaussian.init(-1), ValueError, "dim must be at least 1; got -1"),
        (lambda: LowRankGaussian.init(3, 4), ValueError, "rank must be at most the dimension 3; got 4"),
        (lambda: LowRankGaussian.init(3, 0), ValueError, "rank must be at least 1; got 0"),
        (lambda: GaussianMixture.init(3, 0), ValueError, "components must be at least 1; got 0"),
        (lambda: GaussianMixture.init(3, 2, scale=-1.0), ValueError, "scale must be positive.*got -1.0"),
        (lambda: GaussianMixture(zeros, eye), TypeError, "components must be Gaussian families; got Tensor"),
    ],
)
def test_impossible_families_are_refused_with_a_sentence(make, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        make()


def test_the_default_rank_suits_a_small_dimension() -> None:
    assert LowRankGaussian.init(3).rank <= 3


def test_families_are_found_by_name_and_the_nearest_is_suggested() -> None:
    assert all(by_name(name) is cls for name, cls in FAMILIES.items())
    with pytest.raises(
        ValueError, match=r"no family called 'ful'; did you mean 'full'\? choose from .*low-rank"
    ):
        by_name("ful")
