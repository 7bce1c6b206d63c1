"""Draws of weights in a module: written for the length of a block, taken out again, counted.

The module's storage is kept: weights are written and restored by copying, never by adding and subtracting.
The gradient of the last block stays in `.grad`, where clipping and scaling can reach it; that of an earlier
block of the same step is moved into running sums. The draw of a large tensor stays too, until the step: when
the mean goes back into the module, theta - mean takes its place in the state, because dividing that by sd is
ten times cheaper than making eps again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from bayescore.optim.buckets import Bucket, Member
from bayescore.optim.draws import draw_weights, set_aside
from bayescore.optim.misuse import backward_calls, version, warn_foreign
from bayescore.optim.state import WeightState

__all__ = ["GONE", "Sampling"]

GONE = "the gradient of the last sample() block is gone; call zero_grad() after step(), not before"


class Sampling(WeightState):
    """The block `with opt.sample():`."""

    @contextmanager
    def sample(self) -> Iterator[None]:
        """Write a draw of the weights into the module for the length of the block."""
        if self._open:
            raise RuntimeError("sample() was entered inside sample(); close the first block before the next")
        self._absorb()
        self._settle()
        members = list(self._members())
        buckets = self._gathered(members)
        self._size = self.size
        weights = [member.weight for member in members]
        warn_foreign(weights, self._used)
        for weight in weights:
            weight.grad = None
        counting = any(member.group["accumulate"] > 1 for member in members)
        self._open = True
        try:
            with torch.no_grad():
                for bucket in buckets:
                    self._perturb(bucket)
            torch.clear_autocast_cache()  # it keeps low-precision copies of weights that have just changed
            with self._arriving(buckets), backward_calls(weights if counting else ()) as calls:
                yield
        except BaseException:
            for weight in weights:
                weight.grad = None
            self._leave(buckets, self._restore)
            raise
        self._leave(buckets, self._put_mean)
        self._close(members, max(calls.values(), default=1))

    @torch.no_grad()
    def _leave(self, buckets: list[Bucket], put: Callable[[Bucket], None]) -> None:
        """The end of a block: the mean is put back into the module."""
        for bucket in buckets:
            if id(bucket) not in self._arrived:
                put(bucket)
        torch.clear_autocast_cache()
        self._open = False

    def _put_mean(self, bucket: Bucket) -> None:
        """The mean goes back; a draw that the step will ask for again is kept in its place."""
        theta = bucket.whole
        if theta is None or bucket.group["samples"] > 1 or not bucket.keeps_draws:
            self._restore(bucket)
            return
        self._run(bucket, set_aside, theta, bucket.flat["mean"])
        (member,) = bucket.members
        self._versions[member.weight] = version(member.weight)
        self._set_aside.add(member.weight)

    def _arriving(self, buckets: list[Bucket]) -> AbstractContextManager[None]:  # noqa: ARG002
        """What happens to gradients while they arrive: nothing."""
        return nullcontext()

    def _perturb(self, bucket: Bucket) -> None:
        mean, sd, noise = bucket.flat["mean"], bucket.flat["sd"], self.noise(bucket, bucket.group["draws"])
        whole = bucket.whole
        theta = torch.empty_like(mean) if whole is None else whole
        self._run(bucket, draw_weights, theta, mean, sd, noise)
        if whole is None:
            for member, part in zip(bucket.members, bucket.split(theta), strict=True):
                member.weight.copy_(part)

    def _restore(self, bucket: Bucket) -> None:
        for member in bucket.members:
            member.weight.copy_(member.state["mean"])
            self._versions[member.weight] = version(member.weight)

    def _written(self, bucket: Bucket) -> None:
        """Bring the module up to date where the pass has not done so itself."""
        if bucket.whole is None:
            self._restore(bucket)
        else:
            (member,) = bucket.members
            self._versions[member.weight] = version(member.weight)
            self._set_aside.discard(member.weight)

    def _close(self, members: list[Member], calls: int) -> None:
        """Check the block's gradients, and average over its backward calls where that was asked for."""
        reached = [m for m in members if m.weight.grad is not None]
        if not reached:
            raise RuntimeError(
                "no gradient reached any parameter inside sample(); call loss.backward() inside the block "
                "(for a forward pass with drawn weights use opt.posterior(model).sample_())"
            )
        for member in reached:
            if member.weight.grad is not None and member.weight.grad.layout != torch.strided:
                raise TypeError(
                    "a gradient is sparse, and the posterior is over all weights; use Embedding(sparse=False)"
                )
            if member.group["accumulate"] > 1 and member.weight.grad is not None:
                member.weight.grad.div_(min(member.group["accumulate"], calls))
        self._count("draws", 1)

    @torch.no_grad()
    def _absorb(self) -> None:
        """Move the last block's gradient from `.grad` into the sums."""
        draw = self._head["draws"] - 1
        if draw < self._head["absorbed"]:
            return
        if self._head["update_in_backward"]:
            raise RuntimeError(
                "update_in_backward=True makes one draw per step; call step() before the next sample()"
            )
        self._settle()
        reached = [m for m in self._members() if m.weight.grad is not None]
        if not reached:
            raise RuntimeError(GONE)
        for bucket in self._gathered(reached):
            g = bucket.gathered(m.weight.grad for m in bucket.members if m.weight.grad is not None)
            self._collect(bucket, g, self.noise(bucket, draw))
            for member in bucket.members:
                member.weight.grad = None
        self._count("absorbed", 1)
