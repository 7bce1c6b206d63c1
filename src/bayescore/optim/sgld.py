"""SGLD for networks: gradient steps with Langevin noise; the thinned chain is the posterior.

In per-datum units, c = tau/N, delta = c/s0^2, g the gradient of the mean loss at the current weights:
    theta <- theta - eta A (g + delta (theta - m0)) + sqrt(2 eta c A) xi                               (1)
    A = 1, or A = 1/(1e-5 + sqrt V) with V <- 0.99 V + 0.01 g^2 (Li et al. 2016, without Gamma)        (2)
The weights themselves are the draw, so `sample()` adds no noise. After `burn_in` updates every `thin`-th
state is kept; when there are more than `keep` of them, every second one is dropped and `thin` doubles.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from bayescore.checks import check_count, check_memory
from bayescore.optim.base import BayesianOptimizer, Move, Seen
from bayescore.optim.engine import Bucket, Member
from bayescore.optim.noise import Noise, numbers
from bayescore.optim.options import WHOLE, CommonOptions
from bayescore.optim.steep import WATCHED
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.draws import DrawsPosterior
from bayescore.posteriors.shards import sharded_like

__all__ = ["SGLD"]


class SGLDOptions(NamedTuple):
    """Numbers of one step, as zero-dimensional tensors."""

    lr: Tensor
    c: Tensor
    delta: Tensor


def sgld_step(
    theta: Tensor, prior_mean: Tensor, g: Tensor, noise: Noise, o: SGLDOptions
) -> tuple[tuple[Tensor], None]:
    """(1) with A = 1."""
    xi = numbers(noise, theta)
    return (theta + (2 * o.lr * o.c).sqrt() * xi - o.lr * (g + o.delta * (theta - prior_mean)),), None


def preconditioned_step(
    theta: Tensor, square: Tensor, prior_mean: Tensor, g: Tensor, noise: Noise, o: SGLDOptions
) -> tuple[tuple[Tensor, Tensor], None]:
    """(1) and (2)."""
    xi = numbers(noise, theta)
    square = 0.99 * square + 0.01 * g * g
    rate = o.lr / (1e-5 + square.sqrt())
    move = (2 * o.c * rate).sqrt() * xi - rate * (g + o.delta * (theta - prior_mean))
    return (theta + move, square), None


class SGLD(BayesianOptimizer):
    """Stochastic gradient Langevin dynamics.

    Arguments:
        lr: step size for the mean loss, as in SGD. None: 0.01, lowered if the loss is steep (optim/steep.py),
            unless preconditioned.
        preconditioned: divide the step of every weight by its running gradient size, (2).
        burn_in, thin, keep: updates before the first kept state, updates between kept states, and the largest
            number of kept states.
        common: see `CommonOptions`, without init_sd and average (predictions are averaged instead).
    """

    lacks: ClassVar = {
        "init_sd": "its posterior is the states that it keeps",
        "average": "the predictions of its kept states are averaged",
    }
    perturbs = False
    whole_options = (*WHOLE, "burn_in", "thin", "keep")

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float | None = None,
        preconditioned: bool = False,
        burn_in: int = 1000,
        thin: int = 10,
        keep: int = 30,
        **common: Unpack[CommonOptions],
    ) -> None:
        own = {
            "lr": 1e-2 if lr is None else lr,
            "preconditioned": preconditioned,
            "burn_in": burn_in,
            "thin": thin,
            "keep": keep,
            "kept": 0,
        }
        free = lr is None and not (preconditioned or common.get("update_in_backward"))
        super().__init__(params, num_data, own, common, WATCHED if free else 0)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        check_count("burn_in", group["burn_in"], 0)
        check_count("thin", group["thin"])
        check_count("keep", group["keep"], 2)
        check_count("kept", group["kept"], 0)
        if group["kept"] > group["keep"]:
            raise ValueError(f"kept must be at most keep, {group['keep']}; got {group['kept']}")

    def _init_state(self, member: Member, mean: Tensor) -> None:
        # room for all states at once: torch.distributed.checkpoint loads into tensors of the final shape
        keep = member.group["keep"]
        if not mean.is_meta:
            need = keep * mean.numel() * mean.element_size()
            check_memory(f"keeping {keep} states of the chain", need, mean.device, "lower keep")
        path = mean.new_zeros(keep, *mean.shape)
        # a weight that was frozen until now had this value in all states that were kept of the others
        path[: member.group["kept"]] = mean
        member.state["path"] = path
        if member.group["preconditioned"]:
            member.state["square"] = torch.zeros_like(mean)

    def _write_draw(self, bucket: Bucket) -> None:
        """The state of the chain is already in the module."""

    def _collect(self, bucket: Bucket, g: Tensor, noise: Noise) -> None:  # noqa: ARG002
        bucket.zeros("sum_g")[0].add_(g)

    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        group = bucket.group
        G = bucket.flat["sum_g"] / seen.draws if seen.g is None else seen.g
        c = group["temperature"] / group["num_data"]
        o = SGLDOptions(*self._numbers(bucket, self._rate(group), c, c * group["prior_sd"] ** -2.0))
        given = (self._prior_mean(bucket), G, self.noise(bucket, 0), o)
        if group["preconditioned"]:
            return Move(preconditioned_step, ("square",), "as is", given, tells=False)
        return Move(sgld_step, (), "as is", given, tells=False)

    def _finish(self, draws: int) -> bool:
        moved = super()._finish(draws)
        group = self._head
        age = group["updates"] - group["burn_in"]
        if not moved or age <= 0 or age % group["thin"]:
            return moved
        members, kept = list(self._members(frozen=True)), group["kept"] + 1
        full = kept > min(len(member.state["path"]) for member in members)
        for member in members:
            path, mean = member.state["path"], member.state["mean"]
            if full:  # of the kept states and this one, numbers 1, 3, 5, ... remain
                states = torch.cat([path[: kept - 1], mean.unsqueeze(0)])[1::2]
                path.zero_()[: len(states)] = states
            else:
                path[kept - 1] = mean
        for each in self.param_groups:
            each["kept"] = kept // 2 if full else kept
            each["thin"] *= 2 if full else 1
        return moved

    def _posterior(self, model: nn.Module, members: dict[str, Member], likelihood: Any) -> Posterior:
        if not self._head["kept"]:
            head = self._head
            raise RuntimeError(
                f"SGLD has kept no state yet: of its {head['updates']} updates the first {head['burn_in']} "
                "are burn-in; train longer or lower burn_in"
            )
        return DrawsPosterior(
            model,
            {
                name: sharded_like(m.state["path"][: self._head["kept"]].clone(), m.weight, 1)
                for name, m in members.items()
            },
            likelihood=likelihood,
        )

    def _precision_status(self) -> str:
        return f"{self._head['kept']} states kept, one every {self._head['thin']} updates"
