"""Algorithm 1 as it is written: the loss (1), its gradient, the inner loop, and every option of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.families import Family
from bayescore.methods import ProximalScore
from bayescore.targets import Gaussian, Target
from cases import EVERY, F64, family, first_draws, gaussian, normal, one_step, streams, walk

SGD = {"optimizer": "sgd", "decay": "constant"}


def other(kind: str, dim: int, seed: int) -> Target:
    """A target far from the family of the same seed."""
    return Gaussian(normal(dim, seed=seed + 50), gaussian(dim, seed + 51).covariance)


def loss_at(q0: Family, flat: Tensor, theta: Tensor, s: Tensor, alpha: float) -> Tensor:
    """(1), written down once more."""
    g, g_t = q0.from_flat(flat).score(theta), q0.score(theta).detach()
    terms = alpha * (g - g_t).square().sum(-1) + (g - s).square().sum(-1)
    return terms.mean(-1).sum()


@given(
    kind=st.sampled_from(EVERY), dim=st.integers(2, 4), seed=st.integers(0, 10_000), samples=st.integers(1, 4)
)
@settings(max_examples=60)
def test_the_first_inner_step_follows_the_gradient_of_the_loss(
    kind: str, dim: int, seed: int, samples: int
) -> None:
    method = ProximalScore(
        metric="euclidean", inner_steps=1, samples=samples, learning_rate=1e-3, alpha=0.7, **SGD
    )
    q, target = family(kind, dim, seed).in_form("precision"), other(kind, dim, seed)
    theta = first_draws(method, q, samples, seed)
    flat = q.flat().requires_grad_()
    (grad,) = torch.autograd.grad(loss_at(q, flat, theta, target.score(theta), 0.7), flat)
    change = one_step(method, q, target, seed=seed).flat() - q.flat()
    torch.testing.assert_close(change / -1e-3, grad, rtol=1e-7, atol=1e-7 * (1 + float(grad.abs().max())))


def reference(
    method: ProximalScore,
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
            theta = q_t.transform(q_t.noise(random, method.samples))
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
    method = ProximalScore(
        metric="euclidean",
        inner_steps=7,
        samples=2,
        floor=0.0,
        reset=reset,
        learning_rate=0.01,
        decay="constant",
    )
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
@pytest.mark.parametrize("kind", ["full", "mixture", "planar"])
def test_the_inner_loop_is_sgd_of_torch_on_the_loss(kind: str, momentum: float, reset: bool) -> None:
    rate = 1e-4
    method = ProximalScore(
        metric="euclidean",
        inner_steps=5,
        optimizer="sgd",
        momentum=momentum,
        learning_rate=rate,
        reset=reset,
        alpha="reverse",
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


@pytest.mark.parametrize("kind", ["full", "mixture", "planar"])
def test_alpha_has_no_effect_on_the_first_inner_step_and_has_one_on_the_second(kind: str) -> None:
    q, target = family(kind), other(kind, 3, 0)
    after = {
        (n, alpha): one_step(ProximalScore(inner_steps=n, alpha=alpha), q, target).flat()
        for n in (1, 2)
        for alpha in (0.0, 1.0)
    }
    # not bitwise: (1 + alpha) g - alpha g_t - s is rounded
    torch.testing.assert_close(after[1, 0.0], after[1, 1.0], rtol=1e-9, atol=1e-9)
    assert (after[2, 0.0] - after[2, 1.0]).abs().max() > 1e-6


def test_a_large_alpha_holds_the_family_where_it_was() -> None:
    q, target = family("full"), other("full", 3, 0)
    start = q.in_form("precision").flat()

    def moved(alpha: float) -> float:
        method = ProximalScore(metric="euclidean", inner_steps=400, learning_rate=1e-4, alpha=alpha, **SGD)
        return float((one_step(method, q, target).flat() - start).norm())

    assert moved(20.0) < 0.3 * moved(0.0)
