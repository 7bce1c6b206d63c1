"""The two variational methods with the settings that the paper prints for MNIST (App. C), and nothing else.

SGD with momentum 0.5 and learning rate 1e-2, S = 1, one draw theta = m + sigma eps of the weights per batch.
The posterior is that of the paper: s = -N grad(mean loss) - theta/s0^2. With rho = log sigma, v = sigma^2,
and g = (m - theta)/v, the score of q at the draw:
    Algorithm 1, loss |g - s|^2 + a |g - g_t|^2, a = t/T, N steps with theta fixed:
        d/dm   = 2 ((1 + a) g - a g_t - s)/v,      d/drho = -4 g ((1 + a) g - a g_t - s)                 (1)
    ADVI, loss = mean loss + KL(q|p)/N, the gradient of the mean loss being G:
        d/dm   = G + m/(N s0^2),                   d/drho = G eps sigma + (v/s0^2 - 1)/N                 (2)
(1) is not rescaled: the arm shows what it does at the scale of a network.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayescore.nn import GaussianPosterior
from bayescore.rng import generator

__all__ = ["PrintedADVI", "PrintedProximal"]


class PrintedADVI:
    """ADVI as printed (2)."""

    param_groups: tuple[dict[str, float], ...] = ({"lr": 1e-2},)
    momentum = 0.5

    def __init__(
        self, model: nn.Module, num_data: int, steps: int, *, seed: int, init_sd: float, prior_sd: float = 1.0
    ) -> None:
        self.model, self.num_data, self.steps, self.t = model, num_data, steps, 0
        self.prior_precision = prior_sd**-2.0
        self.rng = generator(seed, next(model.parameters()).device, "as printed")
        self.weights = dict(model.named_parameters())
        self.mean = {name: p.detach().clone() for name, p in self.weights.items()}
        self.rho = {name: torch.full_like(m, init_sd).log() for name, m in self.mean.items()}
        self.speed = {name: m.new_zeros(2, *m.shape) for name, m in self.mean.items()}

    @torch.no_grad()
    def step(self, loss: Callable[[], Tensor]) -> None:
        """Draw, differentiate, update; the module is left with the mean."""
        eps = {}
        for name, p in self.weights.items():
            eps[name] = torch.empty_like(p).normal_(generator=self.rng)
            p.copy_(self.mean[name] + self.rho[name].exp() * eps[name])
            p.grad = None
        with torch.enable_grad():
            loss().backward()
        for name, p in self.weights.items():
            assert p.grad is not None
            self.update(name, p.grad, eps[name])
        self.t += 1
        for name, p in self.weights.items():
            p.copy_(self.mean[name])

    def update(self, name: str, G: Tensor, eps: Tensor) -> None:
        sd = self.rho[name].exp()
        pull = self.mean[name] * self.prior_precision / self.num_data
        to_prior = (sd.square() * self.prior_precision - 1) / self.num_data
        self.descend(name, G + pull, G * eps * sd + to_prior)  # (2)

    def descend(self, name: str, to_mean: Tensor, to_rho: Tensor) -> None:
        speed = self.speed[name].mul_(self.momentum).add_(torch.stack([to_mean, to_rho]))
        lr = self.param_groups[0]["lr"]
        self.mean[name].sub_(speed[0], alpha=lr)
        self.rho[name].sub_(speed[1], alpha=lr)

    def posterior(self) -> GaussianPosterior:
        """The Gaussian so far."""
        mean = {name: m.clone() for name, m in self.mean.items()}
        return GaussianPosterior(self.model, mean, {name: r.exp() for name, r in self.rho.items()})


class PrintedProximal(PrintedADVI):
    """Algorithm 1 as printed (1)."""

    inner_steps = 2

    def update(self, name: str, G: Tensor, eps: Tensor) -> None:
        a = self.t / self.steps
        sd = self.rho[name].exp()
        theta = self.mean[name] + sd * eps
        s = -self.num_data * G - theta * self.prior_precision
        old = -eps / sd
        for _ in range(self.inner_steps):
            v = (2 * self.rho[name]).exp()
            g = (self.mean[name] - theta) / v
            miss = (1 + a) * g - a * old - s
            self.descend(name, 2 * miss / v, -4 * g * miss)  # (1)
