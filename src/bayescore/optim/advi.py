"""ADVI for networks: Adam on the mean and the log standard deviation, with the KL in closed form.

Per-datum units (optim/base.py), c = tau/N, delta = c/s0^2; G = mean g_i and X = mean eps_i g_i over the
draws:
    -(c) d ELBO/d m   = G + delta (m - m0)                                                            (1)
    -    d ELBO/d rho = (sigma/c) X + sigma^2/s0^2 - 1                                                (2)
(1) is a gradient as an engineer knows it; (2) has no units. Each has Adam's moments of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescore.methods.descent import B1, B2
from bayescore.optim.base import Shell
from bayescore.optim.exact import MEMORY
from bayescore.optim.options import positive
from bayescore.optim.precision import precision_sentence
from bayescore.optim.sampling import Member

__all__ = ["ADVI", "advi_step"]


def advi_step(
    mean: Tensor,
    sd: Tensor,
    first: Tensor,
    second: Tensor,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    *,
    c: float,
    prior_precision: float,
    lr: float,
    sd_lr: float,
    t: int,
) -> Tensor:
    """One Adam step, in place; returns the gradient (2). first, second: moments of m and rho, (2, *shape)."""
    slope = sd / c * X + sd.square() * prior_precision - 1  # (2)
    grad = torch.stack([G + c * prior_precision * (mean - prior_mean), slope])  # (1), (2)
    first.lerp_(grad, 1 - B1)
    second.mul_(B2).addcmul_(grad, grad, value=1 - B2)
    move = first / ((second / (1 - B2**t)).sqrt_().add_(1e-8)) / (1 - B1**t)
    mean.sub_(move[0], alpha=lr)
    sd.mul_(move[1].mul_(-sd_lr).exp_())
    return slope


class ADVI(Shell):
    """Mean-field variational inference through reparametrised draws.

    Arguments:
        lr, sd_rate: Adam's rate for the mean, and that of log sd as a multiple of it.
        the rest: as in ProximalScore.
    """

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float = 1e-3,
        sd_rate: float = 5.0,
        init_sd: float | None = None,
        prior_mean: Any = 0.0,
        prior_sd: float = 1.0,
        temperature: float = 1.0,
        samples: int = 1,
        accumulate: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        max_skips: int = 50,
    ) -> None:
        options = {
            key: value for key, value in locals().items() if key not in ("self", "params", "__class__")
        }
        super().__init__(params, options.pop("num_data"), options)

    def _check(self, group: dict[str, Any]) -> None:
        positive("sd_rate", group["sd_rate"])

    def _start(self, member: Member, mean: Tensor) -> None:
        super()._start(member, mean)
        member.state["first"] = mean.new_zeros(2, *mean.shape)
        member.state["second"] = mean.new_zeros(2, *mean.shape)
        member.state["moments"] = mean.new_zeros(2)

    def _apply(self, member: Member, g: Tensor | None, eps: Tensor, draws: int) -> None:
        state, group = member.state, member.group
        G, X = (g, eps * g) if g is not None else (state["sum_g"] / draws, state["sum_xg"] / draws)
        slope = advi_step(
            state["mean"],
            state["sd"],
            state["first"],
            state["second"],
            self.prior_mean(member),
            G,
            X,
            c=group["temperature"] / group["num_data"],
            prior_precision=group["prior_sd"] ** -2.0,
            lr=group["lr"],
            sd_lr=group["lr"] * group["sd_rate"],
            t=group["updates"],
        )
        state["moments"].mul_(MEMORY).add_(
            torch.stack([slope.mean(), slope.square().mean()]), alpha=1 - MEMORY
        )

    def _precision_status(self) -> str:
        head = self._head
        return precision_sentence(self.slope_noise(), head["updates"], head["last_draws"], "score", 0.0)
