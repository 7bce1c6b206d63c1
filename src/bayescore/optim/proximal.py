"""ProximalScore for networks: score matching with a proximal term as a drop-in for AdamW.

The rule is rules/proximal.py. Its widths follow from Adam's second moment, so that the state is AdamW's (of
small tensors the mean too). The numbers of a tensor (`Slopes`) are its state "statistics", in float64; those
of the whole network (`Network`) are in every parameter group, as "network".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from bayescore.optim.base import BayesianOptimizer, Move, Seen, Told
from bayescore.optim.distributed import norms
from bayescore.optim.engine import Bucket, Member
from bayescore.optim.noise import Noise, numbers
from bayescore.optim.options import WHOLE, CommonOptions, positive
from bayescore.optim.recovery import displace
from bayescore.rules.adam import B1, B2
from bayescore.rules.proximal import Network, ProximalOptions, Slopes, proximal_step, usual_nats, width

__all__ = ["ProximalScore"]

LEAST_SCALE = 1e-6  # a tensor whose weights have a smaller root mean square counts as zero
ARRIVED = 0.99  # of the temperature
SCALE = Slopes._fields.index("scale")


class ProximalScore(BayesianOptimizer):
    """Proximal score matching as a drop-in for AdamW: keep its lr, betas, weight_decay and schedule.

    A step is one mini-batch score at one draw of the weights. The mean moves by AdamW's step; widths follow
    from Adam's squared gradients and one slope per tensor, the regression of the gradient on the noise. How
    both follow from the paper's noisy proximal loss, and what is ours: rules/proximal.py.

    Arguments:
        params: parameters, named parameters, or groups of them with their own options.
        num_data: size of the training set, N: the number of terms whose mean is the loss.
        lr, betas: AdamW's. Without noise and prior the mean moves exactly as AdamW's weights do.
        prior_scale: prior sd of a weight about its mean, relative to the root mean square of its tensor at
            the start (for a vector that of the matrix before it, or the median of all matrices; for zeros
            1/sqrt(inputs)). It limits the widths; the mean has a prior 30 times wider, and weight_decay.
        nats: how much the noise of the weights may add to the loss; the temperature in use is lowered until
            it does not add more. By default a hundredth of the number of weights per datum, at least 0.003
            and at most 0.05. math.inf: the temperature is never lowered.
        common: see `CommonOptions` (optim/options.py): prior_mean, weight_decay (0.01 here, as in AdamW),
            temperature (here of the prior of the widths too), draws, seed, ...; without init_sd and prior_sd.

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
    coded = "second"

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (B1, B2),
        prior_scale: float = 1.0,
        nats: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        own = {
            "lr": lr,
            "betas": betas,
            "prior_scale": prior_scale,
            "nats": math.inf if nats is None else nats,
            "network": (),
        }
        super().__init__(params, num_data, own, CommonOptions(**{"weight_decay": 0.01, **common}))
        if nats is None:
            weights = [p.numel() for group in self.param_groups for p in group["params"] if p.requires_grad]
            for options in (self.defaults, *self.param_groups):
                options["nats"] = usual_nats(sum(weights), num_data)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        betas = group["betas"]
        if not _finite_numbers(betas, 2) or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {betas!r}")
        positive("prior_scale", group["prior_scale"])
        positive("nats", group["nats"], infinite=True)
        network = group["network"]
        sound = _finite_numbers(network, 0) or _finite_numbers(network, len(Network._fields))
        if not sound or not (len(network) == 0 or Network(*network).is_possible()):
            raise ValueError(f"the numbers of the network are not those of a run; got {network!r}")

    # -- state -------------------------------------------------------------------------------------------

    def _init_state(self, member: Member, mean: Tensor) -> None:
        member.state["first"], member.state["second"] = torch.zeros_like(mean), torch.zeros_like(mean)
        scale = 1.0 if mean.is_meta else member.group["prior_scale"] * self._scale(member, mean)
        slopes = torch.tensor(Slopes(scale=scale), dtype=torch.float64)
        member.state["statistics"] = slopes.to(mean.device)

    def _scale(self, member: Member, mean: Tensor) -> float:
        """Root mean square of a tensor's weights; see `prior_scale`."""
        if mean.dim() > 1:
            return _root_mean_square(member.weight, mean)
        before = [p for p in member.group["params"][: member.position] if p.dim() > 1 and p.numel()]
        if before:
            return _root_mean_square(before[-1])
        others = [p for group in self.param_groups for p in group["params"] if p.dim() > 1 and p.numel()]
        if not others:
            return _root_mean_square(member.weight, mean)
        return median(_root_mean_square(p) for p in others)

    @property
    def _network(self) -> Network:
        """The numbers of the whole network."""
        head = self._head
        return Network(*head["network"]) if head["network"] else Network.start(head["temperature"])

    def _width_rows(self, rows: Sequence[Sequence[float]], group: dict[str, Any]) -> list[tuple[float, ...]]:
        """The first three of `ProximalOptions`, from the numbers of tensors of a group."""
        network, lr, b2 = self._network, self._rate(group), group["betas"][1]
        pooled, tau, N = network.slope(), network.tau, group["num_data"]
        return [Slopes(*row).width_options(pooled, tau, N, lr, b2) for row in rows]

    def _widths(self, bucket: Bucket) -> Sequence[Tensor]:
        """The same per weight, for all draws of a step and its update."""
        number = bucket.group["step"]
        if bucket.widths is None or bucket.widths[0] != number:
            rows = self._width_rows(bucket.rows, bucket.group)
            bucket.widths = (number, bucket.spread("widths", rows))
        return bucket.widths[1]

    def _sd(self, member: Member) -> Tensor:
        second = member.state["second"]
        (row,) = self._width_rows([member.state["statistics"].tolist()], member.group)
        return width(None, second, ProximalOptions(*second.new_tensor(row), *[None] * 7))

    # -- draws and updates -------------------------------------------------------------------------------

    def _draw(self, bucket: Bucket, theta: Tensor, noise: Noise) -> None:
        mean, second = bucket.flat["mean"], bucket.flat["second"]
        self._run(bucket, draw_by_width, theta, mean, second, noise, *self._widths(bucket))

    def _displace(self, bucket: Bucket, sign: int) -> None:
        second, grid = bucket.flat["second"], self._grid(bucket, sign)
        self._run(bucket, displace_by_width, bucket.whole, second, *grid, *self._widths(bucket))

    def _widest(self, member: Member) -> float:
        """That of the weight with the smallest square."""
        least = member.state["second"]
        if not least.numel():
            return 0.0
        (row,) = self._width_rows([member.state["statistics"].tolist()], member.group)
        return float(width(None, least.amin(), ProximalOptions(*least.new_tensor(row), *[None] * 7)))

    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        group, lr = bucket.group, self._rate(bucket.group)
        b1, b2 = group["betas"]
        of_group = (1 - b1, b2, (1 - b2) / self._network.inflation())
        c = group["temperature"] / group["num_data"]
        of_tensors = [(*of_group, *Slopes(*row).adam_options(lr, (b1, b2), c)) for row in bucket.rows]
        o = ProximalOptions(*self._widths(bucket), *bucket.spread("adam", of_tensors))
        return self._apply(bucket, proximal_step, ("first", "second"), seen, o)

    def _learn_all(self, told: Told) -> None:
        """The numbers of the tensors and of the network after an update."""
        device = told[0][1].device
        tables = [table.to(device) for _, table in told]
        found = (tables[0] if len(tables) == 1 else torch.cat(tables)).tolist()  # waits for a GPU once
        rows = iter(found)
        for bucket, _ in told:
            lr = self._rate(bucket.group)
            bucket.rows = [Slopes(*row).after(next(rows), lr) for row in bucket.rows]
            bucket.write_rows()
        head, totals = self._head, [sum(column) for column in zip(*found, strict=True)]
        network = tuple(self._network.after(totals, head["temperature"], head["nats"]))
        for group in self.param_groups:
            group["network"] = network

    # -- status ------------------------------------------------------------------------------------------

    def _mean_scales(self) -> tuple[float, float]:
        sizes = [
            float(self.state[p]["statistics"][SCALE]) / group["prior_scale"]
            for group in self.param_groups
            for p in group["params"]
            if p.dim() > 1 and "statistics" in self.state.get(p, {})
        ]
        network = self._network
        return median(sizes) if sizes else math.inf, max(network.cost, 0.0) + network.cost_error

    def _precision_status(self) -> str:
        head, network = self._head, self._network
        if not head["updates"]:
            return "the widths are not known before the first update"
        nats, error = max(network.cost, 0.0), network.cost_error
        tau, most = network.tau, head["temperature"]
        spent = f"the noise of the weights adds {nats:.2g} nats to the loss"
        if tau >= ARRIVED * most:
            return f"{spent}, at temperature {most:g}"
        if nats + error > 0.5 * head["nats"]:
            return f"{spent}, held at {head['nats']:g} by the temperature {tau:.2g} instead of {most:g}"
        return f"{spent}; the widths still grow, to temperature {tau:.2g} of {most:g} so far: train longer"


def _finite_numbers(values: Any, count: int) -> bool:
    """Whether these are so many finite numbers."""
    if not isinstance(values, tuple | list) or len(values) != count:
        return False
    return all(isinstance(value, float | int) and math.isfinite(value) for value in values)


def _root_mean_square(weights: Tensor, mean: Tensor | None = None) -> float:
    if not weights.numel():
        return 1.0
    (norm,) = norms([weights.detach()], None if mean is None else [mean])
    found = norm / math.sqrt(weights.numel())
    return found if found > LEAST_SCALE else (weights[0].numel() if weights.dim() > 1 else 1.0) ** -0.5


def draw_by_width(weight: Tensor, mean: Tensor, second: Tensor, noise: Noise, *widths: Tensor) -> None:
    """theta = mean + sd * eps with the sd of (1), written into the module."""
    sd = width(None, second, ProximalOptions(*widths, *[None] * 7))
    weight.copy_(torch.addcmul(mean, sd, numbers(noise, mean)))


def displace_by_width(
    weight: Tensor, second: Tensor, quantum: Tensor, inverse: Tensor, *widths: Tensor
) -> None:
    """Add or take back a draw with the sd of (1)."""
    sd = width(None, second, ProximalOptions(*widths, *[None] * 7))
    displace(weight, sd, second, quantum, inverse)
