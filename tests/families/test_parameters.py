"""The parameters of a family: flat, batched, replaced, stored and rebuilt without a change."""

from __future__ import annotations

import json

import pytest
import torch

from cases import BATCHABLE, EVERY, F64, batch, family, normal

every = pytest.mark.parametrize("kind", EVERY)
batchable = pytest.mark.parametrize("kind", BATCHABLE)


@every
def test_flat_parameters_round_trip_and_are_views(kind: str) -> None:
    q = family(kind)
    flat = q.flat()
    back = q.from_flat(flat)
    for key, value in q.parameters().items():
        assert torch.equal(back.parameters()[key], value)
        assert back.parameters()[key].shape == value.shape
    flat.zero_()
    assert all(not v.any() for v in back.parameters().values()), "views move with the flat tensor"
    assert any(v.any() for v in q.parameters().values()), "flat() is a copy"


@batchable
def test_flat_parameters_of_a_batch_round_trip(kind: str) -> None:
    q = batch(kind, 3)
    flat = q.flat()
    assert flat.shape == (3, q[0].flat().numel())
    back = q.from_flat(flat.clone())
    x = normal(3, 4, 3)
    assert torch.equal(back.log_prob(x), q.log_prob(x))
    assert all(torch.equal(flat[i], q[i].flat()) for i in range(3))


@batchable
def test_a_batch_is_its_members(kind: str) -> None:
    q, x = batch(kind, 3), normal(3, 4, 3)
    assert q.batch_shape == (3,)
    for i in range(3):
        assert q[i].batch_shape == ()
        torch.testing.assert_close(q.log_prob(x)[i], q[i].log_prob(x[i]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(q.score(x)[i], q[i].score(x[i]), rtol=1e-12, atol=1e-12)
    noise = normal(3, 4, q.noise_dim, seed=9)
    for i in range(3):
        torch.testing.assert_close(q.transform(noise)[i], q[i].transform(noise[i]), rtol=1e-12, atol=1e-12)
    again = type(q).stack([q[i] for i in range(3)])
    assert torch.equal(again.flat(), q.flat())


@every
def test_one_density_makes_a_batch_of_one(kind: str) -> None:
    q = family(kind)
    one, x = type(q).stack([q]), normal(1, 4, 3)
    assert one.batch_shape == (1,)
    torch.testing.assert_close(one.log_prob(x)[0], q.log_prob(x[0]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.score(x)[0], q.score(x[0]), rtol=1e-12, atol=1e-12)
    assert torch.equal(one[0].flat(), q.flat())


@every
def test_a_single_density_cannot_be_indexed(kind: str) -> None:
    with pytest.raises(TypeError, match="not a batch"):
        family(kind)[0]


@every
def test_replace_leaves_the_old_family_alone(kind: str) -> None:
    q, x = family(kind), normal(4, 3)
    before = q.log_prob(x)
    moved = q.replace(
        {k: v + 0.1 * torch.eye(3, dtype=F64)[: v.shape[0], :1].mean() for k, v in q.parameters().items()}
    )
    assert not torch.allclose(moved.log_prob(x), before)
    assert torch.equal(q.log_prob(x), before)
    assert moved.config() == q.config()


@every
def test_the_order_of_the_parameters_is_the_family_s_own(kind: str) -> None:
    """A file gives tensors back in another order; an optimizer's moments are stored flat, in this one."""
    q = family(kind)
    again = q.replace(dict(reversed(q.parameters().items())))
    assert list(again.parameters()) == list(q.parameters())
    assert torch.equal(again.flat(), q.flat())


@every
@pytest.mark.parametrize("lead", [(), (1,), (5,), (2, 3), (2, 1, 3)])
def test_points_of_one_density_may_have_any_leading_shape(kind: str, lead: tuple[int, ...]) -> None:
    q, x = family(kind), normal(*lead, 3)
    assert q.log_prob(x).shape == lead
    assert q.score(x).shape == x.shape
    rows = torch.stack([q.log_prob(row) for row in x.reshape(-1, 3)])
    torch.testing.assert_close(q.log_prob(x).reshape(-1), rows, rtol=1e-12, atol=1e-12)


@every
def test_configuration_and_parameters_rebuild_the_family(kind: str) -> None:
    q, x = family(kind), normal(4, 3)
    config = json.loads(json.dumps(q.config()))
    again = type(q).rebuild(config, q.parameters())
    assert again.config() == q.config()
    assert repr(again) == repr(q)
    torch.testing.assert_close(again.log_prob(x), q.log_prob(x), rtol=1e-12, atol=1e-12)


@batchable
def test_configuration_and_parameters_rebuild_a_batch(kind: str) -> None:
    q, x = batch(kind, 2), normal(2, 4, 3)
    again = type(q).rebuild(json.loads(json.dumps(q.config())), q.parameters())
    torch.testing.assert_close(again.log_prob(x), q.log_prob(x), rtol=1e-12, atol=1e-12)
