"""The MAP estimate by Adam, with the prior and the scaling of the Bayesian optimizers.

With N data, temperature tau and the prior N(0, s0^2), in mean-loss units (docs/networks-reference.md):
    theta <- Adam on  l(theta) + delta/2 |theta|^2,   delta = tau / (N s0^2)                               (1)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from bayescore.checks import check_count, check_number

__all__ = ["PlainAdam", "check_adam"]


class PlainAdam(torch.optim.Adam):
    """Maximum a posteriori by Adam; an update whose gradient is not finite is skipped and counted.

    Arguments:
        num_data: N, the size of the training set.
        prior_sd: s0; float("inf") gives maximum likelihood.
        temperature: tau.
        max_skips: updates skipped in a row before training stops.
    """

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float = 1e-3,
        prior_sd: float = 1.0,
        temperature: float = 1.0,
        max_skips: int = 20,
    ) -> None:
        check_count("num_data", num_data)
        check_number("lr", lr)
        check_number("temperature", temperature)
        if not prior_sd > 0:
            raise ValueError(f"prior_sd must be positive; got {prior_sd}")
        delta = temperature / num_data * float(prior_sd) ** -2.0
        super().__init__(params, lr=lr, weight_decay=delta, fused=True)
        counters = {"updates": 0, "skipped": 0, "skipped_in_a_row": 0, "max_skips": max_skips}
        for group in self.param_groups:
            group.update(counters)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; a closure runs forward and backward first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if all(bool(torch.isfinite(g).all()) for g in grads):
            super().step()
            self._count(updates=1)
            self.param_groups[0]["skipped_in_a_row"] = 0
        else:
            self._skip()
        return loss

    def _skip(self) -> None:
        self._count(skipped=1, skipped_in_a_row=1)
        head = self.param_groups[0]
        if head["skipped"] == 1:
            warnings.warn(
                "a gradient was not finite: this update was left out, and so will be others "
                "(the status counts them)",
                RuntimeWarning,
                stacklevel=4,
            )
        if head["skipped_in_a_row"] >= head["max_skips"]:
            raise FloatingPointError(
                f"{head['skipped_in_a_row']} updates in a row had gradients that were not finite; "
                "lower lr, or check the data"
            )

    def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            self.param_groups[0][name] += change

    @property
    def status(self) -> str:
        """One sentence: how many updates were made, and how many left out."""
        size = sum(p.numel() for group in self.param_groups for p in group["params"])
        head = self.param_groups[0]
        lost = f"; {head['skipped']} left out because a gradient was not finite" if head["skipped"] else ""
        return f"{head['updates']} updates of {size} weights{lost}"


def check_adam(state_dict: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise unless a state dict of Adam fits the parameters of `optimizer` and has possible values."""
    for saved, group in zip(state_dict["param_groups"], optimizer.param_groups, strict=True):
        for name, value in group.items():
            if isinstance(value, int | float) and not isinstance(saved[name], int | float):
                raise TypeError(f"{name} of Adam must be a number; got {saved[name]!r}")
        for key, p in zip(saved["params"], group["params"], strict=True):
            for what, value in state_dict["state"].get(key, {}).items():
                fits = value.shape == (() if what == "step" else p.shape)
                if not fits or not value.isfinite().all() or (what != "exp_avg" and (value < 0).any()):
                    raise ValueError(f"{what} of Adam's parameter {key} is of another shape, or impossible")
