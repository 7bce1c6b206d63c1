"""ADVI for networks: Adam on the mean and the log standard deviation (rules/advi.py)."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from bayescore.optim.base import BayesianOptimizer, Move, Seen
from bayescore.optim.engine import Bucket, Member
from bayescore.optim.options import CommonOptions, positive
from bayescore.optim.status import precision_sentence
from bayescore.rules.adam import corrections
from bayescore.rules.advi import ADVIOptions, advi_step
from bayescore.rules.curvature import forget

__all__ = ["ADVI"]

MOMENTS = ("first_m", "first_r", "second_m", "second_r")


class ADVI(BayesianOptimizer):
    """Mean-field variational inference through reparametrised draws.

    Arguments:
        lr: Adam's learning rate for the mean.
        sd_rate: Adam's learning rate for log sd, as a multiple of lr.
        common: as in ProximalScore.
    """

    largest_terms = (2,)

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float = 1e-3,
        sd_rate: float = 1.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, num_data, {"lr": lr, "sd_rate": sd_rate}, common)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        positive("sd_rate", group["sd_rate"])

    def _init_state(self, member: Member, mean: Tensor) -> None:
        super()._init_state(member, mean)
        for key in MOMENTS:
            member.state[key] = torch.zeros_like(mean)

    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        group = bucket.group
        o = ADVIOptions(
            *self._numbers(
                bucket,
                group["temperature"] / group["num_data"],
                group["prior_sd"] ** -2.0,
                group["lr"],
                group["lr"] * group["sd_rate"],
                *corrections(group["updates"]),
            )
        )
        return self._apply(bucket, advi_step, ("sd", *MOMENTS), seen, o)

    def _learn(self, bucket: Bucket, totals: Tensor) -> None:
        assert bucket.statistics is not None
        # the slope changes twice as fast as log sd
        forget(bucket.statistics, totals, bucket.lengths, 2)

    def _precision_status(self) -> str:
        return precision_sentence(self._measured(), self._head["last_draws"], "score")
