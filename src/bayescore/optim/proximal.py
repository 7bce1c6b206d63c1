"""ProximalScore for networks: the paper's proximal score matching with a diagonal Gaussian over the weights.

solver="exact" solves each proximal problem in closed form (optim/exact.py); solver="gradient" makes the
paper's N descent steps on (mean, log sd) per iteration (optim/inner.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.optim.base import Shell
from bayescore.optim.exact import PATIENCE, ExactOptions, exact_single, exact_step
from bayescore.optim.fused import Pass
from bayescore.optim.inner import InnerOptions, inner_steps
from bayescore.optim.options import positive
from bayescore.optim.precision import precision_sentence
from bayescore.optim.sampling import Member

__all__ = ["ProximalScore"]


class ProximalScore(Shell):
    """Proximal score matching as a drop-in optimizer.

    Arguments:
        params: parameters, named parameters, or groups of them with their own options.
        num_data: size of the training set, N.
        lr: rate of the mean; for the exact solver 1 is a full Newton step with the current precision.
        momentum: of the mean's gradient.
        solver: "exact" or "gradient".
        damping: exact solver: the precision's memory in steps at the start; it grows by half a step per step.
        curvature: exact solver: "auto" as in optim/exact.py (7)-(11); "score" for the ridge step as it is,
            with `damping` constant.
        inner_steps, optimizer, alpha: gradient solver: N, "adam" or "sgd", weight of the proximal term.
        sd_rate, floor: gradient solver: rate of log sd as a multiple of lr, Adam's floor (optim/inner.py).
        init_sd: initial standard deviation; None: that of unit curvature per datum, at most 0.05.
        prior_mean, prior_sd: the prior N(prior_mean, prior_sd^2): 0, a number, "current" for the weights as
            they are, or a state dict (names it lacks are centred at zero). prior_sd=math.inf is flat.
        temperature: tau; the likelihood is raised to 1/tau.
        samples: draws per step with `opt.step(closure)`.
        accumulate: backward calls per block whose gradients are to be averaged.
        batch_size: typical size of a batch; lets the precision be learned from squared gradients where
            eps*score is too noisy.
        max_skips: updates in a row that may be left out for non-finite gradients before the run stops.
        compiled: run the update compiled; None: from 2 million weights on.

    >>> model = torch.nn.Linear(3, 1)
    >>> opt = ProximalScore(model.parameters(), num_data=100)
    >>> with opt.sample():
    ...     model(torch.ones(5, 3)).square().mean().backward()
    >>> opt.step(); opt.zero_grad()
    """

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float | None = None,
        momentum: float = 0.9,
        solver: str = "exact",
        damping: float = 100.0,
        curvature: str = "auto",
        inner_steps: int = 2,
        optimizer: str = "adam",
        alpha: float = 0.5,
        sd_rate: float = 5.0,
        floor: float = 0.1,
        init_sd: float | None = None,
        prior_mean: Any = 0.0,
        prior_sd: float = 1.0,
        temperature: float = 1.0,
        samples: int = 1,
        accumulate: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        max_skips: int = 50,
        compiled: bool | None = None,
    ) -> None:
        if lr is None:
            lr = 0.1 if solver == "exact" else 1e-3
        options = {
            key: value for key, value in locals().items() if key not in ("self", "params", "__class__")
        }
        super().__init__(params, options.pop("num_data"), options)

    def _prepare(self) -> None:
        super()._prepare()
        self._passes: dict[Any, Pass] = {}

    def _check(self, group: dict[str, Any]) -> None:
        for name, choices in (
            ("solver", ("exact", "gradient")),
            ("curvature", ("auto", "score")),
            ("optimizer", ("adam", "sgd")),
        ):
            if group[name] not in choices:
                raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}; got {group[name]!r}")
        if not 0 <= group["momentum"] < 1:
            raise ValueError(f"momentum must lie in [0, 1); got {group['momentum']}")
        positive("damping", group["damping"])
        positive("sd_rate", group["sd_rate"])
        check_count("inner_steps", group["inner_steps"])
        if group["solver"] == "exact" and group["lr"] > 1:
            raise ValueError(f"lr of the exact solver is at most 1, a full Newton step; got {group['lr']}")
        for name in ("alpha", "floor"):
            if group[name] < 0:
                raise ValueError(f"{name} must not be negative; got {group[name]}")

    def _start(self, member: Member, mean: Tensor) -> None:
        super()._start(member, mean)
        member.state["moments"] = mean.new_zeros(2)
        if member.group["solver"] == "exact":
            member.state["momentum"] = torch.zeros_like(mean)
        else:
            member.state["first"] = mean.new_zeros(2, *mean.shape)
            member.state["second"] = mean.new_zeros(
                2 if member.group["optimizer"] == "adam" else 0, *mean.shape
            )

    def _pass(self, rule: Any, group: dict[str, Any]) -> Pass:
        key = (rule, group["compiled"])
        return self._passes.setdefault(key, Pass(rule, group["compiled"]))

    def _apply(self, member: Member, g: Tensor | None, eps: Tensor, draws: int) -> None:
        state, group = member.state, member.group
        mean = state["mean"]
        prior = self.prior_mean(member)
        if group["solver"] == "gradient":
            self._inner(member, g, eps, draws, prior)
            return
        o = self._options(member, draws)
        flat = [x.reshape(-1) for x in (mean, state["sd"], state["momentum"])]
        prior = prior.reshape(-1) if prior.dim() else prior
        if g is not None:
            rule = self._pass(exact_single, group)
            new = rule(self.size, *flat, state["moments"], prior, g.reshape(-1), eps.reshape(-1), o)
        else:
            sums = [state[k].div_(draws).reshape(-1) for k in ("sum_g", "sum_xg", "sum_e", "sum_ee")]
            new = self._pass(exact_step, group)(self.size, *flat, state["moments"], prior, *sums, o)
        for key, value in zip(("mean", "sd", "momentum"), new[:3], strict=True):
            state[key].copy_(value.view(mean.shape))
        state["moments"].copy_(new[3])

    def _options(self, member: Member, draws: int) -> ExactOptions:
        group, like = member.group, member.state["mean"]
        N, B, beta = group["num_data"], group["batch_size"], group["momentum"]
        known = B is not None and B < N and draws == 1 and group["curvature"] == "auto"
        numbers = (
            group["temperature"] / N,
            group["prior_sd"] ** -2.0,
            group["prior_sd"],
            group["lr"],
            beta,
            group["damping"],
            group["updates"],
            float(group["curvature"] == "score"),
            B * (1 + beta) / 2 / (1 - B / N) if known else 0.0,
        )
        return ExactOptions(*torch.tensor(numbers, dtype=like.dtype, device=like.device).unbind())

    def _inner(self, member: Member, g: Tensor | None, eps: Tensor, draws: int, prior: Tensor) -> None:
        state, group = member.state, member.group
        if g is not None:
            G, X, e1, e2 = g, eps * g, eps, eps * eps
        else:
            G, X, e1, e2 = (state[k].div_(draws) for k in ("sum_g", "sum_xg", "sum_e", "sum_ee"))
        o = InnerOptions(
            c=group["temperature"] / group["num_data"],
            prior_precision=group["prior_sd"] ** -2.0,
            alpha=group["alpha"],
            steps=group["inner_steps"],
            adam=group["optimizer"] == "adam",
            lr=group["lr"],
            sd_rate=group["sd_rate"],
            momentum=group["momentum"],
            floor=group["floor"],
            t=group["updates"],
        )
        first, second = state["first"], state["second"]
        inner_steps(state["mean"], state["sd"], first, second, state["moments"], prior, G, X, e1, e2, o)

    def _precision_status(self) -> str:
        group = self._head
        how = "score"
        if group["solver"] == "exact" and group["curvature"] == "auto":
            B = group["batch_size"]
            how = "squares" if B is not None and group["num_data"] > B else "initial"
        backends = {p.status for p in self._passes.values()}
        sentence = precision_sentence(
            self.slope_noise(), group["updates"], group["last_draws"], how, PATIENCE
        )
        return f"{sentence}; update {', '.join(sorted(backends))}" if backends else sentence
