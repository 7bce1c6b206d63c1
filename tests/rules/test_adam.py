"""Adam and SGD are torch's own, step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescore.rules.adam import B1, B2, EPSILON, adam_moments, corrections, sgd_velocity
from cases import F64, normal

STEPS, LR = 10, 0.03


def gradient(x: Tensor, k: int) -> Tensor:
    """Of a curved function, with a push that changes from step to step and from coordinate to coordinate."""
    return torch.sinh(x) + normal(5, seed=k) * torch.logspace(-6, 2, 5, dtype=F64)


def by_torch(make) -> Tensor:
    x = normal(5).requires_grad_()
    optimizer = make([x])
    for k in range(1, STEPS + 1):
        x.grad = gradient(x.detach(), k)
        optimizer.step()
    return x.detach()


def test_ten_steps_of_adam_are_torchs() -> None:
    x = normal(5)
    first = second = torch.zeros(5, dtype=F64)
    for k in range(1, STEPS + 1):
        fade, correction = corrections(k)
        first, second, size = adam_moments(first, second, gradient(x, k), correction)
        x = x - LR * fade * first / size
    expected = by_torch(lambda parameters: torch.optim.Adam(parameters, lr=LR, betas=(B1, B2), eps=EPSILON))
    torch.testing.assert_close(x, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_ten_steps_of_sgd_are_torchs(momentum: float) -> None:
    x, velocity, lr = normal(5), torch.zeros(5, dtype=F64), 1e-3
    for k in range(1, STEPS + 1):
        velocity = sgd_velocity(velocity, gradient(x, k), momentum)
        x = x - lr * velocity
    expected = by_torch(lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum))
    torch.testing.assert_close(x, expected, rtol=1e-13, atol=1e-13)


def test_the_first_step_of_adam_has_the_size_of_the_learning_rate_whatever_the_gradient() -> None:
    g, zeros = torch.logspace(-3, 6, 10, dtype=F64), torch.zeros(10, dtype=F64)
    fade, correction = corrections(1)
    first, _, size = adam_moments(zeros, zeros, g, correction, floor=0.0)
    torch.testing.assert_close(fade * first / size, torch.ones(10, dtype=F64), rtol=1e-12, atol=0.0)


def test_a_floor_makes_steps_out_of_a_gradient_far_below_it_small() -> None:
    zeros, (fade, correction) = torch.zeros(3, dtype=F64), corrections(1)
    g = torch.tensor([1e-9, 1e-3, 1e3], dtype=F64)
    floor = torch.tensor([1.0, 1.0, 1.0], dtype=F64)
    first, _, size = adam_moments(zeros, zeros, g, correction, floor)
    torch.testing.assert_close(fade * first / size, g / (g + floor), rtol=1e-12, atol=0.0)
