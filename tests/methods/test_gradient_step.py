"""Schedules of alpha and of the learning rate, in both descents."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bayescore.methods import ProximalDescent, WhitenedDescent
from bayescore.targets import Gaussian
from cases import covariance, family, normal, walk

FAR = Gaussian(normal(3, seed=50), covariance(3, 51))
BOTH = (ProximalDescent, WhitenedDescent)
Descent = type[ProximalDescent | WhitenedDescent]


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
@pytest.mark.parametrize("method", BOTH)
def test_a_schedule_of_alpha_is_its_formula(
    method: Descent, named: object, formula: Callable[[int, int], float]
) -> None:
    q, target = family("full"), FAR
    a, b = (walk(method(inner_steps=3, alpha=rule), q, target, steps=4).flat() for rule in (named, formula))
    assert torch.equal(a, b)


@pytest.mark.parametrize("schedule", ["cosine", "constant", "reverse", lambda t, T: 1 / (1 + t)])
@pytest.mark.parametrize("method", BOTH)
def test_the_learning_rate_follows_its_schedule(method: Descent, schedule: object) -> None:
    """With one inner step of SGD, a step is the rate times the gradient."""
    formulas = {
        "cosine": lambda t, T: 0.5 * (1 + torch.tensor(torch.pi * t / T).cos().item()),
        "constant": lambda t, T: 1.0,
        "reverse": lambda t, T: 1 - t / T,
    }
    formula = schedule if callable(schedule) else formulas[schedule]
    q, target, rate = family("full"), FAR, 1e-6
    options = {"inner_steps": 1, "optimizer": "sgd", "lr": rate}
    scheduled, plain = method(schedule=schedule, **options), method(schedule="constant", **options)
    # at so small a rate the parameters hardly move, so that every step sees the same gradient of its draw
    for steps in (1, 4, 9):
        a = (
            walk(scheduled, q, target, steps=steps).flat()
            - walk(scheduled, q, target, steps=steps - 1).flat()
        )
        b = walk(plain, q, target, steps=steps).flat() - walk(plain, q, target, steps=steps - 1).flat()
        torch.testing.assert_close(a, b * formula(steps - 1, 10), rtol=1e-3, atol=1e-3 * rate)


@pytest.mark.parametrize("method", BOTH)
def test_a_callable_schedule_is_asked_with_step_and_horizon(method: Descent) -> None:
    asked = []
    rule = lambda t, T: asked.append((t, T)) or 0.5  # noqa: E731
    walk(method(alpha=rule), family("full"), FAR, steps=3, horizon=7)
    assert asked == [(0, 7), (1, 7), (2, 7)]
