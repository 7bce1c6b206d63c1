"""The MAP estimate by Adam, with the prior and the scaling of the Bayesian optimizers.

With N data, temperature tau and the prior N(m0, s0^2), in mean-loss units (docs/networks-reference.md):
    theta <- Adam on  l(theta) + delta/2 |theta - m0|^2,   delta = tau / (N s0^2)                          (1)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from bayescore.checks import check_count
from bayescore.optim.checkpoint import possible
from bayescore.optim.distributed import check_whole
from bayescore.optim.options import check_num_data, positive

__all__ = ["PlainAdam", "check_adam"]


class PlainAdam(torch.optim.Adam):
    """Maximum a posteriori by Adam; an update whose gradient is not finite is skipped and counted.

    Arguments:
        num_data: N, the size of the training set.
        prior_mean: m0: 0, or "current" for the weights as they are, which takes one more number per weight.
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
        prior_mean: float | str = 0.0,
        prior_sd: float = 1.0,
        temperature: float = 1.0,
        max_skips: int = 20,
    ) -> None:
        check_num_data(num_data)
        positive("lr", lr)
        positive("temperature", temperature)
        positive("prior_sd", prior_sd, infinite=True)
        check_count("max_skips", max_skips)
        delta = temperature / num_data * float(prior_sd) ** -2.0
        super().__init__(params, lr=lr, weight_decay=delta, fused=True)
        counters = {"updates": 0, "skipped": 0, "skipped_in_a_row": 0, "max_skips": max_skips}
        for group in self.param_groups:
            check_whole(group["params"], "the methods plain, dropout and swag need")
            positive("lr", group["lr"])
            centre = group.setdefault("prior_mean", prior_mean)
            if centre not in (0, "current"):
                raise ValueError(f"prior_mean of a plain network must be 0 or 'current'; got {centre!r}")
            at_zero = centre == 0 or not group["weight_decay"]
            group["centres"] = [] if at_zero else [p.detach().clone() for p in group["params"]]
            group.update(counters)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; a closure runs forward and backward first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._move_prior()
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if all(possible("gradient", g) for g in grads):
            super().step()
            self._count(updates=1)
            self.param_groups[0]["skipped_in_a_row"] = 0
            self._check_state()
        else:
            self._skip()
        return loss

    @torch.no_grad()
    def _move_prior(self) -> None:
        """Adam's weight decay pulls to zero; with these terms in the gradient, to m0 as in (1)."""
        for group in self.param_groups:
            for p, centre in zip(group["params"], group["centres"], strict=False):
                if p.grad is not None:
                    p.grad.sub_(centre.to(p), alpha=group["weight_decay"])

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

    def _check_state(self) -> None:
        """Raise if finite gradients have driven the weights or Adam's moments out of range."""
        for group in self.param_groups:
            for p in group["params"]:
                state = {"weights": p.detach(), **self.state.get(p, {})}
                if not all(possible(what, value) for what, value in state.items()):
                    raise FloatingPointError(
                        "the weights, or Adam's moments, left the range of numbers that float32 can square "
                        f"by update {group['updates']}, from finite gradients: lower lr ({group['lr']:g}) or "
                        "temperature, or give prior_sd nearer to the size of the weights; this state is "
                        "lost, and the last checkpoint is good"
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
