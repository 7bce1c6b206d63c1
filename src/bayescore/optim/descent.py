"""ProximalDescent for networks: Algorithm 1 of the paper with a diagonal Gaussian over the weights.

One iteration is one step: draw the weights, take the gradient, make N descent steps on (mean, log sd) from it
(rules/inner.py), by Adam or SGD.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.optim.base import BayesianOptimizer, Move, Seen
from bayescore.optim.engine import Bucket, Member
from bayescore.optim.options import CommonOptions, positive
from bayescore.optim.status import precision_sentence
from bayescore.rules.curvature import forget
from bayescore.rules.inner import InnerOptions, inner_corrections, inner_steps

__all__ = ["ProximalDescent"]

MOMENTS = ("first_m", "first_r", "second_m", "second_r")


class ProximalDescent(BayesianOptimizer):
    """Algorithm 1 as a drop-in optimizer.

    Arguments:
        lr: learning rate of the inner steps.
        steps: T, the planned number of updates, for alpha_t = t/T; None: alpha is always 1/2.
        alpha: a constant weight of the proximal term, instead of alpha_t.
        inner_steps: N, descent steps per update.
        optimizer: "adam" or "sgd" (with `momentum`).
        sd_rate: Adam's learning rate for log sd, as a multiple of lr.
        floor: of Adam (rules/inner.py); 0 gives plain Adam.
        common: as in ProximalScore.
    """

    largest_terms = (2,)

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float = 3e-3,
        steps: int | None = None,
        alpha: float | None = None,
        inner_steps: int = 2,
        optimizer: str = "adam",
        momentum: float = 0.0,
        sd_rate: float = 1.0,
        floor: float = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        own = {
            "lr": lr,
            "steps": steps,
            "alpha": alpha,
            "inner_steps": inner_steps,
            "optimizer": optimizer,
            "momentum": momentum,
            "sd_rate": sd_rate,
            "floor": floor,
        }
        super().__init__(params, num_data, own, common)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if group["optimizer"] not in ("adam", "sgd"):
            raise ValueError(f"optimizer must be 'adam' or 'sgd'; got {group['optimizer']!r}")
        if not 0 <= group["momentum"] < 1:
            raise ValueError(f"momentum must lie in [0, 1); got {group['momentum']}")
        positive("sd_rate", group["sd_rate"])
        check_count("inner_steps", group["inner_steps"])
        if group["steps"] is not None:
            check_count("steps", group["steps"])
        for name in ("alpha", "floor"):
            if group[name] is not None and group[name] < 0:
                raise ValueError(f"{name} must not be negative; got {group[name]}")

    def _init_state(self, member: Member, mean: Tensor) -> None:
        super()._init_state(member, mean)
        for key in MOMENTS if member.group["optimizer"] == "adam" else MOMENTS[:2]:
            member.state[key] = torch.zeros_like(mean)

    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        group = bucket.group
        N, adam = group["inner_steps"], group["optimizer"] == "adam"
        numbers = self._numbers(
            bucket,
            group["temperature"] / group["num_data"],
            group["prior_sd"] ** -2.0,
            self._alpha(group),
            group["lr"],
            group["lr"] * (group["sd_rate"] if adam else 1.0),
            group["momentum"],
            group["floor"],
            *inner_corrections((group["updates"] - 1) * N, N),
        )
        o = InnerOptions._make((*numbers[:7], numbers[7:]))
        return self._apply(bucket, inner_steps, ("sd", *MOMENTS), seen, o)

    def _learn(self, bucket: Bucket, totals: Tensor) -> None:
        assert bucket.statistics is not None
        # the slope changes twice as fast as log sd
        forget(bucket.statistics, totals, bucket.lengths, 2 * bucket.group["inner_steps"])

    @staticmethod
    def _alpha(group: dict[str, Any]) -> float:
        if group["alpha"] is not None:
            return float(group["alpha"])
        t, T = group["updates"] - 1, group["steps"]
        return 0.5 if T is None else min(1.0, t / T)

    def _precision_status(self) -> str:
        return precision_sentence(self._measured(), self._head["last_draws"], "score")
