"""The transforms between free coordinates and constrained values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.targets.constraints import (
    Constraint,
    Interval,
    Lower,
    Ordered,
    Positive,
    Real,
    Simplex,
    Upper,
)

KINDS = [
    Real(),
    Real((2, 3)),
    Positive(),
    Positive(4),
    Lower(-2.5, 3),
    Upper(1.5, (2, 2)),
    Interval(-1, 3),
    Interval(0, 1e-3, 3),
    Ordered(4),
    Ordered((2, 3)),
    Simplex(2),
    Simplex(5),
    Simplex((3, 4)),
]
kinds = pytest.mark.parametrize("constraint", KINDS, ids=str)


def coordinates(constraint: Constraint, *lead: int, seed: int = 0, spread: float = 1.5) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return spread * torch.randn(*lead, constraint.size, generator=rng, dtype=torch.float64)


def free_part(constraint: Constraint, x: Tensor) -> Tensor:
    """As many numbers as there are coordinates: of a simplex all but the last entry."""
    return (x[..., :-1] if isinstance(constraint, Simplex) else x).reshape(-1)


@kinds
def test_log_jacobian_is_the_log_determinant_that_autograd_finds(constraint: Constraint) -> None:
    for seed in range(5):
        u = coordinates(constraint, seed=seed)
        J = torch.func.jacrev(lambda v: free_part(constraint, constraint.forward(v)))(u)
        expected = torch.linalg.slogdet(J).logabsdet
        torch.testing.assert_close(constraint.log_jacobian(u), expected, rtol=1e-10, atol=1e-10)


@kinds
def test_values_obey_the_constraint_and_lead_back(constraint: Constraint) -> None:
    u = coordinates(constraint, 7, 2)
    x = constraint.forward(u)
    assert x.shape == (7, 2, *constraint.dims)
    torch.testing.assert_close(constraint.inverse(x), u, rtol=1e-9, atol=1e-9)
    if isinstance(constraint, Simplex):
        torch.testing.assert_close(x.sum(-1), torch.ones(x.shape[:-1], dtype=torch.float64))
    if isinstance(constraint, Ordered):
        assert (x.diff(dim=-1) > 0).all()


@kinds
def test_a_batch_is_its_rows(constraint: Constraint) -> None:
    u = coordinates(constraint, 3, 4)
    torch.testing.assert_close(constraint.forward(u)[1, 2], constraint.forward(u[1, 2]))
    torch.testing.assert_close(constraint.log_jacobian(u)[1, 2], constraint.log_jacobian(u[1, 2]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-12, 12), min_size=2, max_size=6),
    st.sampled_from([Positive, Ordered, Simplex, lambda n: Interval(-3, 7, n), lambda n: Lower(2, n)]),
)
def test_coordinates_far_out_survive_the_round_trip(numbers: list[float], make) -> None:
    size = len(numbers) + (make is Simplex)
    constraint = make(size)
    u = torch.tensor(numbers, dtype=torch.float64)
    back = constraint.inverse(constraint.forward(u))
    # what rounding of x does to u: the condition of the inverse
    J = torch.func.jacrev(lambda v: free_part(constraint, constraint.forward(v)))(u)
    condition = torch.linalg.cond(J).clamp_min(1.0)
    scale = 1 + constraint.forward(u).abs().max() * torch.linalg.matrix_norm(torch.linalg.inv(J), ord=2)
    assert (back - u).abs().max() <= 1e-13 * condition * scale


def test_the_centre_of_a_simplex_is_the_origin() -> None:
    """Stan's offset: u = 0 gives equal shares."""
    x = Simplex(5).forward(torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(x, torch.full((5,), 0.2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("constraint", "value"),
    [
        (Positive(), 0.0),
        (Lower(2), 1.0),
        (Upper(2), 3.0),
        (Interval(0, 1), 1.0),
        (Ordered(2), [1.0, 1.0]),
        (Simplex(2), [0.4, 0.4]),
        (Simplex(2), [1.4, -0.4]),
        (Real(), float("nan")),
    ],
    ids=str,
)
def test_a_value_outside_is_refused(constraint: Constraint, value: float | list[float]) -> None:
    with pytest.raises(ValueError, match=r"1 values lie outside of"):
        constraint.inverse(torch.tensor(value, dtype=torch.float64))


def test_a_value_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"takes values \(\.\.\., \*\(3,\)\); got the shape \(4,\)"):
        Real(3).inverse(torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Real(0), ValueError, "at least 1"),
        (lambda: Real("3"), TypeError, "whole number"),
        (lambda: Interval(1, 1), ValueError, "low < high"),
        (lambda: Simplex(1), ValueError, "at least 2"),
        (lambda: Ordered(()), ValueError, "at least 2"),
    ],
)
def test_a_constraint_that_makes_no_sense_is_refused(make, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()
