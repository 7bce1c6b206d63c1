"""The options of Algorithm 1: schedules, clipping, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian, FullGaussian
from bayescore.methods import ProximalScore
from bayescore.rng import Streams
from bayescore.targets import Gaussian, Target
from bayescore.targets.counting import CountingOracle
from cases import EVERY, F64, Exact, covariance, family, kl, normal, one_step, streams, walk

SGD = {"optimizer": "sgd", "decay": "constant"}
FAR = Gaussian(normal(3, seed=50), covariance(3, 51))


# -- schedules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "formula"),
    [
        ("linear", lambda t, T: t / T),
        ("reverse", lambda t, T: 1 - t / T),
        ("constant", lambda t, T: 1.0),
        (0.5, lambda t, T: 0.5),
        (0, lambda t, T: 0.0),
    ],
)
def test_a_schedule_of_alpha_is_its_formula(named: object, formula: Callable[[int, int], float]) -> None:
    q, target = family("full"), FAR
    a, b = (
        walk(ProximalScore(inner_steps=3, alpha=rule), q, target, steps=4).flat() for rule in (named, formula)
    )
    assert torch.equal(a, b)


@pytest.mark.parametrize("decay", ["cosine", "constant", "reverse", lambda t, T: 1 / (1 + t)])
def test_the_learning_rate_follows_its_schedule(decay: object) -> None:
    """With one inner step of SGD, a step is the rate times the gradient."""
    formulas = {
        "cosine": lambda t, T: 0.5 * (1 + torch.tensor(torch.pi * t / T).cos().item()),
        "constant": lambda t, T: 1.0,
        "reverse": lambda t, T: 1 - t / T,
    }
    formula = decay if callable(decay) else formulas[decay]
    q, target, rate = family("full"), FAR, 1e-6
    method = ProximalScore(inner_steps=1, optimizer="sgd", learning_rate=rate, decay=decay)
    plain = ProximalScore(inner_steps=1, optimizer="sgd", learning_rate=rate, decay="constant")
    # at so small a rate the parameters hardly move, so that every step sees the same gradient of its draw
    for steps in (1, 4, 9):
        a = walk(method, q, target, steps=steps).flat() - walk(method, q, target, steps=steps - 1).flat()
        b = walk(plain, q, target, steps=steps).flat() - walk(plain, q, target, steps=steps - 1).flat()
        torch.testing.assert_close(a, b * formula(steps - 1, 10), rtol=1e-3, atol=1e-3 * rate)


def test_a_callable_schedule_is_asked_with_step_and_horizon() -> None:
    asked = []
    rule = lambda t, T: asked.append((t, T)) or 0.5  # noqa: E731
    walk(ProximalScore(alpha=rule), family("full"), FAR, steps=3, horizon=7)
    assert asked == [(0, 7), (1, 7), (2, 7)]


# -- clipping ---------------------------------------------------------------------------------------------


class Scripted(Target):
    """Scores of a Gaussian, multiplied by a factor that changes from call to call."""

    name = "scripted"
    has_density = False

    def __init__(self, inner: Target, residual: list[Callable[[Tensor, Tensor], Tensor]]) -> None:
        self.inner, self.residual, self.dim, self.calls = inner, residual, inner.dim, 0

    def log_prob(self, x: Tensor) -> Tensor:
        raise TypeError("scores only")

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        change = self.residual[self.calls]
        self.calls += 1
        return change(x, self.inner.score(x))


def test_a_residual_within_the_limit_is_left_alone() -> None:
    q, target = family("full"), FAR
    a, b = (one_step(ProximalScore(clip=c), q, target).flat() for c in (None, 2.0))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("outlier", [50.0, 1e6])
def test_a_residual_beyond_the_limit_is_cut_to_it(outlier: float) -> None:
    """The second score is wild; the step taken is that of a residual twice as long as the first."""
    method = ProximalScore(clip=2.0, inner_steps=1, learning_rate=1e-9, **SGD)
    q = family("full").in_form("precision")
    direction = torch.tensor([1.0, 2.0, -2.0], dtype=F64)

    def with_residuals(first: float, second: float) -> Target:
        """g_t plus a residual of the given length: q hardly moves at this rate, so g_t is q's score."""
        return Scripted(
            Exact(type(q).stack([q])),
            [lambda x, s: s + first * direction / 3, lambda x, s: s + second * direction / 3],
        )

    wild = walk(method, q, with_residuals(1.0, outlier), steps=2).flat() - q.flat()
    cut = walk(method, q, with_residuals(1.0, 2.0), steps=2).flat() - q.flat()
    torch.testing.assert_close(wild, cut, rtol=1e-5, atol=1e-14)
    plain = ProximalScore(inner_steps=1, learning_rate=1e-9, **SGD)
    unclipped = walk(plain, q, with_residuals(1.0, outlier), steps=2).flat() - q.flat()
    assert unclipped.norm() > 5 * wild.norm()


def test_the_running_median_follows_the_residuals() -> None:
    """Residuals that stay ten times longer than the first are, after a while, no longer cut."""
    method = ProximalScore(clip=2.0, inner_steps=1, learning_rate=1e-12, **SGD)
    q = type(family("full")).stack([family("full").in_form("precision")])
    inner = Exact(q)
    script = [lambda x, s: s + 1.0] + [lambda x, s: s + 10.0] * 80
    random = streams(1)
    oracle, state, shares = CountingOracle(Scripted(inner, script), random), method.init(q, 100), []
    with torch.no_grad():
        for _ in range(81):
            state, info = method.step(state, oracle, random)
            shares.append(float(info.clipped))
    assert shares[1] == 1.0
    # 10 / (2 * 1) = exp(1.61): 33 moves of 0.05
    assert 30 <= sum(shares) <= 36
    assert shares[-1] == 0.0


def test_clipping_never_moves_a_fit_with_residual_zero() -> None:
    q = family("full").in_form("precision")
    after = walk(ProximalScore(clip=2.0), q, Exact(type(q).stack([q])), steps=3)[0]
    torch.testing.assert_close(after.flat(), q.flat(), rtol=1e-9, atol=1e-9)


# -- the norm of the covariance ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "learning_rate": 1e-3}, {"reset": True}])
def test_in_the_norm_of_the_covariance_a_transformed_problem_takes_the_transformed_steps(
    kind: str, options: dict
) -> None:
    """Any triangular change of variables for a full Gaussian, any units for a diagonal one; five steps."""
    method = ProximalScore(metric="covariance", inner_steps=4, **options)
    q, shift = family(kind), normal(3, seed=7)
    scales = (3 * normal(3, seed=8)).exp()
    A = torch.diag(scales) @ (torch.eye(3, dtype=F64) + normal(3, 3, seed=9).triu(1) * (kind == "full"))
    target = Gaussian(A @ FAR.mean + shift, A @ FAR.covariance @ A.T)
    if kind == "full":
        moved = FullGaussian.from_moments(A @ q.mean + shift, A @ q.covariance @ A.T)
    else:
        moved = DiagonalGaussian(scales * q.mean + shift, q.log_sd + scales.log())
    one, other = (walk(method, start, goal, steps=5)[0] for start, goal in ((q, FAR), (moved, target)))
    inverse = torch.linalg.inv(A)
    torch.testing.assert_close(inverse @ (other.mean - shift), one.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(inverse @ other.covariance @ inverse.T, one.covariance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["full", "precision", "diagonal"])
def test_in_the_norm_of_the_covariance_the_first_step_descends_the_weighted_loss(kind: str) -> None:
    """From N(0, I) the norm is the Euclidean one and so is the step."""
    q = DiagonalGaussian.init(3) if kind == "diagonal" else FullGaussian.init(3)
    options = {"inner_steps": 4, "samples": 2}
    a = one_step(ProximalScore(metric="covariance", **options), q, FAR)
    b = one_step(ProximalScore(**options), q, FAR)
    torch.testing.assert_close(a.flat(), b.flat(), rtol=1e-10, atol=1e-10)


def test_in_the_norm_of_the_covariance_a_start_that_is_far_too_narrow_arrives() -> None:
    target, starts = Gaussian.random(3, seed=4), [FullGaussian.init(3, scale=sd) for sd in (1e-4, 1e-2, 1.0)]
    method = ProximalScore(metric="covariance", samples=4)
    for fit in bs.fit_many(target, starts, method, steps=1000, seeds=[0, 1, 2], record_every=1000):
        assert kl(target.mean, target.covariance, fit.family.mean, fit.family.covariance) < 1e-2


@pytest.mark.parametrize("kind", ["low-rank", "mixture", "planar", "realnvp"])
def test_the_norm_of_the_covariance_is_refused_for_other_families(kind: str) -> None:
    q = family(kind)
    sentence = f"metric='covariance' cannot fit a {type(q).__name__}; it serves FullGaussian and Diagonal"
    with pytest.raises(TypeError, match=sentence):
        ProximalScore(metric="covariance").check(q, FAR)


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"inner_steps": 0}, ValueError, "inner_steps must be at least 1; got 0"),
        ({"inner_steps": 2.5}, TypeError, "inner_steps must be a whole number; got 2.5"),
        ({"samples": -1}, ValueError, "samples must be at least 1; got -1"),
        ({"alpha": "sideways"}, ValueError, "alpha must be one of .*linear.*; got 'sideways'"),
        ({"alpha": -0.5}, ValueError, "alpha must be .*not negative; got -0.5"),
        ({"alpha": float("nan")}, ValueError, "alpha.*nan"),
        ({"alpha": None}, (TypeError, ValueError), "alpha.*None"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be positive; got 0.0"),
        ({"learning_rate": float("inf")}, ValueError, "learning_rate.*inf"),
        ({"learning_rate": "fast"}, (TypeError, ValueError), "learning_rate.*fast"),
        ({"decay": "never"}, ValueError, "decay must be one of .*cosine.*; got 'never'"),
        ({"optimizer": "lbfgs"}, ValueError, "optimizer must be 'normalised', 'adam' or 'sgd'; got 'lbfgs'"),
        ({"momentum": 1.0}, ValueError, r"momentum must lie in \[0, 1\); got 1.0"),
        ({"floor": -0.1}, ValueError, "floor must not be negative; got -0.1"),
        ({"floor": float("nan")}, ValueError, "floor.*nan"),
        ({"clip": 0.0}, ValueError, "clip must be positive or None; got 0.0"),
        ({"clip": float("nan")}, ValueError, "clip.*nan"),
        ({"solver": "newton"}, ValueError, "solver must be 'gradient' or 'exact'; got 'newton'"),
        ({"metric": "manhattan"}, ValueError, "metric must be 'euclidean' or 'covariance'; got 'manhattan'"),
        ({"metric": "covariance", "solver": "exact"}, ValueError, "metric.*exact|exact.*metric"),
        ({"mean_damping": 10.0}, ValueError, "mean_damping belongs to solver='exact'"),
        ({"solver": "exact", "mean_damping": -1.0}, ValueError, "mean_damping.*-1"),
        ({"solver": "exact", "mean_damping": "slow"}, ValueError, "mean_damping must be one of .*got 'slow'"),
        ({"damping": 1000.0}, ValueError, "damping belongs to solver='exact'"),
        (
            {"solver": "exact", "damping": 99.0},
            ValueError,
            "damping must be at least 100 at 1 samples; got 99",
        ),
        ({"solver": "exact", "damping": "slow"}, ValueError, "damping must be one of .*got 'slow'"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        ProximalScore(**options)


@pytest.mark.parametrize("kind", [k for k in EVERY if k != "diagonal"])
def test_the_exact_solver_refuses_every_family_but_the_diagonal_gaussian(kind: str) -> None:
    q = family(kind)
    with pytest.raises(
        TypeError, match=f"solver='exact' cannot fit a {type(q).__name__}; it serves DiagonalGaussian"
    ):
        ProximalScore(solver="exact").check(q, Gaussian.random(3))


def test_the_settings_are_the_repr() -> None:
    assert repr(ProximalScore(inner_steps=2, learning_rate=0.03)).startswith(
        "ProximalScore(inner_steps=2, samples=1, alpha='linear', learning_rate=0.03"
    )
