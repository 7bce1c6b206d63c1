"""ADVI for networks: Adam on the mean and the log standard deviation, with the KL in closed form.

Per-datum units (optim/base.py), c = tau/N, delta = c/s0^2; G = mean g_i and X = mean eps_i g_i over the
draws:
    -(c) d ELBO/d m   = G + delta (m - m0)                                                            (1)
    -    d ELBO/d rho = (sigma/c) X + sigma^2/s0^2 - 1                                                (2)
(1) is a gradient as an engineer knows it; (2) has no units. Each has Adam's moments of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.methods.descent import B1, B2
from bayescore.optim.base import Shell
from bayescore.optim.buckets import Bucket, Member
from bayescore.optim.noise import Noise, Placed, drawn
from bayescore.optim.options import positive
from bayescore.optim.precision import precision_sentence, take

__all__ = ["ADVI", "advi_single", "advi_step"]

MOMENTS = ("first_m", "first_r", "second_m", "second_r")


class ADVIOptions(NamedTuple):
    """Numbers of one step, as zero-dimensional tensors."""

    c: Tensor
    prior_precision: Tensor
    lr: Tensor
    sd_lr: Tensor
    fade1: Tensor  # 1/(1 - B1^t)
    fade2: Tensor  # 1/(1 - B2^t)


def advi_step(
    mean: Tensor,
    sd: Tensor,
    first_m: Tensor,
    first_r: Tensor,
    second_m: Tensor,
    second_r: Tensor,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    o: ADVIOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """One Adam step on mean, sd and their moments.

    The terms are (2), its square, and one over the rate at which log sd answers to (2).
    """
    slope = sd / o.c * X + sd.square() * o.prior_precision - 1  # (2)
    pull = G + o.c * o.prior_precision * (mean - prior_mean)  # (1)
    move = B1 * first_m + (1 - B1) * pull
    turn = B1 * first_r + (1 - B1) * slope
    square_m = B2 * second_m + (1 - B2) * pull * pull
    square_r = B2 * second_r + (1 - B2) * slope * slope
    size = ((square_r * o.fade2).sqrt() + 1e-8) / o.sd_lr
    mean.sub_(o.lr * o.fade1 * move / ((square_m * o.fade2).sqrt() + 1e-8))
    sd.mul_((-o.fade1 * turn / size).exp())
    for kept, new in zip(
        (first_m, first_r, second_m, second_r), (move, turn, square_m, square_r), strict=True
    ):
        kept.copy_(new)
    return slope, slope * slope, size


def advi_single(*args: Any) -> Any:
    """`advi_step` of one draw."""
    rule: Any = advi_step
    *state, g, noise, o = args
    return rule(*state, g, drawn(noise, g) * g, o)


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
        sd_rate: float = 1.0,
        init_sd: float | None = None,
        prior_mean: Any = 0.0,
        prior_sd: float = 1.0,
        weight_decay: float = 0.0,
        average: float = 0.0,
        temperature: float = 1.0,
        samples: int = 1,
        accumulate: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        max_skips: int = 50,
        compiled: bool | None = None,
        update_in_backward: bool = False,
    ) -> None:
        options = {
            key: value for key, value in locals().items() if key not in ("self", "params", "__class__")
        }
        super().__init__(params, options.pop("num_data"), options)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        positive("sd_rate", group["sd_rate"])

    def _start(self, member: Member, mean: Tensor) -> None:
        super()._start(member, mean)
        for key in MOMENTS:
            member.state[key] = torch.zeros_like(mean)

    def _apply(self, bucket: Bucket, g: Tensor | None, noise: Noise | Placed | None, draws: int) -> None:
        flat, group = bucket.flat, bucket.group
        o = ADVIOptions(
            *self._numbers(
                bucket,
                group["temperature"] / group["num_data"],
                group["prior_sd"] ** -2.0,
                group["lr"],
                group["lr"] * group["sd_rate"],
                1 / (1 - B1 ** group["updates"]),
                1 / (1 - B2 ** group["updates"]),
            )
        )
        rule = advi_step if g is None else advi_single
        seen = [flat["sum_g"] / draws, flat["sum_xg"] / draws] if g is None else [g, noise]
        kept = [flat[key] for key in ("mean", "sd", *MOMENTS)]
        totals = self._move(bucket, rule, *kept, self._prior_mean(bucket), *seen, o)
        assert bucket.moments is not None
        # the slope moves twice as much as log sd
        take(bucket.moments, totals, bucket.lengths, 2)

    def _precision_status(self) -> str:
        head = self._head
        return precision_sentence(self._measured(), head["last_draws"], "score")
