"""Updates in the middle of a backward pass (optim/arriving.py), and updates that are left out."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bayescore.optim.arriving import hooked, is_spent
from bayescore.optim.buckets import Bucket
from bayescore.optim.gradients import finite
from bayescore.optim.keeping import Keeping
from bayescore.optim.noise import Noise, Placed
from bayescore.optim.sampling import GONE

__all__ = ["InBackward"]


class InBackward(Keeping):
    """With update_in_backward, large tensors are updated when their gradients arrive."""

    @abstractmethod
    def _apply(self, bucket: Bucket, g: Tensor | None, noise: Noise | Placed | None, draws: int) -> None:
        """Update a bucket: from gradient and noise if there was one draw, else from the sums (both None)."""

    def _present_noise(self, bucket: Bucket) -> Noise | Placed:
        """eps of the only draw of this step, from the draw itself where it is still there."""
        if bucket.keeps_draws:
            weight, whole, mean = bucket.members[0].weight, bucket.whole, bucket.flat["mean"]
            assert whole is not None
            if weight in self._set_aside:
                return Placed(mean, whole, difference=True)
            if self._open:
                return Placed(whole, mean, difference=False)
        return self.noise(bucket, 0)

    @contextmanager
    def _arriving(self, buckets: list[Bucket]) -> Iterator[None]:
        """With update_in_backward: large tensors are updated when their gradients arrive."""
        self._arrived.clear()
        self._bad = 0
        if not self._head["update_in_backward"]:
            yield
            return
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise RuntimeError(
                "update_in_backward=True would use gradients before the other processes' are added; "
                "leave it out in distributed training"
            )
        self._count("updates", 1)
        try:
            with hooked(buckets, self._arrive):
                yield
        except BaseException:
            if not self._arrived:
                self._count("updates", -1)
            raise

    def _arrive(self, bucket: Bucket, *gradients: Tensor) -> None:
        self._arrived.add(id(bucket))
        if finite(gradients):
            self._apply(bucket, bucket.gathered(gradients), self._present_noise(bucket), 1)
        else:
            self._bad += 1
            self._restore(bucket)
        self._written(bucket)

    def _finish_arrived(self) -> bool:
        """Update the small tensors, and count."""
        for bucket in list(self._gathered(list(self._members()))):
            rows = [(m, m.weight.grad) for m in bucket.members]
            here = [(m, g) for m, g in rows if g is not None and not is_spent(g)]
            if here:
                whole = bucket if len(here) == len(rows) else Bucket([m for m, _ in here])
                self._arrive(whole, *(g for _, g in here))
        if not self._arrived:
            raise RuntimeError(GONE)
        moved = self._bad < len(self._arrived)
        if not moved:
            self._count("updates", -1)
        if self._bad:
            self._skip(self._bad)
        else:
            self._count("skipped_in_a_row", -self._head["skipped_in_a_row"])
        return moved

    def _skip(self, count: int = 1) -> None:
        self._count("skipped", count)
        self._count("skipped_in_a_row", 1)
        head = self._head
        if head["skipped"] == count:
            warnings.warn(
                f"a gradient was not finite at step {head['step']}: this update was left out, "
                "and so will be others (opt.status counts them)",
                RuntimeWarning,
                stacklevel=4,
            )
        if head["skipped_in_a_row"] >= head["max_skips"]:
            raise FloatingPointError(
                f"{head['skipped_in_a_row']} updates in a row had gradients that were not finite; "
                "lower lr or init_sd, or check the data"
            )
