"""Training with dropout of single weights, which return to where they began (posteriors/weight_dropout.py).

Every step draws z and takes the gradient g of the mean loss at theta = z m + (1 - z) m0; the chain rule gives
    gradient of m = z g + (1 - p) delta (m - m0),      delta = tau / (N s0^2)                             (1)
where the second term is that of the KL divergence from the spikes to the prior N(m0, s0^2), (1 - p)/2
|m - m0|^2 / s0^2, up to a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.nn.plain import PlainAdam
from bayescore.posteriors.dropout import check_rate
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.weight_dropout import WeightDropoutPosterior, kept_weights
from bayescore.rng import generator

__all__ = ["WeightDropout"]


class WeightDropout(PlainAdam):
    """Adam on (1).

    Arguments:
        p: the share of weights that return to m0 in a step.
        seed: of the masks.
        others: those of `PlainAdam`; m0 are the weights as they are.
    """

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        p: float = 0.1,
        seed: int = 0,
        lr: float = 1e-3,
        prior_mean: float | str = "current",
        prior_sd: float = 1.0,
        temperature: float = 1.0,
        max_skips: int = 20,
    ) -> None:
        self.p, self.seed = check_rate(p), seed
        super().__init__(
            params,
            num_data,
            lr=lr,
            prior_mean=prior_mean,
            prior_sd=prior_sd,
            temperature=temperature,
            max_skips=max_skips,
        )
        for group in self.param_groups:
            group["weight_decay"] *= 1 - self.p  # of (1)
            group["initial"] = [p.detach().clone() for p in group["params"]]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update with the gradient at a draw; the closure runs forward and backward."""
        if closure is None:
            raise TypeError("WeightDropout draws weights before forward and backward; pass them as a closure")
        head = self.param_groups[0]
        rng = generator(self.seed, purpose=f"weight dropout {head['updates'] + head['skipped']}")
        drawn = []
        with torch.no_grad():
            for group in self.param_groups:
                for p, initial in zip(group["params"], group["initial"], strict=True):
                    z = kept_weights(torch.empty_like(p, device="cpu"), self.p, rng).to(p.device)
                    drawn.append((p, p.detach().clone(), z))
                    p.copy_(torch.where(z > 0, p, initial))

        def at_the_draw() -> Any:
            try:
                return closure()
            finally:
                with torch.no_grad():
                    for p, mean, z in drawn:
                        p.copy_(mean)
                        if p.grad is not None:
                            p.grad.mul_(z)

        return super().step(at_the_draw)

    def posterior(self, model: nn.Module, likelihood: Likelihood) -> WeightDropoutPosterior:
        """The spikes as they are now."""
        initial: dict[int, Tensor] = {
            id(p): m0
            for group in self.param_groups
            for p, m0 in zip(group["params"], group["initial"], strict=True)
        }
        own = {name: p for name, p in model.named_parameters() if id(p) in initial}
        return WeightDropoutPosterior(
            model, own, {name: initial[id(p)] for name, p in own.items()}, self.p, likelihood=likelihood
        )
