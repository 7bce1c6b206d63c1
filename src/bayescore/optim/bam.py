"""Diagonal BaM for networks: the closed form of methods/bam.py (6) with the mini-batch in mind.

Per weight, from S >= 2 draws z_i with scores g_i, their means zbar, gbar and variances Var (divided by S):
    a s^2 + s/lam - b = 0,  a = Var(g) + gbar^2/(1+lam),  b = Var(z) + s_t/lam + (mu_t - zbar)^2/(1+lam)  (1)
    mu = mu_t/(1+lam) + lam/(1+lam) (s gbar + zbar)                                                        (2)
Under mini-batches gbar^2 is mostly noise, kappa = N/(batch tau) times what it should be, and (1) shrinks s
by about that factor; draws on the same batch share that noise, so Var(g) is free of it. centred=True (the
default) therefore leaves gbar^2 and (mu_t - zbar)^2 out of (1); centred=False is BaM as published.

The variance of the scores is taken about the first one, so that what the draws share cancels before
squaring. In per-datum units, c = tau/N: g = -(1/c) (grad l + delta (theta - m0)).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescore.optim.base import Shell
from bayescore.optim.sampling import Member

__all__ = ["BaM", "bam_step"]


def bam_step(
    mean: Tensor, sd: Tensor, zbar: Tensor, z2: Tensor, gbar: Tensor, g2: Tensor, lam: float, centred: bool
) -> tuple[Tensor, Tensor]:
    """New mean and sd.

    Everything is whitened: zbar and z2 are mean and variance of eps, gbar and g2 those of sigma * score, so
    that (1) reads for x = s/s_t: g2 x^2 + x/lam - (z2 + 1/lam) = 0 and stays in range.
    """
    a, b = g2, z2 + 1 / lam
    if not centred:
        a, b = a + gbar.square() / (1 + lam), b + zbar.square() / (1 + lam)
    x = 2 * b / (1 / lam + (1 / lam**2 + 4 * a * b).sqrt())  # (1)
    return mean + sd * lam / (1 + lam) * (x * gbar + zbar), sd * x.sqrt()  # (2)


class BaM(Shell):
    """Batch and match with a diagonal Gaussian over the weights.

    Arguments:
        lr: lam of (1) and (2), the weight of the new draws; small averages over many steps.
        centred: leave the mean score out of the variance (see above).
        samples: draws per step with `opt.step(closure)`; at least 2 per step, all on the same batch.
        the rest: as in ProximalScore.
    """

    least_draws = 2

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float = 0.02,
        centred: bool = True,
        init_sd: float | None = None,
        prior_mean: Any = 0.0,
        prior_sd: float = 1.0,
        temperature: float = 1.0,
        samples: int = 2,
        accumulate: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        max_skips: int = 50,
    ) -> None:
        options = {
            key: value for key, value in locals().items() if key not in ("self", "params", "__class__")
        }
        options["gain"] = 0.0  # sum of lr over the updates
        super().__init__(params, options.pop("num_data"), options)

    def _check(self, group: dict[str, Any]) -> None:
        if group["samples"] < 2:
            raise ValueError(f"BaM needs samples of at least 2; got {group['samples']}")

    def _collect(self, member: Member, g: Tensor, eps: Tensor) -> None:
        state = member.state
        if "sum_g" not in state:
            state["sum_first_g"] = g.clone()
            for key in ("sum_g", "sum_gg", "sum_xg"):
                state[key] = torch.zeros_like(g)
            state["sum_e"], state["sum_ee"] = eps.clone(), eps.square()
            return
        d = g - state["sum_first_g"]
        state["sum_g"].add_(d)
        state["sum_gg"].addcmul_(d, d)
        state["sum_xg"].addcmul_(d, eps)
        state["sum_e"].add_(eps)
        state["sum_ee"].addcmul_(eps, eps)

    def _apply(self, member: Member, g: Tensor | None, eps: Tensor, draws: int) -> None:  # noqa: ARG002
        state, group = member.state, member.group
        c, tight = group["temperature"] / group["num_data"], group["prior_sd"] ** -2.0
        scale = state["sd"] / c
        zbar, d = state["sum_e"] / draws, state["sum_g"] / draws
        z2 = (state["sum_ee"] / draws - zbar.square()).clamp_min(0)
        k = c * tight * state["sd"]  # the prior adds k eps to every per-datum gradient
        cross = state["sum_xg"] / draws - zbar * d
        spread = state["sum_gg"] / draws - d.square() + 2 * k * cross + k.square() * z2
        pull = c * tight * (state["mean"] - self.prior_mean(member))
        gbar = -scale * (state["sum_first_g"] + d + pull + k * zbar)
        g2 = scale.square() * spread.clamp_min(0)
        mean, sd = bam_step(state["mean"], state["sd"], zbar, z2, gbar, g2, group["lr"], group["centred"])
        state["mean"].copy_(mean)
        state["sd"].copy_(sd.clamp_max(group["prior_sd"]))

    def _finish(self, draws: int) -> None:
        before = self._head["updates"]
        super()._finish(draws)
        for group in self.param_groups:
            group["gain"] += group["lr"] * (group["updates"] - before)

    def _precision_status(self) -> str:
        group = self._head
        if group["gain"] < 3:
            return (
                f"precision not learned yet: {group['updates']} updates have not outweighed its initial value"
            )
        return (
            f"precision learned over about {1 / group['lr']:.0f} updates, if a step's draws share their batch"
        )
