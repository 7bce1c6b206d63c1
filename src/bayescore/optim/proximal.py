"""ProximalScore for networks: score matching with a proximal term as a drop-in for AdamW.

The rule is rules/proximal.py. Its widths follow from Adam's second moment, so that the state is AdamW's and
the mean. Numbers per tensor are the columns of `statistics`: the running sums X, Y, Z of (5), the number of
updates, the prior sd s0, and the sum of the learning rates so far. Numbers about the whole network are in the
parameter groups, as "control".
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from bayescore.optim.base import BayesianOptimizer, Seen
from bayescore.optim.engine import Bucket, Member
from bayescore.optim.noise import Noise, numbers
from bayescore.optim.options import WHOLE, CommonOptions, positive
from bayescore.rules.adam import B1, B2
from bayescore.rules.proximal import (
    CONTROL,
    ProximalOptions,
    adam_options,
    control_step,
    cost,
    follow_slopes,
    inflation,
    initial_control,
    network_slope,
    proximal_step,
    slopes,
    width,
    width_options,
)

__all__ = ["ProximalScore"]

LEAST_SCALE = 1e-6  # a tensor whose weights have a smaller root mean square counts as zero
ARRIVED = 0.99  # of the temperature


class ProximalScore(BayesianOptimizer):
    """Proximal score matching as a drop-in for AdamW: keep its lr, betas, weight_decay and schedule.

    Arguments:
        params: parameters, named parameters, or groups of them with their own options.
        num_data: size of the training set, N: the number of terms whose mean is the loss.
        lr, betas: AdamW's. Without noise the mean moves exactly as AdamW's weights do.
        prior_scale: prior sd of a weight, relative to the root mean square of its tensor at the start (of the
            matrix before it for a vector; 1/sqrt(inputs) for a tensor of zeros). It limits the widths; the
            mean is held by weight_decay.
        nats: how much the noise of the weights may add to the loss; the temperature in use is lowered until
            it does not add more. math.inf: the temperature is never lowered.
        common: see `CommonOptions` (optim/options.py): prior_mean, weight_decay (0.01 here, as in AdamW),
            temperature, draws, seed, ...; without init_sd and prior_sd.

    >>> model = torch.nn.Linear(3, 1)
    >>> opt = ProximalScore(model.parameters(), num_data=100)
    >>> with opt.sample():
    ...     model(torch.ones(5, 3)).square().mean().backward()
    >>> opt.step(); opt.zero_grad()
    """

    lacks: ClassVar = {
        "init_sd": "its widths start from nothing and are learned within the first hundred updates",
        "prior_sd": "give prior_scale, relative to the size of each tensor's weights",
    }
    whole_options = (*WHOLE, "temperature", "nats")

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (B1, B2),
        prior_scale: float = 0.3,
        nats: float = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        own = {
            "lr": lr,
            "betas": betas,
            "prior_scale": prior_scale,
            "nats": nats,
            "control": (0.0,) * CONTROL,
        }
        super().__init__(params, num_data, own, CommonOptions(**{"weight_decay": 0.01, **common}))

    def _prepare(self) -> None:
        super()._prepare()
        self._totals: list[Tensor] = []  # of the terms of this update's buckets

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        betas = group["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {betas!r}")
        positive("prior_scale", group["prior_scale"])
        positive("nats", group["nats"], infinite=True)
        control = group["control"]
        if len(control) != CONTROL or not all(isinstance(x, float) and math.isfinite(x) for x in control):
            raise ValueError("control must be finite numbers")

    # -- state -------------------------------------------------------------------------------------------

    def _init_state(self, member: Member, mean: Tensor) -> None:
        member.state["first"], member.state["second"] = torch.zeros_like(mean), torch.zeros_like(mean)
        member.state["statistics"] = mean.new_zeros(6)
        if not mean.is_meta:
            member.state["statistics"][4] = member.group["prior_scale"] * self._scale(member, mean)

    @staticmethod
    def _scale(member: Member, mean: Tensor) -> float:
        """Root mean square of a tensor's weights; see `prior_scale`."""
        matrix = mean
        if mean.dim() < 2:
            before = [p for p in member.group["params"][: member.position] if p.dim() > 1 and p.numel()]
            matrix = before[-1].detach() if before else mean
        found = float(torch.linalg.vector_norm(matrix.float())) / math.sqrt(matrix.numel())
        return found if found > LEAST_SCALE else (matrix[0].numel() if matrix.dim() > 1 else 1.0) ** -0.5

    @property
    def _control(self) -> Tensor:
        """The numbers of the whole network."""
        head = self._head
        if not head["control"][-1]:
            return initial_control(head["temperature"], torch.zeros((), dtype=torch.float64))
        return torch.tensor(head["control"], dtype=torch.float64)

    def _width_table(self, statistics: Tensor, group: dict[str, Any]) -> Tensor:
        """The first three of `ProximalOptions`: three rows, one column per tensor."""
        control, wide = self._control, statistics.double()
        sums, t, scale, path = wide[:, :3], wide[:, 3], wide[:, 4], wide[:, 5]
        rho = slopes(sums, t, network_slope(control).to(wide))
        path = torch.where(t > 0, path, self._rate(group))
        tau, N, b2 = float(control[7]), group["num_data"], group["betas"][1]
        return torch.stack(width_options(rho, scale, path, t, tau, N, b2)).to(statistics)

    def _widths(self, bucket: Bucket) -> tuple[Tensor, ...]:
        """`_width_table` per weight, the same for all draws of a step and its update."""
        number = bucket.group["step"]
        if bucket.widths is None or bucket.widths[0] != number:
            assert bucket.statistics is not None
            bucket.widths = (number, bucket.spread(self._width_table(bucket.statistics, bucket.group)))
        return bucket.widths[1]

    def _sd(self, member: Member) -> Tensor:
        table = self._width_table(member.state["statistics"][None], member.group)
        return width(None, member.state["second"], ProximalOptions(*table.flatten(), *[None] * 6))

    # -- draws and updates -------------------------------------------------------------------------------

    def _draw(self, bucket: Bucket, theta: Tensor, noise: Noise) -> None:
        mean, second = bucket.flat["mean"], bucket.flat["second"]
        self._run(bucket, draw_by_width, theta, mean, second, noise, *self._widths(bucket))

    def _update(self, bucket: Bucket, seen: Seen) -> None:
        group, statistics = bucket.group, bucket.statistics
        assert statistics is not None
        lr, betas = self._rate(group), group["betas"]
        t = statistics[:, 3].double() + 1
        of_group = self._numbers(
            bucket, 1 - betas[0], betas[1], (1 - betas[1]) / float(inflation(self._control))
        )
        of_tensors = bucket.spread(torch.stack(adam_options(t, lr, betas)).to(statistics))
        o = ProximalOptions(*self._widths(bucket), *of_group, *of_tensors)
        totals = self._apply(bucket, proximal_step, ("first", "second"), seen, o, width)
        statistics[:, :3], statistics[:, 3] = follow_slopes(statistics[:, :3], statistics[:, 3], totals)
        statistics[:, 5] += lr
        self._totals.append(totals.sum(0))

    def _after_update(self) -> None:
        if not self._totals:
            return
        head = self._head
        totals = torch.stack([total.to("cpu", torch.float64) for total in self._totals]).sum(0)
        self._totals.clear()
        control = tuple(control_step(self._control, totals, head["temperature"], head["nats"]).tolist())
        for group in self.param_groups:
            group["control"] = control

    # -- status ------------------------------------------------------------------------------------------

    def _precision_status(self) -> str:
        head, control = self._head, self._control
        if not head["updates"]:
            return "the widths are not known before the first update"
        nats, error, _ = (max(float(value), 0.0) for value in cost(control))
        tau, most = float(control[7]), head["temperature"]
        spent = f"the noise of the weights adds {nats:.2g} nats to the loss"
        if tau >= ARRIVED * most:
            return f"{spent}, at temperature {most:g}"
        if nats + error > 0.5 * head["nats"]:
            return f"{spent}, held at {head['nats']:g} by the temperature {tau:.2g} instead of {most:g}"
        return f"{spent}; the widths still grow, to temperature {tau:.2g} of {most:g} so far: train longer"


def draw_by_width(weight: Tensor, mean: Tensor, second: Tensor, noise: Noise, *widths: Tensor) -> None:
    """theta = mean + sd * eps with the sd of (1), written into the module."""
    sd = width(None, second, ProximalOptions(*widths, *[None] * 6))
    weight.copy_(torch.addcmul(mean, sd, numbers(noise, mean)))
