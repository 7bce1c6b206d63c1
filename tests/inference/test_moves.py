"""Moves of draws towards the target: they leave it as it is, reach it from q, and tell what they leave."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian, Family, FullGaussian
from bayescore.inference.diagnosis import memory, to_come
from bayescore.inference.moves import Walkers, _at, can_move, tempered
from bayescore.inference.result import MOVES, TOGETHER, Trust
from bayescore.targets import Banana, Gaussian, LogDensity, NoisyScore
from cases import EVERY, F64, MIXTURES, family, normal, z_score

MOVABLE = [kind for kind in EVERY if kind not in MIXTURES]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def held(target: bs.targets.Target, q: Family, seed: int = 0) -> bs.Fit:
    """A fit that stays at q."""
    return bs.fit(target, q, bs.methods.ADVI(lr=1e-12), steps=1, seed=seed, progress=False)


@pytest.mark.parametrize("kind", MOVABLE)
def test_the_gradient_is_that_of_the_log_density(kind: str) -> None:
    q, target = family(kind), Banana(3)
    e = normal(5, q.noise_dim).requires_grad_()
    x = q.transform(e)
    log_p = target.log_prob(x) - q.log_prob(x) - 0.5 * e.square().sum(-1)
    (expected,) = torch.autograd.grad(log_p.sum(), e)
    found = _at(target, q, e.detach())
    torch.testing.assert_close(found.log_p, log_p.detach())
    torch.testing.assert_close(found.g, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["full", "diagonal", "low-rank", "coupling", "realnvp"])
def test_draws_of_the_target_stay_draws_of_the_target(kind: str) -> None:
    """Noise is rejected until x = T(e) is a draw of the target, N(m, S) near q, and e one of (1)."""
    q = family(kind)
    mean, cov = q.sample(20_000, seed=1).mean(0), q.sample(20_000, seed=1).T.cov()
    shifted = mean + 0.2 * cov.diagonal().sqrt()
    target = Gaussian(shifted, 0.6 * cov)
    e = normal(60_000, q.noise_dim, seed=3)
    with torch.no_grad():
        x = q.transform(e)
        ratio = target.log_prob(x) - q.log_prob(x)
    taken = torch.rand(len(e), generator=rng(), dtype=F64) < (ratio - ratio.max()).exp()  # rejection sampling
    e = e[taken][:1500]
    assert len(e) > 200
    walkers = Walkers(target, q, e, rng(1))
    walkers.move(6)
    assert 0.2 < walkers.acceptance < 0.99
    centred = walkers.x - shifted
    assert z_score(centred).abs().max() < 4.5
    assert z_score(centred.square(), 0.6 * cov.diagonal()).abs().max() < 4.5


def test_draws_of_a_wrong_q_become_draws_of_the_target() -> None:
    target, q = Banana(), FullGaussian.init(2, scale=0.7)
    walkers = Walkers(target, q, normal(2000, 2), rng(2))
    walkers.move(40, adapt=True)
    expected = target.sample(200_000, seed=1)
    assert (walkers.x.mean(0) - expected.mean(0)).abs().max() < 0.15
    assert (walkers.x.std(0) / expected.std(0)).log().abs().max() < 0.1


def test_score_calls_are_those_of_the_leaps() -> None:
    walkers = Walkers(Gaussian.random(3, seed=1), FullGaussian.init(3), normal(10, 3), rng())
    walkers.move(3)
    assert walkers.score_calls == 10 * (1 + 4 * 3)


def test_points_without_a_finite_density_are_not_taken() -> None:
    half = LogDensity(lambda x: torch.where(x > 0, -x, -torch.inf).sum(-1), 2)
    q = FullGaussian.init(2)
    e = normal(500, 2).abs() + 0.01
    walkers = Walkers(half, q, e, rng())
    walkers.move(10, adapt=True)
    assert bool((walkers.x > 0).all())
    assert (walkers.x.mean(0) - 1).abs().max() < 0.3


def test_points_without_a_finite_score_are_taken_where_the_density_is_finite() -> None:
    """The gradient of a branch that is not taken: nan for x_0 < -0.8, where a tenth of the target lies."""

    def density(x: Tensor) -> Tensor:
        nothing = torch.where(x[:, 0] > -0.8, (x[:, 0] + 0.8).sqrt() * 0.0, 0.0)
        return -0.5 * ((x - 0.4) / 0.9).square().sum(-1) + nothing

    target = LogDensity(density, 2)
    walkers = Walkers(target, FullGaussian.init(2), normal(2000, 2), rng())
    walkers.move(30, adapt=True)
    share = float((walkers.x[:, 0] < -0.8).double().mean())
    assert 0.07 < share < 0.115  # 0.091


def test_weights_are_tempered_until_enough_draws_count() -> None:
    w = (8 * normal(1000)).log_softmax(0)
    assert 1 / w.exp().square().sum() < 50
    for least in (50, 200, 900):
        found = tempered(w, least).exp()
        assert float(found.sum()) == pytest.approx(1)
        assert float(1 / found.square().sum()) == pytest.approx(least, rel=1e-3)
        assert torch.equal(found.argsort(), w.argsort())
    even = torch.full((10,), -math.log(10), dtype=F64)
    torch.testing.assert_close(tempered(even, 10), even)


@pytest.mark.parametrize("c", [0.3, 0.6, 0.9])
def test_what_moves_leave_is_known_where_they_forget_at_one_rate(c: float) -> None:
    """x_M = c x_0 + sqrt(1 - c^2) z: what x_0 is off by in mean is c times that after the moves."""
    off = 0.8
    x = normal(4000, 1, seed=4) + off
    y = c * x + math.sqrt(1 - c**2) * normal(4000, 1, seed=5)
    kept = memory(x, y)
    assert c - 0.05 < float(kept) < c + 0.1
    assert 0.8 * c * off < float(to_come(x, y, kept)) < 1.8 * c * off


def test_what_never_moves_is_not_believed_and_a_constant_is() -> None:
    x = torch.cat([normal(500, 1), torch.ones(500, 1, dtype=F64)], -1)
    assert to_come(x, x, memory(x, x)).tolist() == [math.inf, 0.0]


def test_what_is_not_finite_after_moves_is_not_believed() -> None:
    x, y = normal(500, 2), normal(500, 2, seed=1)
    y[3, 0] = math.inf
    left = to_come(x, y, memory(x, y))
    assert float(left[0]) == math.inf
    assert float(left[1]) < 0.1


def test_equal_numbers_are_not_remembered_by_their_rows() -> None:
    x, y = ((normal(500, 1, seed=seed) > 2).double() for seed in (6, 7))  # a fiftieth is 1
    assert float(memory(x, y)) < 0.3
    assert float(memory(x, x)) == 1.0


def test_copies_of_one_draw_are_not_believed() -> None:
    x, y = torch.zeros(500, 1, dtype=F64), normal(500, 1)
    assert float(to_come(x, y, memory(x, y))) == math.inf


def test_a_good_q_is_not_moved_and_another_is() -> None:
    target = LogDensity(lambda x: -0.5 * ((x - 0.4) / 0.9).square().sum(-1), 2)
    good, shifted = (
        held(target, DiagonalGaussian.init(2, mean=torch.full((2,), 0.4, dtype=F64), scale=0.9)),
        held(target, FullGaussian.init(2)),
    )
    assert good.diagnosis is not None
    assert shifted.diagnosis is not None
    assert (good.trust, good.diagnosis.moves, good.diagnosis.score_calls) == (Trust.GOOD, 0, 0)
    assert (shifted.trust, shifted.diagnosis.moves) == (Trust.USABLE, MOVES[0])
    calls = TOGETHER * (1 + 4 * MOVES[0])
    assert shifted.diagnosis.score_calls == calls
    assert f"and {calls} for the diagnosis" in shifted.summary()
    assert f"weights and {MOVES[0]} moves" in shifted.verdict
    x = shifted.resample(3000, seed=2)
    assert torch.equal(x, shifted.resample(3000, seed=2))
    assert not torch.equal(x, shifted.resample(3000, seed=3))


@pytest.mark.parametrize("n", [1, 7, 499, 501, 1237])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_any_number_of_draws_is_moved(n: int, dtype: torch.dtype) -> None:
    target = LogDensity(lambda x: -0.5 * ((x - 0.4) / 0.9).square().sum(-1), 2, dtype=dtype)
    x = held(target, FullGaussian.init(2, dtype=dtype)).resample(n, moves=2)
    assert (x.shape, x.dtype) == ((n, 2), dtype)


def test_states_of_a_walker_are_next_to_each_other() -> None:
    """So that effective sample sizes of chains see what they have in common."""
    target = LogDensity(lambda x: -0.5 * ((x - 0.4) / 0.9).square().sum(-1), 2)
    fit = held(target, FullGaussian.init(2))
    assert torch.equal(fit.resample(1000, moves=4)[::2], fit.resample(500, moves=4))


def test_a_loaded_fit_moves_the_same_draws(tmp_path: Path) -> None:
    target = LogDensity(lambda x: -0.5 * ((x - 0.4) / 0.9).square().sum(-1), 2)
    fit = held(target, FullGaussian.init(2))
    fit.save(tmp_path / "fit.safetensors")
    again = bs.Fit.load(tmp_path / "fit.safetensors", target)
    assert torch.equal(again.resample(600), fit.resample(600))
    assert again.verdict == fit.verdict


def test_moves_bring_draws_nearer_to_a_bent_ridge_and_what_they_leave_is_not_called_usable() -> None:
    """A ridge bent by x^2: draws that are only weighted have half of its sd, 1.5."""
    target = LogDensity(lambda x: -0.5 * x[:, 0] ** 2 - 2 * (x[:, 1] - x[:, 0] ** 2 + 1).square(), 2)
    for seed in range(3):
        fit = bs.fit(target, effort="quick", seed=seed, progress=False)
        weighted, after = (float(fit.resample(4000, moves=m).std(0)[1]) for m in (0, None))
        assert weighted < 0.75 * 1.5
        assert weighted < after < 1.5 * 1.1
        assert fit.trust is Trust.POOR


def _noisy() -> bs.targets.Target:
    return NoisyScore(Gaussian.random(3, seed=1), 0.3)


@pytest.mark.parametrize("case", ["noisy", "scores", "mixture"])
def test_where_draws_cannot_be_moved_they_are_weighted_and_asking_for_moves_says_why(case: str) -> None:
    exact = Gaussian.random(3, seed=1)
    target = {"noisy": _noisy(), "scores": bs.targets.ScoreFunction(exact.score, 3)}.get(case, exact)
    q = family("mixture" if case == "mixture" else "full")
    assert not can_move(target, q)
    fit = held(target, q)
    why = "no log density" if case == "scores" else "cannot be moved: that takes an exact log density"
    with pytest.raises(ValueError, match=why):
        fit.resample(10, moves=4)
    if case != "scores":
        assert fit.diagnosis is not None
        assert fit.diagnosis.moves == 0
        assert fit.resample(10).shape == (10, 3)


def test_moves_are_a_whole_number() -> None:
    fit = held(Gaussian.random(3, seed=1), FullGaussian.init(3))
    with pytest.raises((TypeError, ValueError), match="moves"):
        fit.resample(10, moves=-1)
