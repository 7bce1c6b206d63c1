"""The state of a network optimizer: tensors in `self.state[p]`, counters and options in `param_groups`.

State tensors are float32 (float64 for float64 weights), also where the weights are bfloat16. A weight that
somebody else has written since the last step becomes the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from bayescore.optim.buckets import Bucket, Member, bucketed
from bayescore.optim.draws import collect_draw
from bayescore.optim.fused import Pass, Rule, keep_heap
from bayescore.optim.misuse import version
from bayescore.optim.noise import Noise, hashed, is_hashed, key_of, torch_normal
from bayescore.optim.options import COUNTERS, check_group, check_prior_names, prior_tensor, start_sd

__all__ = ["WeightState"]


class WeightState(torch.optim.Optimizer):
    """Means, standard deviations, counters and noise of the weights of a module."""

    def __init__(self, params: Any, num_data: int, options: dict[str, Any]) -> None:
        self._prepare()
        keep_heap()
        given = {"num_data": num_data, "pace": 1.0, "watch": 0, **options, "method": type(self).__name__}
        super().__init__(params, {**given, **dict.fromkeys(COUNTERS, 0)})
        check_prior_names(self.param_groups)

    def _prepare(self) -> None:
        self._open = False
        self._size = 0  # trained weights, as of the last block
        self._versions: dict[Tensor, tuple[int, int]] = {}
        self._used: dict[Tensor, tuple[int, int]] = {}  # versions of the gradients of the last step
        self._buckets: list[Bucket] = []
        self._passes: dict[Any, Pass] = {}
        self._generators: dict[torch.device, torch.Generator] = {}
        self._arrived: set[int] = set()  # buckets that were updated while their gradients arrived
        self._set_aside: set[Tensor] = set()  # weights for whom state["mean"] is theta - mean until the step

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        found: dict[str, Any] = super().__getstate__()
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if "lr" in param_group or "init_sd" in param_group:
            param_group = {"watch": 0, **param_group}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            self._check(group)
            for p in group["params"]:
                if not p.is_floating_point():
                    raise TypeError(f"weights must be real floating point numbers; got {p.dtype}")
            if group["init_sd"] is None:
                group["init_sd"] = start_sd(group)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    # -- what a method adds --------------------------------------------------------------------------

    def _check(self, group: dict[str, Any]) -> None:
        """Raise unless the method's own options make sense."""

    def _start(self, member: Member, mean: Tensor) -> None:
        """Add the method's tensors to the state."""
        member.state["sd"] = torch.full_like(mean, member.group["init_sd"])

    def _collect(self, bucket: Bucket, g: Tensor, noise: Noise) -> None:
        """Add a draw to the running sums of a step with several draws."""
        sums = bucket.zeros("sum_g", "sum_xg", "sum_e", "sum_ee")
        self._run(bucket, collect_draw, *sums, g, noise)

    def _run(self, bucket: Bucket, rule: Rule, *args: Any) -> Any:
        """Apply a rule in place to flat tensors (optim/fused.py); returns the sums of its terms."""
        wish = bucket.group["compiled"]
        one_pass = self._passes.setdefault((rule, wish), Pass(rule, wish))
        return one_pass(self._size, bucket.sizes, *args)

    @property
    def size(self) -> int:
        """Number of trained weights."""
        return sum(p.numel() for group in self.param_groups for p in group["params"] if p.requires_grad)

    # -- parameters --------------------------------------------------------------------------------------

    def _members(self, frozen: bool = False) -> Iterator[Member]:
        """The trained tensors; with `frozen`, also those that were trained before they were frozen."""
        number = -1
        for group in self.param_groups:
            for position, p in enumerate(group["params"]):
                number += 1
                if p.numel() and (p.requires_grad or (frozen and "mean" in self.state[p])):
                    member = Member(number, group, position, p, self.state[p])
                    self._synchronise(member)
                    yield member

    @torch.inference_mode(False)
    @torch.no_grad()
    def _synchronise(self, member: Member) -> None:
        """Start the state, or take over weights that somebody else has written since."""
        p, state = member.weight, member.state
        if self._open or self._versions.get(p) == version(p):
            return
        if p in self._set_aside:
            self._settle([p])
        value = p.detach().to(torch.float64 if p.dtype == torch.float64 else torch.float32)
        if "mean" not in state:
            state["mean"] = value.clone(memory_format=torch.contiguous_format)
            prior = prior_tensor(member.group, member.position, state["mean"])
            if prior is not None:
                state["prior_mean"] = prior
            self._start(member, state["mean"])
        else:
            same = p.detach() == state["mean"].to(p.dtype)
            new = torch.where(same, state["mean"], value)
            if "average" in state:  # it moves along, and comes back with weights that are put back
                state["average"].add_(new - state["mean"])
            state["mean"].copy_(new)
        self._versions[p] = version(p)

    def _gathered(self, members: list[Member]) -> list[Bucket]:
        """The members in buckets; those of the last call where they still stand."""
        found = [m.weight for bucket in self._buckets for m in bucket.members]
        same = len(found) == len(members) and {id(w) for w in found} == {id(m.weight) for m in members}
        if not same or not all(bucket.stands for bucket in self._buckets):
            self._buckets = bucketed(members)
        return self._buckets

    def noise(self, bucket: Bucket, draw: int) -> Noise:
        """eps of a bucket in draw number `draw` of the present step."""
        return self._noise(bucket, self._head["step"], draw)

    def _noise(self, bucket: Bucket, step: int, draw: int) -> Noise:
        mean, seed = bucket.flat["mean"], bucket.group["seed"]
        key = (seed, step, draw)
        if bucket.made is not None and bucket.made[0] == key:
            return bucket.made[1]
        pair, sign = draw // 2, 1.0 - 2.0 * (draw % 2)
        names = [hashed(seed, step, pair, m.number) for m in bucket.members]
        if bucket.alone and is_hashed(self._size, mean.numel()):
            return key_of(mean, names[0], sign)
        if mean.device not in self._generators:
            self._generators[mean.device] = torch.Generator(device=mean.device)
        eps = torch.empty_like(mean)
        for part, name in zip(eps.split(bucket.sizes), names, strict=True):
            torch_normal(part, name, sign, self._generators[mean.device])
        bucket.made = (key, eps)
        return eps

    @torch.no_grad()
    def _settle(self, weights: Iterable[Tensor] | None = None) -> None:
        """Give up draws that were kept for a step: the state holds the mean again."""
        for weight in list(self._set_aside if weights is None else weights):
            state = self.state[weight]
            state["mean"].copy_(weight)
            if "average" in state and self._versions.get(weight) != version(weight):
                state["average"].copy_(weight)  # somebody has written it, and what it was is gone
            self._set_aside.discard(weight)

    def _count(self, name: str, change: int) -> None:
        for group in self.param_groups:
            group[name] += change

    @property
    def _head(self) -> dict[str, Any]:
        return self.param_groups[0]
