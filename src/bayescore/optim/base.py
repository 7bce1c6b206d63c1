"""What every network optimizer shares: the gesture, its units, the step, and what it says about itself.

    with opt.sample():            # weights theta = mean + sd * eps are written into the module
        loss.backward()           # any number of times: one draw, `.grad` becomes the mean-loss gradient
    opt.step(); opt.zero_grad()   # the mean has been back in the module since the block ended

Units. The user gives the mean loss l(theta) and N = num_data; tau is the temperature, N(m0, s0^2) the prior.
With c = tau/N the score of the posterior is
    s(theta) = -(1/c) (grad l(theta) + delta (theta - m0)),      delta = c/s0^2                       (1)
and everything is computed in per-datum units, c s, which stay in range for tau from 1 to 1e-6 and any N.
Whatever a method does to the mean m, with weight_decay = w it also decays towards the prior's as in AdamW,
    m <- m + move(m) - lr w (m - m0)                                                                  (2)
which no prior does: the score (1) of a weak prior is nothing beside the data's, and a strong one decides sds.
At a rate that learns fast the mean wanders about its fixed point. With average = f > 0 the posterior has
    mbar <- mbar + (m - mbar)/max(1, f t)                                                             (3)
after update number t, while the module, and training, go on with m. The weight of the mean after update s
grows like s^(1/f - 1): f = 1 is the plain average, with f = 1/2 the first half of the path counts a quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayescore.optim.arriving import check_arriving
from bayescore.optim.buckets import Bucket, Member
from bayescore.optim.fused import Rule, and_write, decayed, from_draw
from bayescore.optim.gradients import finite, scale_of
from bayescore.optim.in_backward import InBackward
from bayescore.optim.misuse import check_mean, stamp
from bayescore.optim.noise import Placed
from bayescore.optim.precision import Slope, lagging, slope
from bayescore.optim.sampling import GONE
from bayescore.optim.steep import is_steep

__all__ = ["Shell"]


class Shell(InBackward):
    """Base of the network optimizers; subclasses give `_start`, `_collect` and `_apply`."""

    #: the fewest draws a step needs
    least_draws: ClassVar[int] = 1
    # GradScaler then hands over its scale instead of skipping the step: earlier draws can be unscaled too
    _step_supports_amp_scaling = True

    def _start(self, member: Member, mean: Tensor) -> None:
        super()._start(member, mean)
        member.state["moments"] = mean.new_zeros(4)  # optim/precision.py
        if member.group["average"]:
            member.state["average"] = mean.clone()

    def _numbers(self, bucket: Bucket, *values: float) -> tuple[Tensor, ...]:
        """Options of a rule as zero-dimensional tensors."""
        like = bucket.flat["mean"]
        return torch.tensor(values, dtype=like.dtype, device=like.device).unbind()

    def _prior_mean(self, bucket: Bucket) -> Tensor:
        """m0 of a bucket: one per weight, or one for all."""
        if "prior_mean" in bucket.flat:
            return bucket.flat["prior_mean"]
        value = bucket.group["prior_mean"]
        return bucket.flat["mean"].new_tensor(float(value) if isinstance(value, int | float) else 0.0)

    def _decay(self, bucket: Bucket) -> float:
        """lr w of (2)"""
        return float(self._rate(bucket.group) * bucket.group["weight_decay"])

    def _rate(self, group: dict[str, Any]) -> float:
        """The learning rate, lowered where the loss is steep (optim/steep.py)."""
        return float(group["lr"] * group["pace"])

    def _stride(self, group: dict[str, Any]) -> float:
        """By how much a gradient of 1 moves a weight of a group at first."""
        return self._rate(group)

    def _move(self, bucket: Bucket, rule: Rule, mean: Tensor, *args: Any) -> Any:
        """Apply a rule that moves the mean, with (2), and write the new mean into the module in one pass."""
        if share := self._decay(bucket):
            other, *rest = args
            towards, shares = self._prior_mean(bucket), self._numbers(bucket, share)
            rule, args = decayed(rule), (other, towards, *shares, *rest)
        for placed in (a for a in args if isinstance(a, Placed)):
            others = [a for a in args if a is not placed]
            taking = from_draw(rule, placed.difference)
            return self._run(bucket, taking, placed.draw, placed.mean, *others)
        if bucket.whole is None:
            return self._run(bucket, rule, mean, *args)
        return self._run(bucket, and_write(rule), bucket.whole, mean, *args)

    def _average(self) -> None:
        """(3), of every tensor: one that no gradient reached, or that is frozen, stands still meanwhile."""
        for group in self.param_groups:
            share = 1 / max(1.0, group["average"] * group["updates"])
            for state in (self.state[p] for p in group["params"] if p in self.state):
                if "average" in state:  # where the option was set to 0 meanwhile, the share is 1
                    state["average"].lerp_(state["mean"], share)
                elif group["average"] and "mean" in state:  # it was set meanwhile
                    state["average"] = state["mean"].clone()

    def _precision_status(self) -> str:
        """Whether the standard deviations have been learned."""
        return ""

    def _measured(self) -> list[Slope]:
        """What is known of the curvature estimates of the tensors that have been measured."""
        rows = []
        for m in (m for m in self._members() if m.state["moments"][3] > 0):
            row, power = slope(m.state["moments"], m.weight.numel()), self._power(m.group)
            sds = (m.group["init_sd"], m.group["prior_sd"])
            rows.append(
                row._replace(lagging=lagging(m.state["sd"], *sds, row.forgotten, power)) if power else row
            )
        return rows

    def _power(self, group: dict[str, Any]) -> int:  # noqa: ARG002
        """The power of the precision that moves linearly to its estimate (optim/precision.py); 0: none."""
        return 0

    def _check(self, group: dict[str, Any]) -> None:
        if group["update_in_backward"]:
            check_arriving(group, self.least_draws)

    # -- step ------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the posterior from the draws since the last step.

        With a closure: make `samples` draws, call it inside each (it runs forward and backward), then step.
        Returns what the closure returned last.
        """
        if self._open:
            raise RuntimeError("step() was called inside sample(); close the block first")
        loss = None
        if closure is not None:
            try:
                for _ in range(self._head["samples"]):
                    with self.sample(), torch.enable_grad():
                        loss = closure()
                        check_mean(loss)
            except BaseException:
                self._forget()  # draws of one batch do not belong to the next
                raise
        draws = self._head["draws"]
        if draws < self.least_draws:
            raise RuntimeError(
                f"{type(self).__name__} needs {self.least_draws} draw(s) per step and there were {draws}; "
                "use `with opt.sample(): loss.backward()` that many times before opt.step(), "
                "or opt.step(closure); zero_grad() before step() throws draws away"
            )
        with torch.no_grad():
            try:
                moved = self._finish(draws)
            finally:
                self._forget()
                for group in self.param_groups:
                    group["last_draws"] = draws
            if moved:
                self._average()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Throw gradients away, and outside of blocks the draws since the last step with them."""
        super().zero_grad(set_to_none)
        if self._head["draws"] and not self._open:
            self._forget()

    def _forget(self) -> None:
        """Give up the draws of this step, whatever became of them; the next has noise of its own."""
        self._settle()  # tensors that had no gradient, or whose update was left out
        for bucket in self._buckets:
            bucket.drop_sums()
            bucket.made = None
        for state in self.state.values():
            for key in [k for k in state if k.startswith("sum_")]:
                del state[key]
        for group in self.param_groups:
            group["draws"] = group["absorbed"] = 0
        weights = (p for group in self.param_groups for p in group["params"] if p.grad is not None)
        self._used = {p: stamp(p.grad) for p in weights if p.grad is not None}
        self._count("step", 1)

    def _finish(self, draws: int) -> bool:
        """Update from all draws; returns whether anything has moved."""
        if self._head["update_in_backward"]:
            return self._finish_arrived()
        members = [m for m in self._members() if m.weight.grad is not None or "sum_g" in m.state]
        if not any(m.weight.grad is not None for m in members):
            raise RuntimeError(GONE)
        scale = scale_of(self, draws)
        parts = [m.weight.grad for m in members if m.weight.grad is not None]
        parts += [m.state["sum_g"] for m in members if "sum_g" in m.state]
        if scale is None or not finite(parts):
            self._skip()
            return False
        if draws > 1:
            self._absorb()
        if is_steep(self.param_groups, members, list(self._members()), draws * scale, self._stride):
            return False
        self._count("updates", 1)
        self._count("skipped_in_a_row", -self._head["skipped_in_a_row"])
        for bucket in self._gathered(members):
            self._update(bucket, draws, scale)
            self._written(bucket)
        torch.clear_autocast_cache()
        return True

    def _update(self, bucket: Bucket, draws: int, scale: float) -> None:
        if draws == 1:
            g = bucket.gathered(m.weight.grad for m in bucket.members if m.weight.grad is not None)
            self._apply(bucket, g if scale == 1.0 else g / scale, self._present_noise(bucket), 1)
            return
        for key in [k for k in bucket.flat if k.startswith("sum_") and "g" in k]:
            bucket.flat[key].div_(scale ** key.count("g"))
        self._apply(bucket, None, None, draws)

    @property
    def status(self) -> str:
        """Where the run stands, in plain words."""
        head = self._head
        parts = [f"{head['updates']} updates of {self.size} weights"]
        if head["skipped"]:
            parts.append(f"{head['skipped']} left out because a gradient was not finite")
        if head["pace"] < 1:
            parts.append(f"rate lowered {1 / head['pace']:.3g}-fold for a steep loss (is it a mean?)")
        passes = sorted({p.status for p in self._passes.values() if p.status})
        return "; ".join(part for part in (*parts, self._precision_status(), *passes) if part)
