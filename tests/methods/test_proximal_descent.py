"""Algorithm 1 as it is written: the loss (1), its gradient, the inner loop, and every option of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.families import Family
from bayescore.methods import ProximalDescent, WhitenedDescent
from bayescore.rng import Streams
from bayescore.targets import Gaussian, Target
from bayescore.targets.counting import CountingOracle
from cases import (
    EVERY,
    F64,
    Exact,
    covariance,
    family,
    first_draws,
    gaussian,
    normal,
    one_step,
    streams,
    walk,
)

SGD = {"optimizer": "sgd", "schedule": "constant"}
FAR = Gaussian(normal(3, seed=50), covariance(3, 51))


def other(kind: str, dim: int, seed: int) -> Target:
    """A target far from the family of the same seed."""
    return Gaussian(normal(dim, seed=seed + 50), gaussian(dim, seed + 51).covariance)


def loss_at(q0: Family, flat: Tensor, theta: Tensor, s: Tensor, alpha: float) -> Tensor:
    """(1), written down once more."""
    g, g_t = q0.from_flat(flat).score(theta), q0.score(theta).detach()
    terms = alpha * (g - g_t).square().sum(-1) + (g - s).square().sum(-1)
    return terms.mean(-1).sum()


@given(
    kind=st.sampled_from(EVERY), dim=st.integers(2, 4), seed=st.integers(0, 10_000), draws=st.integers(1, 4)
)
@settings(max_examples=60)
def test_the_first_inner_step_follows_the_gradient_of_the_loss(
    kind: str, dim: int, seed: int, draws: int
) -> None:
    method = ProximalDescent(inner_steps=1, draws=draws, lr=1e-3, alpha=0.7, **SGD)
    q, target = family(kind, dim, seed).in_form("precision"), other(kind, dim, seed)
    theta = first_draws(method, q, draws, seed)
    flat = q.flat().requires_grad_()
    (grad,) = torch.autograd.grad(loss_at(q, flat, theta, target.score(theta), 0.7), flat)
    change = one_step(method, q, target, seed=seed).flat() - q.flat()
    torch.testing.assert_close(change / -1e-3, grad, rtol=1e-7, atol=1e-7 * (1 + float(grad.abs().max())))


def reference(
    method: ProximalDescent,
    q: Family,
    target: Target,
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    **options,
) -> Tensor:
    """Algorithm 1 by autograd and torch.optim, over some iterations: the flat parameters at the end."""
    steps, horizon, alpha, rate = options["steps"], options["horizon"], options["alpha"], options["rate"]
    q = type(q).stack([q]).in_form("precision")
    flat, random = q.flat().requires_grad_(), streams(1)
    optimizer = make([flat])
    for t in range(steps):
        q_t = q.from_flat(flat.detach().clone())
        with torch.no_grad():
            theta = q_t.transform(q_t.noise(random, method.draws))
            s = target.score(theta)
        if method.reset:
            optimizer = make([flat])
        optimizer.param_groups[0]["lr"] = rate(t, horizon)
        for _ in range(method.inner_steps):
            optimizer.zero_grad()
            loss_at(q_t, flat, theta, s, alpha(t, horizon)).backward()
            optimizer.step()
    return flat.detach()[0]


@pytest.mark.parametrize(
    "kind", ["full", "diagonal", "low-rank", "mixture", "mixture-diagonal", "planar", "realnvp"]
)
@pytest.mark.parametrize("reset", [False, True])
def test_the_inner_loop_is_adam_of_torch_on_the_loss(kind: str, reset: bool) -> None:
    """To 1e-10, over three iterations of seven inner steps, with and without forgetting the moments."""
    method = ProximalDescent(inner_steps=7, draws=2, floor=0.0, reset=reset, lr=0.01, schedule="constant")
    q, target = family(kind), other(kind, 3, 0)
    expected = reference(
        method,
        q,
        target,
        lambda parameters: torch.optim.Adam(parameters),
        steps=3,
        horizon=10,
        alpha=lambda t, T: t / T,
        rate=lambda t, T: 0.01,
    )
    mine = walk(method, q, target, steps=3).flat()[0]
    torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("kind", ["full", "diagonal", "mixture", "planar"])
def test_the_inner_loop_is_sgd_of_torch_on_the_loss(kind: str, momentum: float, reset: bool) -> None:
    rate = 1e-4
    method = ProximalDescent(
        inner_steps=5, optimizer="sgd", momentum=momentum, lr=rate, reset=reset, alpha="reverse"
    )
    q, target = family(kind), other(kind, 3, 0)
    expected = reference(
        method,
        q,
        target,
        lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum),
        steps=3,
        horizon=10,
        alpha=lambda t, T: 1 - t / T,
        rate=lambda t, T: rate * 0.5 * (1 + torch.tensor(torch.pi * t / T, dtype=F64).cos().item()),
    )
    torch.testing.assert_close(walk(method, q, target, steps=3).flat()[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (WhitenedDescent, "full"),
        (WhitenedDescent, "diagonal"),
        (ProximalDescent, "full"),
        (ProximalDescent, "diagonal"),
        (ProximalDescent, "mixture"),
        (ProximalDescent, "planar"),
    ],
)
def test_alpha_has_no_effect_on_the_first_inner_step_and_has_one_on_the_second(
    method: type[ProximalDescent | WhitenedDescent], kind: str
) -> None:
    q, target = family(kind), other(kind, 3, 0)
    after = {
        (n, alpha): one_step(method(inner_steps=n, alpha=alpha), q, target).flat()
        for n in (1, 2)
        for alpha in (0.0, 1.0)
    }
    # not bitwise: (1 + alpha) g - alpha g_t - s is rounded
    torch.testing.assert_close(after[1, 0.0], after[1, 1.0], rtol=1e-9, atol=1e-9)
    assert (after[2, 0.0] - after[2, 1.0]).abs().max() > 1e-6


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_a_large_alpha_holds_the_family_where_it_was(kind: str) -> None:
    q, target = family(kind), other(kind, 3, 0)
    start = q.in_form("precision").flat()

    def moved(alpha: float) -> float:
        method = ProximalDescent(inner_steps=400, lr=1e-4, alpha=alpha, **SGD)
        return float((one_step(method, q, target).flat() - start).norm())

    assert moved(20.0) < 0.3 * moved(0.0)


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
    a, b = (one_step(ProximalDescent(clip=c), q, target).flat() for c in (None, 2.0))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("outlier", [50.0, 1e6])
def test_a_residual_beyond_the_limit_is_cut_to_it(outlier: float) -> None:
    """The second score is wild; the step taken is that of a residual twice as long as the first."""
    method = ProximalDescent(clip=2.0, inner_steps=1, lr=1e-9, **SGD)
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
    plain = ProximalDescent(inner_steps=1, lr=1e-9, **SGD)
    unclipped = walk(plain, q, with_residuals(1.0, outlier), steps=2).flat() - q.flat()
    assert unclipped.norm() > 5 * wild.norm()


def test_the_running_median_follows_the_residuals() -> None:
    """Residuals that stay ten times longer than the first are, after a while, no longer cut."""
    method = ProximalDescent(clip=2.0, inner_steps=1, lr=1e-12, **SGD)
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
    after = walk(ProximalDescent(clip=2.0), q, Exact(type(q).stack([q])), steps=3)[0]
    torch.testing.assert_close(after.flat(), q.flat(), rtol=1e-9, atol=1e-9)


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"inner_steps": 0}, ValueError, "inner_steps must be at least 1; got 0"),
        ({"inner_steps": 2.5}, TypeError, "inner_steps must be a whole number; got 2.5"),
        ({"draws": -1}, ValueError, "draws must be at least 1; got -1"),
        ({"alpha": "sideways"}, ValueError, "alpha must be one of .*linear.*; got 'sideways'"),
        ({"alpha": -0.5}, ValueError, "alpha must be .*not negative; got -0.5"),
        ({"alpha": float("nan")}, ValueError, "alpha.*nan"),
        ({"alpha": None}, (TypeError, ValueError), "alpha.*None"),
        ({"lr": 0.0}, ValueError, "lr must be positive; got 0.0"),
        ({"lr": float("inf")}, ValueError, "lr.*inf"),
        ({"lr": "fast"}, (TypeError, ValueError), "lr.*fast"),
        ({"schedule": "never"}, ValueError, "schedule must be one of .*cosine.*; got 'never'"),
        ({"optimizer": "lbfgs"}, ValueError, "optimizer must be 'adam' or 'sgd'; got 'lbfgs'"),
        ({"floor": -0.1}, ValueError, "floor must not be negative; got -0.1"),
        ({"floor": float("nan")}, ValueError, "floor.*nan"),
        ({"momentum": 1.0}, ValueError, r"momentum must lie in \[0, 1\); got 1.0"),
        ({"clip": 0.0}, ValueError, "clip must be positive or None; got 0.0"),
        ({"clip": float("nan")}, ValueError, "clip.*nan"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        ProximalDescent(**options)


def test_the_settings_are_the_repr() -> None:
    assert repr(ProximalDescent(inner_steps=2, lr=0.03)).startswith(
        "ProximalDescent(inner_steps=2, draws=1, alpha='linear', lr=0.03"
    )
