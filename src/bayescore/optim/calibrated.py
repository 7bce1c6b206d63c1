"""CalibratedScore for networks: the paper's proximal score matching in closed form, for a diagonal Gaussian.

The rule is rules/calibrated.py: every proximal problem is solved exactly, and the curvature estimate of a
draw is used only as far as it can be trusted. The paper's inner loop is in optim/descent.py.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from bayescore.optim.base import BayesianOptimizer, Move, Seen
from bayescore.optim.engine import Bucket, Member
from bayescore.optim.options import CommonOptions, positive
from bayescore.optim.status import precision_sentence
from bayescore.optim.steep import WATCHED
from bayescore.rules.calibrated import TRUST_STEPS, CalibratedOptions, calibrated_step, step_options, trust
from bayescore.rules.curvature import follow

__all__ = ["CalibratedScore"]


class CalibratedScore(BayesianOptimizer):
    """Proximal score matching as a drop-in optimizer.

    Arguments:
        params: parameters, named parameters, or groups of them with their own options.
        num_data: size of the training set, N.
        lr: learning rate of the mean; that of SGD as long as the sd has its initial value. A weight whose sd
            has grown by a factor moves faster by the square of the factor, up to a Newton step with its
            precision. None: 0.1, and if the loss is steep, both lr and a default init_sd are lowered
            (optim/steep.py).
        momentum: of the mean's gradient; 0 saves one number of state per weight.
        damping: memory of the precision in steps, in the first step; it grows by half a step per step.
        batch_size: typical size of a batch; lets the precision be learned from squared gradients where
            eps*score is too noisy.
        common: see `CommonOptions` (optim/options.py): priors, temperature, draws, seed, ...

    >>> model = torch.nn.Linear(3, 1)
    >>> opt = CalibratedScore(model.parameters(), num_data=100)
    >>> with opt.sample():
    ...     model(torch.ones(5, 3)).square().mean().backward()
    >>> opt.step(); opt.zero_grad()
    """

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float | None = None,
        momentum: float = 0.9,
        damping: float = 500.0,
        batch_size: int | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        free = lr is None and common.get("init_sd") is None and not common.get("update_in_backward")
        own = {
            "lr": 0.1 if lr is None else lr,
            "momentum": momentum,
            "damping": damping,
            "batch_size": batch_size,
        }
        super().__init__(params, num_data, own, common, WATCHED if free else 0)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if not 0 <= group["momentum"] < 1:
            raise ValueError(f"momentum must lie in [0, 1); got {group['momentum']}")
        positive("damping", group["damping"])

    def _init_state(self, member: Member, mean: Tensor) -> None:
        super()._init_state(member, mean)
        if member.group["momentum"] > 0:
            member.state["momentum"] = torch.zeros_like(mean)

    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        group, statistics = bucket.group, bucket.statistics
        assert statistics is not None
        squares = self._uses_squares(group, seen.draws)
        table = trust(statistics, bucket.lengths, group["damping"], squares)
        *numbers, fisher = step_options(
            group["updates"],
            self._rate(group),
            group["init_sd"] ** 2,
            group["temperature"] / group["num_data"],
            group["prior_sd"],
            group["momentum"] * ("momentum" in bucket.flat),
            (group["batch_size"], group["num_data"]) if squares else None,
        )
        of_group = self._numbers(bucket, *numbers, *([fisher] if squares else []))
        o = CalibratedOptions(*of_group, *([] if squares else [None]), *bucket.spread_table(table.t()))
        return self._apply(bucket, calibrated_step, ("sd", "momentum"), seen, o)

    def _learn(self, bucket: Bucket, totals: Tensor) -> None:
        assert bucket.statistics is not None
        follow(bucket.statistics, totals, bucket.lengths)

    @staticmethod
    def _uses_squares(group: dict[str, Any], draws: int) -> bool:
        """Whether squared gradients replace a curvature estimate that is too noisy."""
        return draws == 1 and group["batch_size"] is not None and group["num_data"] > group["batch_size"]

    def _power(self, group: dict[str, Any]) -> int:  # noqa: ARG002
        return 1

    def _precision_status(self) -> str:
        head, rows = self._head, self._measured()
        how = "squares" if self._uses_squares(head, head["last_draws"]) else "initial"
        trusted = sum(row.size * row.steps / (row.steps + TRUST_STEPS * row.noise) for row in rows)
        rho = trusted / max(sum(row.size for row in rows), 1)
        return precision_sentence(rows, head["last_draws"], how, rho)
