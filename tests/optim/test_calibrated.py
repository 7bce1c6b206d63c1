"""The default closed form, step by step, against its equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bayescore.optim import CalibratedScore
from bayescore.rules.curvature import MEMORY


@pytest.mark.parametrize("lr", [0.05, 3.0], ids=["slow", "beyond Newton's step"])
@pytest.mark.parametrize("temperature", [1.0, 1e-4])
def test_the_default_rule_is_its_equations(temperature: float, lr: float) -> None:
    """(1) to (11) of rules/proximal.py, written out once more with a 2x2 system per weight."""
    N, B, dim, beta, damping, s0 = 400, 40, 6, 0.9, 3.0, 0.7
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(N, dim, generator=rng, dtype=torch.float64)
    y = x @ torch.ones(dim, dtype=torch.float64) + torch.randn(N, generator=rng, dtype=torch.float64)
    p = nn.Parameter(torch.zeros(dim, dtype=torch.float64))
    v0 = temperature / N
    opt = CalibratedScore(
        [p], N, lr=lr, batch_size=B, damping=damping, prior_sd=s0, prior_mean=0.2, init_sd=v0**0.5,
        temperature=temperature, momentum=beta,
    )  # fmt: skip
    c, m, s, momentum = (
        temperature / N,
        p.detach().clone(),
        torch.full_like(p, v0**0.5).detach(),
        0 * p.detach(),
    )
    delta, eta, over = c / s0**2, min(1.0, lr * c / v0), max(1.0, lr * c / v0)
    level = V = 0.0
    for t in range(1, 13):
        rows = torch.randperm(N, generator=rng)[:B]
        with opt.sample():
            eps = opt.noise(opt._buckets[0], 0).clone()
            torch.testing.assert_close(p.detach(), m + s * eps, rtol=1e-9, atol=1e-12)
            (0.5 * (x[rows] @ p - y[rows]).square().mean()).backward()
            g = p.grad.clone()
        opt.step()
        rho, a, L = 0.0, damping + 0.5, 1.0
        if t > 1:
            known = 1 - MEMORY ** (t - 1)
            mean, square = level / known, V / known
            sure = max(mean - 2 * math.sqrt(square / dim * (1 - MEMORY) / known), 0.0)
            rho = t / (t + 100 * max(square - sure**2, 0.0) / (1 + sure) ** 2)  # (7)
            a, L = damping + t / 2 + 10 * rho * math.sqrt(square), 1 + mean  # (9)
        k = (L - s**2 / s0**2).clamp(0, 1)  # (10)
        one = -(s / c) * (g + delta * (m - 0.2)) + rho * k * eps  # (1)
        seen = (s / c) * eps * g + s**2 / s0**2 - 1 - k * (eps**2 - 1)  # (2)
        past = momentum / (1 - beta ** (t - 1)) if t > 1 else 0.0
        F = B / (1 - B / N) * (1 + beta) / 2 * (g - past) ** 2  # (11)
        slope = rho * seen + (1 - rho) * (s**2 / c * F + s**2 / s0**2 - 1)  # (8)
        for i in range(dim):
            matrix = torch.tensor([[1 / eta, -rho * eps[i]], [-rho * eps[i], a + eps[i] ** 2]], dtype=p.dtype)
            u, w = torch.linalg.solve(matrix, torch.stack([one[i], slope[i]]))  # (3)
            w = w.clamp(-1, 1)
            momentum[i] = beta * momentum[i] - (1 - beta) * (c / s[i]) * u / eta  # (5)
            s[i] *= 1 - w / 2 + w**2 / 8  # (4)
            v = float(s[i] ** 2)
            reach = eta * max(v, over * min(v, v0))  # (6a)
            m[i] -= reach / c * momentum[i] / (1 - beta**t)  # (6)
        s.clamp_(max=s0)
        level = MEMORY * level + (1 - MEMORY) * float(seen.mean())
        V = MEMORY * V + (1 - MEMORY) * float((seen**2).mean())
        torch.testing.assert_close(opt.state[p]["mean"], m, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(opt.state[p]["sd"], s, rtol=1e-9, atol=1e-14)
