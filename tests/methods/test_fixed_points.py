"""The exact posterior is a fixed point of every method, or has zero expected gradient, in every family."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.methods import (
    ADVI,
    GSM,
    METHODS,
    BaM,
    Fisher,
    Method,
    ProximalDescent,
    ProximalRidge,
    Score,
    WhitenedDescent,
)
from bayescore.targets.counting import CountingOracle
from cases import EVERY, FLOWS, GAUSSIANS, RUNS, Exact, batch, family, one_step, streams, walk, z_score

dims, seeds, batches = st.integers(2, 7), st.integers(0, 10_000), st.integers(2, 10)
#: the names a user knows a family by, and the cases that stand for them
KINDS = {
    "FullGaussian": ("full", "precision"),
    "DiagonalGaussian": ("diagonal",),
    "LowRankGaussian": ("low-rank",),
    "SpikedGaussian": ("spiked",),
    "GaussianMixture": ("mixture", "mixture-precision", "mixture-diagonal"),
    "PlanarFlow": ("planar", "bare-planar"),
    "CouplingFlow": ("coupling",),
    "ZukoFlow": ("realnvp", "spline"),
}


def served(method: type[Method]) -> list[str]:
    return [kind for name in method.serves for kind in KINDS[name]]


def stays(method: Method, kind: str, dim: int, seed: int, tolerance: float) -> None:
    q = family(kind, dim, seed).in_form(method.form)
    after = one_step(method, q, Exact(type(q).stack([q])), seed=seed)
    torch.testing.assert_close(after.flat(), q.flat(), rtol=tolerance, atol=tolerance)


def test_every_family_a_method_serves_has_a_case() -> None:
    assert set(KINDS) >= {name for method in METHODS.values() for name in method.serves}
    assert {kind for kinds in KINDS.values() for kind in kinds} == set(EVERY)


def test_every_method_has_a_run_that_is_stopped_resumed_and_batched() -> None:
    assert {type(method) for method, _ in RUNS.values()} == set(METHODS.values())


@given(dim=dims, seed=seeds, size=st.integers(1, 10))
@settings(max_examples=25)
def test_gsm_leaves_the_exact_posterior_fixed(dim: int, seed: int, size: int) -> None:
    stays(GSM(draws=size), "full", dim, seed, 1e-7)


@given(kind=st.sampled_from(served(BaM)), dim=dims, seed=seeds, size=batches)
@settings(max_examples=50)
def test_bam_leaves_the_exact_posterior_fixed_whatever_the_batch(
    kind: str, dim: int, seed: int, size: int
) -> None:
    q = family(kind, dim, seed).in_form("covariance")
    after = one_step(BaM(draws=size), q, Exact(type(q).stack([q])), seed=seed)
    torch.testing.assert_close(after.mean, q.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(after.covariance, q.covariance, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("rule", ["plateau", "constant", "decay", 0.3, 1e6, lambda t, B, D: 2.0 / (t + 1)])
def test_bam_leaves_the_exact_posterior_fixed_under_every_schedule(rule: object) -> None:
    q = family("full", 4)
    after = walk(BaM(draws=3, regularisation=rule), q, Exact(type(q).stack([q])), steps=5)[0]
    torch.testing.assert_close(after.flat(), q.flat(), rtol=1e-7, atol=1e-7)


@given(
    kind=st.sampled_from(served(ProximalDescent)), dim=st.integers(2, 5), seed=seeds, draws=st.integers(1, 4)
)
@settings(max_examples=50)
def test_proximal_descent_does_not_move_from_the_exact_posterior(
    kind: str, dim: int, seed: int, draws: int
) -> None:
    # a weight of a network that hardly matters has a floor that is hardly above rounding
    stays(ProximalDescent(draws=draws, inner_steps=5), kind, dim, seed, 1e-6 if kind in FLOWS else 1e-9)


@given(
    kind=st.sampled_from(served(WhitenedDescent)), dim=st.integers(2, 5), seed=seeds, draws=st.integers(1, 4)
)
@settings(max_examples=25)
def test_whitened_descent_does_not_move_from_the_exact_posterior(
    kind: str, dim: int, seed: int, draws: int
) -> None:
    stays(WhitenedDescent(draws=draws, inner_steps=5), kind, dim, seed, 1e-9)


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"clip": 2.0}, {"reset": True}, {"alpha": 1.0}])
@pytest.mark.parametrize("kind", ["full", "diagonal", "mixture", "planar"])
def test_no_option_of_proximal_descent_moves_the_exact_posterior(kind: str, options: dict) -> None:
    stays(ProximalDescent(**options), kind, 3, 1, 1e-9)


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"optimizer": "adam"}, {"alpha": 1.0}])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_no_option_of_whitened_descent_moves_the_exact_posterior(kind: str, options: dict) -> None:
    stays(WhitenedDescent(inner_steps=20, **options), kind, 3, 1, 1e-9)


@given(kind=st.sampled_from(["full", "precision", "diagonal"]), dim=dims, seed=seeds, draws=st.integers(1, 4))
@settings(max_examples=25)
def test_whitened_descent_by_adam_does_not_move_from_the_exact_posterior(
    kind: str, dim: int, seed: int, draws: int
) -> None:
    # after one draw the floor of a parameter can be close to zero by accident
    stays(WhitenedDescent(optimizer="adam", draws=draws, inner_steps=5), kind, dim, seed, 1e-4)


@pytest.mark.parametrize("method", [ProximalDescent, WhitenedDescent])
def test_it_is_the_floor_that_keeps_adam_from_making_steps_out_of_rounding(
    method: type[ProximalDescent | WhitenedDescent],
) -> None:
    """Plain Adam divides a gradient by its own size, however small: it walks away from the optimum."""
    q = family("diagonal", 3, 1)
    target = Exact(type(q).stack([q]))
    moved = {
        kappa: one_step(method(optimizer="adam", inner_steps=20, floor=kappa), q, target).flat() - q.flat()
        for kappa in (0.0, 0.1)
    }
    moved = {kappa: change.abs().max() for kappa, change in moved.items()}
    assert moved[0.1] < 1e-12 < 1e-4 < moved[0.0]


@given(dim=dims, seed=seeds, draws=st.integers(1, 10))
@settings(max_examples=25)
def test_proximal_ridge_does_not_move_from_the_exact_posterior(dim: int, seed: int, draws: int) -> None:
    stays(ProximalRidge(draws=draws), "diagonal", dim, seed, 1e-11)


@given(kind=st.sampled_from(served(ADVI)), dim=st.integers(2, 5), seed=seeds, draws=st.integers(1, 3))
@settings(max_examples=40)
def test_sticking_the_landing_has_zero_gradient_at_the_exact_posterior(
    kind: str, dim: int, seed: int, draws: int
) -> None:
    method = ADVI(stick=True, draws=draws, optimizer="sgd", lr=1.0, schedule="constant")
    stays(method, kind, dim, seed, 1e-9)


@given(method=st.sampled_from([Fisher, Score]), dim=st.integers(2, 5), seed=seeds, data=st.data())
@settings(max_examples=50)
def test_score_divergences_have_zero_gradient_at_the_exact_posterior(
    method: type[Method], dim: int, seed: int, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(served(method)))
    rule = method(optimizer="sgd", lr=1.0, schedule="constant", draws=2)
    stays(rule, kind, dim, seed, 1e-8)


@pytest.mark.parametrize("kind", [*GAUSSIANS, "planar", "bare-planar"])
def test_advi_has_zero_expected_gradient_at_the_exact_posterior(kind: str) -> None:
    n, q = 8000, family(kind).in_form("covariance")
    many = type(q).stack([q] * n)
    rule = ADVI(optimizer="sgd", lr=1.0, schedule="constant")
    change = walk(rule, many, Exact(many), seeds=list(range(n))).flat() - many.flat()
    moving = change.std(0) > 0
    assert moving.sum() > 5
    assert z_score(change[:, moving]).abs().max() < 4.5


@pytest.mark.parametrize("kind", ["mixture", "mixture-diagonal"])
def test_stratified_advi_has_zero_expected_gradient_at_the_exact_mixture(kind: str) -> None:
    n, q = 8000, family(kind).in_form("covariance")
    many = type(q).stack([q] * n)
    rule = ADVI(optimizer="sgd", lr=1.0, schedule="constant", mixture="stratified")
    change = walk(rule, many, Exact(many), seeds=list(range(n))).flat() - many.flat()
    moving = change.std(0) > 1e-12
    assert moving.sum() > 5
    assert z_score(change[:, moving]).abs().max() < 4.5


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_pure(name: str) -> None:
    """It leaves the state it came from intact: the loop relies on it to skip a step."""
    kind = KINDS[METHODS[name].serves[0]][0]
    method, q, target = METHODS[name](), batch(kind, 2, seed=1), Exact(batch(kind, 2, seed=5))
    before = q.flat().clone()
    walk(method, q, target, seeds=[0, 1], steps=3)
    assert torch.equal(q.flat(), before)
    random = streams(2)
    oracle, state = CountingOracle(target, random), method.init(q.in_form(method.form), 10)
    with torch.no_grad():
        for _ in range(4):
            held = {key: value.clone() for key, value in state.tensors().items()}
            new, _ = method.step(state, oracle, random)
            assert all(torch.equal(value, held[key]) for key, value in state.tensors().items())
            assert new.step == state.step + 1
            state = new
