"""Draws of weights in a module: written for the length of a block, taken out again, counted.

State tensors live in `self.state[p]` in float32 (float64 for float64 weights), also where the weights are
bfloat16; counters and options live in `param_groups`. The module's storage is kept: weights are written and
restored by copying, never by adding and subtracting. The gradient of the last block stays in `.grad`, where
clipping and scaling can reach it; that of an earlier block of the same step is moved into running sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.optim.noise import standard_normal
from bayescore.optim.options import check_group, prior_tensor, start_sd

__all__ = ["Member", "Sampling"]


class Member(NamedTuple):
    """One trained parameter tensor: where it stands and what is known about it."""

    number: int  # over all groups, frozen parameters included
    group: dict[str, Any]
    position: int  # within its group
    weight: Tensor
    state: dict[str, Any]


class Sampling(torch.optim.Optimizer):
    """The block `with opt.sample():` and the state behind it."""

    def __init__(self, params: Any, num_data: int, options: dict[str, Any]) -> None:
        self._prepare()
        counters = {
            "step": 0,
            "updates": 0,
            "draws": 0,
            "absorbed": 0,
            "skipped": 0,
            "skipped_in_a_row": 0,
            "last_draws": 0,
        }
        super().__init__(params, {"num_data": num_data, **options, "method": type(self).__name__, **counters})

    def _prepare(self) -> None:
        self._open = False
        self._versions: dict[Tensor, int] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            self._check(group)
            for p in group["params"]:
                if not p.is_floating_point():
                    raise TypeError(f"weights must be real floating point numbers; got {p.dtype}")
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    # -- what a method adds --------------------------------------------------------------------------

    def _check(self, group: dict[str, Any]) -> None:
        """Raise unless the method's own options make sense."""

    def _start(self, member: Member, mean: Tensor) -> None:
        """Add the method's tensors to the state."""
        member.state["sd"] = torch.full_like(mean, start_sd(member.group))

    def _collect(self, member: Member, g: Tensor, eps: Tensor) -> None:
        """Add a draw to the running sums of a step with several draws."""
        for key, value in (("sum_g", g), ("sum_xg", eps * g), ("sum_e", eps), ("sum_ee", eps * eps)):
            kept = member.state.get(key)
            member.state[key] = value.clone() if kept is None else kept.add_(value)

    def prior_mean(self, member: Member) -> Tensor:
        """m0 of one parameter, of its shape or of none."""
        if "prior_mean" in member.state:
            found: Tensor = member.state["prior_mean"]
            return found
        value = member.group["prior_mean"]
        return member.state["mean"].new_tensor(float(value) if isinstance(value, int | float) else 0.0)

    # -- parameters --------------------------------------------------------------------------------------

    def _members(self) -> Iterator[Member]:
        number = -1
        for group in self.param_groups:
            for position, p in enumerate(group["params"]):
                number += 1
                if p.requires_grad:
                    member = Member(number, group, position, p, self.state[p])
                    self._synchronise(member)
                    yield member

    @torch.no_grad()
    def _synchronise(self, member: Member) -> None:
        """Start the state, or take over weights that somebody else has written since."""
        p, state = member.weight, member.state
        if self._open or self._versions.get(p) == p._version:
            return
        value = p.detach().to(torch.float64 if p.dtype == torch.float64 else torch.float32)
        if "mean" not in state:
            state["mean"] = value.clone(memory_format=torch.contiguous_format)
            prior = prior_tensor(member.group, member.position, state["mean"])
            if prior is not None:
                state["prior_mean"] = prior
            self._start(member, state["mean"])
        else:
            same = p.detach() == state["mean"].to(p.dtype)
            state["mean"] = torch.where(same, state["mean"], value)
        self._versions[p] = p._version

    def noise(self, member: Member, draw: int) -> Tensor:
        """eps of one parameter in draw number `draw` of the present step."""
        head = member.group
        return standard_normal(member.state["mean"], head["seed"], head["step"], draw, member.number)

    # -- blocks ------------------------------------------------------------------------------------------

    @contextmanager
    def sample(self) -> Iterator[None]:
        """Write a draw of the weights into the module for the length of the block."""
        if self._open:
            raise RuntimeError("sample() was entered inside sample(); close the first block before the next")
        self._absorb()
        members = list(self._members())
        for member in members:
            member.weight.grad = None
        self._open = True
        try:
            with torch.no_grad():
                for member in members:
                    self._perturb(member)
            torch.clear_autocast_cache()  # it keeps low-precision copies of weights that have just changed
            yield
        except BaseException:
            for member in members:
                member.weight.grad = None
            raise
        finally:
            with torch.no_grad():
                for member in members:
                    self._restore(member)
            torch.clear_autocast_cache()
            self._open = False
        self._close(members)

    def _perturb(self, member: Member) -> None:
        theta = torch.addcmul(
            member.state["mean"], member.state["sd"], self.noise(member, member.group["draws"])
        )
        member.weight.copy_(theta)

    def _restore(self, member: Member) -> None:
        member.weight.copy_(member.state["mean"])
        self._versions[member.weight] = member.weight._version

    def _close(self, members: list[Member]) -> None:
        reached = [m for m in members if m.weight.grad is not None]
        if not reached:
            raise RuntimeError(
                "no gradient reached any parameter inside sample(); call loss.backward() inside the block "
                "(for a forward pass with drawn weights use opt.posterior(model).sample_())"
            )
        for member in reached:
            if member.group["accumulate"] > 1 and member.weight.grad is not None:
                member.weight.grad.div_(member.group["accumulate"])
        self._count("draws", 1)

    def _count(self, name: str, change: int) -> None:
        for group in self.param_groups:
            group[name] += change

    @property
    def _head(self) -> dict[str, Any]:
        return self.param_groups[0]

    @torch.no_grad()
    def _absorb(self) -> None:
        """Move the last block's gradient from `.grad` into the sums."""
        draw = self._head["draws"] - 1
        if draw < self._head["absorbed"]:
            return
        for member in self._members():
            if member.weight.grad is not None:
                g = member.weight.grad.to(member.state["mean"].dtype).contiguous()
                self._collect(member, g, self.noise(member, draw))
                member.weight.grad = None
        self._count("absorbed", 1)
