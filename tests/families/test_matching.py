"""The prepared gradient of score matching is the pullback, wherever the parameters have moved since."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayescore.families import Family, FullGaussian
from bayescore.families.matching import Matching
from cases import BATCHABLE, batch, family, normal


def moving(q: Family) -> tuple[torch.Tensor, Family]:
    """The parameters as one tensor, and the family whose parameters are views into it."""
    flat = q.flat()
    return flat, q.from_flat(flat)


def pulled(q: Family, x: torch.Tensor, c: torch.Tensor, k: float) -> torch.Tensor:
    g, pullback = q.score_and_pullback(x)
    return torch.cat([v.reshape(len(x), -1) for v in pullback(c + k * g).values()], -1)


@given(
    kind=st.sampled_from(BATCHABLE),
    size=st.integers(1, 3),
    draws=st.integers(1, 3),
    dim=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60)
def test_the_gradient_is_that_of_the_pullback_before_and_after_a_move(
    kind: str, size: int, draws: int, dim: int, seed: int
) -> None:
    assume(kind != "coupling" or dim > 1)  # a coupling layer needs two coordinates
    flat, q = moving(batch(kind, size, dim, seed))
    x, c = normal(2, size, draws, dim, seed=seed)
    matching = q.matching(x)
    for shift in (0.0, 0.1):
        flat += shift * normal(*flat.shape, seed=seed + 1)
        matching.refresh()
        torch.testing.assert_close(matching.score(), q.score(x), rtol=1e-9, atol=1e-9)
        for k in (0.0, 1.7):
            torch.testing.assert_close(matching.gradient(k, c), pulled(q, x, c, k), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["precision", "mixture-precision"])
def test_the_working_forms_have_a_prepared_gradient_of_their_own(kind: str) -> None:
    assert type(batch(kind, 2).matching(normal(2, 1, 3))) is not Matching


@pytest.mark.parametrize("kind", ["precision", "mixture-precision"])
def test_a_gradient_asked_for_twice_is_the_same(kind: str) -> None:
    """The floor and the first inner step ask at the same parameters."""
    _, q = moving(batch(kind, 2))
    x, c = normal(2, 2, 3, 3)
    matching = q.matching(x)
    first = matching.gradient(0.5, c).clone()
    matching.gradient(2.0, torch.zeros_like(c))
    assert torch.equal(matching.gradient(0.5, c), first)


def test_what_lies_above_the_diagonal_neither_counts_nor_moves() -> None:
    one = family("precision")
    junk = one.replace({**one.parameters(), "raw": one.parameters()["raw"] + 5 * torch.ones(3, 3).triu(1)})
    x, c = normal(2, 1, 2, 3)
    clean, dirty = (FullGaussian.stack([q]).matching(x).gradient(0.5, c) for q in (one, junk))
    assert torch.equal(clean, dirty)
    assert not dirty[:, 3:].unflatten(-1, (3, 3)).triu(1).any()


@pytest.mark.parametrize("kind", ["precision", "mixture-precision"])
def test_members_of_a_batch_do_not_mix(kind: str) -> None:
    q = batch(kind, 5)
    x, c = normal(2, 5, 1, 3)
    together = q.matching(x).gradient(0.5, c)
    for i in range(5):
        alone = type(q).stack([q[i]]).matching(x[i : i + 1]).gradient(0.5, c[i : i + 1])
        assert torch.equal(alone[0], together[i])
