"""What every family promises: a density with an exact score, exact derivatives and honest draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.families import FAMILIES
from bayescore.rng import Streams
from cases import BATCHABLE, EVERY, F64, GAUSSIANS, batch, family, grad_x, normal, z_score

every = pytest.mark.parametrize("kind", EVERY)
batchable = pytest.mark.parametrize("kind", BATCHABLE)


def test_the_cases_cover_every_registered_family() -> None:
    assert {type(family(kind)) for kind in EVERY} == set(FAMILIES.values())


@given(
    kind=st.sampled_from(EVERY),
    dim=st.integers(2, 6),
    seed=st.integers(0, 10_000),
    size=st.integers(1, 5),
)
@settings(max_examples=80)
def test_score_is_the_gradient_of_log_prob(kind: str, dim: int, seed: int, size: int) -> None:
    q = family(kind, dim, seed)
    x = 2 * normal(size, dim, seed=seed)
    torch.testing.assert_close(q.score(x), grad_x(q, x), rtol=1e-9, atol=1e-9)


@given(kind=st.sampled_from(BATCHABLE), seed=st.integers(0, 10_000), size=st.integers(1, 4))
@settings(max_examples=40)
def test_score_of_a_batch_is_the_gradient_of_log_prob(kind: str, seed: int, size: int) -> None:
    q = batch(kind, size, 3, seed)
    x = 2 * normal(size, 5, 3, seed=seed)
    torch.testing.assert_close(q.score(x), grad_x(q, x), rtol=1e-9, atol=1e-9)


def autograd_pullback(q, x, e):
    parameters = {k: v.clone().requires_grad_() for k, v in q.parameters().items()}
    g = q.replace(parameters).score(x)
    grads = torch.autograd.grad((g * e).sum(), list(parameters.values()), allow_unused=True)
    return {
        k: torch.zeros_like(v) if d is None else d
        for (k, v), d in zip(parameters.items(), grads, strict=True)
    }


@given(
    kind=st.sampled_from(EVERY),
    dim=st.integers(2, 5),
    seed=st.integers(0, 10_000),
    size=st.integers(1, 4),
)
@settings(max_examples=80)
def test_pullback_is_the_gradient_of_the_score_in_the_parameters(
    kind: str, dim: int, seed: int, size: int
) -> None:
    q = family(kind, dim, seed)
    x, e = normal(2, size, dim, seed=seed + 1)
    g, pullback = q.score_and_pullback(x)
    torch.testing.assert_close(g, q.score(x), rtol=1e-9, atol=1e-9)
    mine, expected = pullback(e), autograd_pullback(q, x, e)
    assert list(mine) == list(q.parameters()), "flattened in the order of the parameters"
    for key, value in expected.items():
        torch.testing.assert_close(mine[key], value, rtol=1e-9, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")


@given(kind=st.sampled_from(BATCHABLE), seed=st.integers(0, 10_000), size=st.integers(1, 4))
@settings(max_examples=40)
def test_pullback_of_a_batch_is_the_gradient_of_its_score(kind: str, seed: int, size: int) -> None:
    q = batch(kind, size, 3, seed)
    x, e = normal(2, size, 4, 3, seed=seed + 1)
    mine, expected = q.score_and_pullback(x)[1](e), autograd_pullback(q, x, e)
    for key, value in expected.items():
        torch.testing.assert_close(mine[key], value, rtol=1e-9, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")


@every
def test_pullback_can_be_called_twice(kind: str) -> None:
    q = family(kind)
    _, pullback = q.score_and_pullback(normal(2, 3))
    first, second = pullback(torch.ones(2, 3, dtype=F64)), pullback(torch.ones(2, 3, dtype=F64))
    assert all(torch.equal(first[k], second[k]) for k in first)


@every
def test_the_mean_score_of_its_own_draws_is_zero(kind: str) -> None:
    q = family(kind)
    x = q.sample(20_000, seed=1)
    assert z_score(q.score(x)).abs().max() < 4.5


@every
def test_draws_satisfy_the_identity_of_stein(kind: str) -> None:
    """E[x g(x)^T] = -I: the draws have the spread that the score says."""
    q = family(kind)
    x = q.sample(20_000, seed=2)
    products = x.unsqueeze(-1) * q.score(x).unsqueeze(-2)
    # the score of a spline flow is heavy-tailed at the knots, so the bound leaves room
    assert z_score(products.flatten(1), -torch.eye(3, dtype=F64).flatten()).abs().max() < 5


@pytest.mark.parametrize("kind", [*GAUSSIANS, "spiked", "mixture", "mixture-precision", "mixture-diagonal"])
def test_draws_have_the_mean_and_covariance_that_the_family_states(kind: str) -> None:
    q = family(kind)
    x = q.sample(40_000, seed=3)
    assert z_score(x, q.mean).abs().max() < 4.5
    d = x - q.mean
    products = (d.unsqueeze(-1) * d.unsqueeze(-2)).flatten(1)
    assert z_score(products, q.covariance.flatten()).abs().max() < 4.5


@batchable
def test_every_member_of_a_batch_draws_from_its_own_density(kind: str) -> None:
    q = batch(kind, 2)
    x = q.sample(10_000, seed=4)
    assert x.shape == (2, 10_000, 3)
    for i in range(2):
        assert z_score(q[i].score(x[i])).abs().max() < 4.5


@every
def test_entropy_is_minus_the_mean_log_density_of_draws(kind: str) -> None:
    q = family(kind)
    entropy = q.entropy()
    if entropy is None:
        assert kind not in GAUSSIANS
        return
    assert entropy.shape == ()
    values = -q.log_prob(q.sample(20_000, seed=5))
    assert z_score(values, entropy).abs() < 4.5


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_entropy_of_a_batch_is_that_of_its_members(kind: str) -> None:
    q = batch(kind, 3)
    expected = torch.stack([q[i].entropy() for i in range(3)])
    torch.testing.assert_close(q.entropy(), expected, rtol=1e-12, atol=1e-12)


@every
def test_draws_depend_on_the_seed_alone(kind: str) -> None:
    q = family(kind)
    before = torch.random.get_rng_state()
    assert torch.equal(q.sample(5, seed=1), q.sample(5, seed=1))
    assert not torch.equal(q.sample(5, seed=1), q.sample(5, seed=2))
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator is left alone"


@every
def test_a_generator_continues_where_it_stands(kind: str) -> None:
    q = family(kind)
    rng = torch.Generator().manual_seed(1)
    first, second = q.sample(4, rng), q.sample(4, rng)
    assert torch.equal(first, q.sample(4, seed=1))
    assert not torch.equal(first, second)


@every
def test_noise_of_a_fit_comes_from_its_own_stream(kind: str) -> None:
    q = family(kind)
    together = q.noise(Streams([3, 4]), 2)
    assert together.shape == (2, 2, q.noise_dim)
    assert torch.equal(together[1:], q.noise(Streams([4]), 2))


@every
def test_repr_names_the_class_dimension_and_dtype(kind: str) -> None:
    q = family(kind)
    assert repr(q).startswith(f"{type(q).__name__}(dim=3")
    assert "float64, cpu)" in repr(q)
    assert "\n" not in repr(q)


@batchable
def test_repr_of_a_batch_names_its_size(kind: str) -> None:
    assert "batch=2" in repr(batch(kind, 2))


@every
def test_single_precision_follows_double(kind: str) -> None:
    q, x = family(kind), normal(6, 3)
    single = q.to(torch.float32)
    assert single.dtype == torch.float32
    assert single.sample(2, seed=0).dtype == torch.float32
    value, score = single.log_prob(x.float()), single.score(x.float())
    assert value.dtype == score.dtype == torch.float32
    torch.testing.assert_close(value.double(), q.log_prob(x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(score.double(), q.score(x), rtol=1e-2, atol=1e-2)
    assert q.dtype == F64, "to() makes another family"


@every
def test_every_family_starts_in_the_dtype_it_is_asked_for(kind: str) -> None:
    q = type(family(kind))
    arguments = (3, 2) if q.name == "mixture" else (3,)
    if q.name == "low-rank":
        arguments = (3, 2)
    assert q.init(*arguments, dtype=torch.float32).dtype == torch.float32


@every
def test_points_of_another_dimension_are_refused_with_a_sentence(kind: str) -> None:
    q = family(kind)
    for shape in [(5, 2), (5, 4), (5, 1), (2,), (0,)]:
        for evaluate in (q.log_prob, q.score):
            with pytest.raises(ValueError, match=r"3.*got \(" + ", ".join(map(str, shape))):
                evaluate(normal(*shape))


@every
def test_any_flat_vector_is_one_density_whether_or_not_it_is_differentiated(kind: str) -> None:
    """The parameters are unconstrained: no entry may change the meaning of the others."""
    q = family(kind)
    flat = q.flat() + 0.1 * normal(q.flat().numel(), seed=5)
    x = normal(4, 3)
    plain, differentiated = q.from_flat(flat), q.from_flat(flat.clone().requires_grad_())
    torch.testing.assert_close(plain.log_prob(x), differentiated.log_prob(x).detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain.score(x), grad_x(plain, x), rtol=1e-9, atol=1e-9)


@every
@pytest.mark.parametrize("n", [0, -3])
def test_no_draws_are_refused_with_a_sentence(kind: str, n: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1; got {n}"):
        family(kind).sample(n)


def test_families_of_different_kinds_make_no_batch() -> None:
    with pytest.raises(ValueError, match="same class and configuration"):
        type(family("full")).stack([family("full"), family("precision")])
    with pytest.raises(ValueError, match="same class and configuration"):
        type(family("full")).stack([family("full"), family("diagonal")])


def test_mixtures_of_different_order_make_no_batch() -> None:
    with pytest.raises(ValueError, match="same class and configuration"):
        type(family("mixture")).stack([family("mixture", components=2), family("mixture", components=3)])
