"""Targets made of a user's own functions: what they compute, and what they say when a function is wrong."""

from __future__ import annotations

import pytest
import torch

from bayescore.targets import LogDensity, ScoreFunction
from cases import F64, normal


def quadratic(x: torch.Tensor) -> torch.Tensor:
    return -0.5 * x.square().sum(-1)


@pytest.mark.parametrize("lead", [(1,), (4,), (2, 3)])
def test_a_log_density_is_called_on_rows_and_keeps_the_leading_shape(lead: tuple[int, ...]) -> None:
    seen = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        return quadratic(x)

    target, x = LogDensity(fn, dim=2), normal(*lead, 2)
    assert target.log_prob(x).shape == lead
    torch.testing.assert_close(target.score(x), -x)
    assert all(len(shape) == 2 and shape[1] == 2 for shape in seen)


def test_a_score_function_answers_with_its_own_score() -> None:
    target, x = ScoreFunction(lambda x: -3 * x, dim=2), normal(4, 2)
    assert not target.has_density
    assert torch.equal(target.score(x), -3 * x)
    with pytest.raises(TypeError, match="no log density; give log_density="):
        target.log_prob(x)


def test_a_score_function_may_bring_its_density() -> None:
    target, x = ScoreFunction(lambda x: -x, dim=2, log_density=quadratic), normal(4, 2)
    assert target.has_density
    value, score = target.log_prob_and_score(x)
    assert torch.equal(value, quadratic(x))
    assert torch.equal(score, -x)
    torch.testing.assert_close(target.hessian_product(x, x), -x)


def test_single_precision_functions_are_served() -> None:
    target = LogDensity(quadratic, dim=2, dtype=torch.float32)
    assert target.score(torch.ones(3, 2)).dtype == torch.float32


def test_hessian_product_of_a_linear_log_density_is_zero() -> None:
    target = LogDensity(lambda x: x.sum(-1), dim=2)
    assert not target.hessian_product(normal(3, 2), normal(3, 2)).any()


def test_scores_do_not_depend_on_the_surrounding_gradient_mode() -> None:
    target, x = LogDensity(quadratic, dim=2), normal(3, 2)
    with torch.no_grad():
        assert torch.equal(target.score(x), -x)


@pytest.mark.parametrize(
    ("fn", "error", "sentence"),
    [
        (lambda x: x.square(), ValueError, r"must map points \(4, 2\) to \(4,\); it returned \(4, 2\)"),
        (lambda x: quadratic(x).unsqueeze(-1), ValueError, r"it returned \(4, 1\)"),
        (lambda x: quadratic(x).sum(), ValueError, r"it returned \(\)"),
        (lambda x: 1.0, TypeError, "must return a torch.Tensor; it returned float"),
        (lambda x: quadratic(x).numpy(), TypeError, "it returned ndarray"),
        (
            lambda x: quadratic(x).float(),
            TypeError,
            "given torch.float64 and returned torch.float32; pass dtype=",
        ),
    ],
)
def test_a_wrong_log_density_is_named_with_what_it_returned(fn, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        LogDensity(fn, dim=2).log_prob(normal(4, 2))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.zeros(len(x), dtype=F64),
        lambda x: quadratic(x.detach()),
        lambda x: torch.from_numpy(-(x.detach().numpy() ** 2).sum(-1)),
    ],
    ids=["constant", "detached", "numpy"],
)
def test_a_log_density_that_cannot_be_differentiated_is_named_with_a_remedy(fn) -> None:
    with pytest.raises((TypeError, ValueError), match=r"log density.*(ScoreFunction|torch)"):
        LogDensity(fn, dim=2).score(normal(4, 2))


@pytest.mark.parametrize(
    ("fn", "error", "sentence"),
    [
        (quadratic, ValueError, r"the score must map points \(4, 2\) to \(4, 2\); it returned \(4,\)"),
        (lambda x: None, TypeError, "the score must return a torch.Tensor; it returned NoneType"),
        (lambda x: x.float(), TypeError, "returned torch.float32"),
    ],
)
def test_a_wrong_score_is_named_with_what_it_returned(fn, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        ScoreFunction(fn, dim=2).score(normal(4, 2))


@pytest.mark.parametrize("cls", [LogDensity, ScoreFunction])
def test_a_function_target_needs_a_function_and_a_dimension(cls: type) -> None:
    with pytest.raises(TypeError, match=r"fn must be a function from points to .*; got int"):
        cls(3, dim=2)
    with pytest.raises(ValueError, match="dim must be at least 1; got 0"):
        cls(quadratic, dim=0)
    with pytest.raises(TypeError, match="dim must be a whole number; got '2'"):
        cls(quadratic, dim="2")


def test_function_targets_have_no_sampler_and_say_so() -> None:
    target = LogDensity(quadratic, dim=2)
    assert not target.has_samples
    with pytest.raises(TypeError, match="LogDensity has no exact sampler"):
        target.sample(3)
