"""ProximalScore for networks: the paper's proximal score matching with a diagonal Gaussian over the weights.

solver="exact" solves each proximal problem in closed form (optim/exact.py); solver="gradient" makes the
paper's N descent steps on (mean, log sd) per iteration (optim/inner.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.methods.descent import B1, B2
from bayescore.optim.base import Shell
from bayescore.optim.buckets import Bucket, Member
from bayescore.optim.exact import PATIENCE, ExactOptions, exact_update, settled
from bayescore.optim.fused import of_one_draw
from bayescore.optim.inner import InnerOptions, inner_single, inner_steps
from bayescore.optim.noise import Noise, Placed
from bayescore.optim.options import positive
from bayescore.optim.precision import follow, precision_sentence, take
from bayescore.optim.steep import WATCHED

__all__ = ["ProximalScore"]

exact_single = of_one_draw(exact_update)
STILL = 1e-20  # share of a Newton step that moves nothing: what a rate of 0 becomes


class ProximalScore(Shell):
    """Proximal score matching as a drop-in optimizer.

    Arguments:
        params: parameters, named parameters, or groups of them with their own options.
        num_data: size of the training set, N.
        lr: rate of the mean. Of the exact solver as of SGD while the sd is the initial one; a weight whose sd
            has grown by a factor moves faster by its square, up to a Newton step with its precision. None:
            0.1 (3e-3 of the gradient solver); of the exact solver, less where the loss is steep, as is a
            free init_sd (optim/steep.py).
        momentum: of the mean's gradient; 0 keeps no momentum, a number less per weight.
        solver: "exact" or "gradient".
        damping: exact solver: the precision's memory in steps at the start; it grows by half a step per step.
        curvature: exact solver: "auto" as in optim/exact.py (7)-(11); "score" for the ridge step as it is,
            with `damping` constant.
        inner_steps, optimizer, alpha: gradient solver: N, "adam" or "sgd", weight of the proximal term.
        sd_rate, floor: gradient solver with Adam: rate of log sd as a multiple of lr, floor (optim/inner.py).
        init_sd: initial standard deviation; None: that of unit curvature per datum, at most 0.05 and at most
            half of the weights' root mean square.
        prior_mean, prior_sd: the prior N(prior_mean, prior_sd^2): 0, a number, "current" for the weights as
            they are, or a state dict (names it lacks are centred at zero). prior_sd=math.inf is flat.
        weight_decay: the mean also decays towards the prior's, by lr * weight_decay per step, as in AdamW.
        average: the posterior's mean is an average over the updates so far, (3) of optim/base.py, from 1 for
            all alike to little for the last ones (a number more per weight); 0: the last one's.
        temperature: tau; the likelihood is raised to 1/tau.
        samples: draws per step with `opt.step(closure)`.
        accumulate: backward calls per block whose gradients are to be averaged.
        batch_size: typical size of a batch; lets the precision be learned from squared gradients where
            eps*score is too noisy.
        max_skips: updates in a row that may be left out for non-finite gradients before the run stops.
        compiled: run the update compiled; None: from 500,000 weights on.
        update_in_backward: update large tensors when their gradients arrive, whose memory is then free again
            (optim/arriving.py); not with samples, accumulation, GradScaler or clipping by the global norm.

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
        damping: float = 500.0,
        curvature: str = "auto",
        inner_steps: int = 2,
        optimizer: str = "adam",
        alpha: float = 0.5,
        sd_rate: float = 1.0,
        floor: float = 0.1,
        init_sd: float | None = None,
        prior_mean: Any = 0.0,
        prior_sd: float = 1.0,
        weight_decay: float = 0.0,
        average: float = 0.0,
        temperature: float = 1.0,
        samples: int = 1,
        accumulate: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        max_skips: int = 50,
        compiled: bool | None = None,
        update_in_backward: bool = False,
    ) -> None:
        free = lr is None and init_sd is None and solver == "exact" and not update_in_backward
        watch = WATCHED if free else 0
        if lr is None:
            lr = 0.1 if solver == "exact" else 3e-3
        options = {
            key: value
            for key, value in locals().items()
            if key not in ("self", "params", "free", "__class__")
        }
        super().__init__(params, options.pop("num_data"), options)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
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
        for name in ("alpha", "floor"):
            if group[name] < 0:
                raise ValueError(f"{name} must not be negative; got {group[name]}")

    def _start(self, member: Member, mean: Tensor) -> None:
        super()._start(member, mean)
        if member.group["solver"] == "exact":
            if member.group["momentum"] > 0:
                member.state["momentum"] = torch.zeros_like(mean)
        else:
            adam = member.group["optimizer"] == "adam"
            for key in ("first_m", "first_r", *(("second_m", "second_r") if adam else ())):
                member.state[key] = torch.zeros_like(mean)

    def _apply(self, bucket: Bucket, g: Tensor | None, noise: Noise | Placed | None, draws: int) -> None:
        if g is None:
            seen: list[Any] = [bucket.flat[key].div_(draws) for key in ("sum_g", "sum_xg", "sum_e", "sum_ee")]
        else:
            seen = [g, noise]
        if bucket.group["solver"] == "gradient":
            self._inner(bucket, seen)
        else:
            self._exact(bucket, seen, draws)

    def _exact(self, bucket: Bucket, seen: list[Any], draws: int) -> None:
        moments, group = bucket.moments, bucket.group
        assert moments is not None
        B = group["batch_size"]
        squares = B is not None and group["num_data"] > B and draws == 1 and group["curvature"] == "auto"
        trust = group["curvature"] == "score"
        table = settled(moments, bucket.lengths, group["damping"], trust, squares)
        o = self._options(bucket, squares, *bucket.spread(table))
        rule = exact_single if len(seen) == 2 else exact_update
        flat, prior = bucket.flat, self._prior_mean(bucket)
        totals = self._move(bucket, rule, flat["mean"], flat["sd"], flat.get("momentum"), prior, *seen, o)
        follow(moments, totals, bucket.lengths)

    def _options(self, bucket: Bucket, squares: bool, *of_tensors: Tensor) -> ExactOptions:
        group = bucket.group
        N, B, beta = group["num_data"], group["batch_size"], group["momentum"] * ("momentum" in bucket.flat)
        c, t = group["temperature"] / N, group["updates"]
        start = group["init_sd"] ** 2
        share = self._rate(group) * c / start  # of a Newton step with the initial precision
        eta = min(1.0, max(share, STILL))
        *numbers, fisher = self._numbers(
            bucket,
            1 / c,
            c * group["prior_sd"] ** -2.0,
            group["prior_sd"] ** -2.0,
            group["prior_sd"],
            1.0,
            1 / eta,
            beta,
            1 / (1 - beta ** (t - 1)) if t > 1 else 0.0,
            start,
            max(1.0, share),
            -(1 - beta) * c / eta,
            eta / (c * (1 - beta**t)),
            B * ((1 + beta) / 2 if beta else 1.0) / (1 - B / N) if squares else 0.0,
        )
        return ExactOptions._make((*numbers, fisher if squares else None, *of_tensors))

    def _inner(self, bucket: Bucket, seen: list[Any]) -> None:
        group, flat = bucket.group, bucket.flat
        steps, adam = group["inner_steps"], group["optimizer"] == "adam"
        before = (group["updates"] - 1) * steps
        numbers = self._numbers(
            bucket,
            group["temperature"] / group["num_data"],
            group["prior_sd"] ** -2.0,
            group["alpha"],
            group["lr"],
            group["lr"] * (group["sd_rate"] if adam else 1.0),
            group["momentum"],
            group["floor"],
            *(1 / (1 - beta**k) for k in range(before + 1, before + steps + 1) for beta in (B1, B2)),
        )
        o = InnerOptions._make((*numbers[:7], numbers[7:]))
        rule = inner_single if len(seen) == 2 else inner_steps
        kept = [flat.get(key) for key in ("first_m", "first_r", "second_m", "second_r")]
        totals = self._move(bucket, rule, flat["mean"], flat["sd"], *kept, self._prior_mean(bucket), *seen, o)
        assert bucket.moments is not None
        # the slope moves twice as much as log sd
        take(bucket.moments, totals, bucket.lengths, 2 * steps)

    def _power(self, group: dict[str, Any]) -> int:
        return 1 if group["solver"] == "exact" else 0

    def _precision_status(self) -> str:
        group, rows = self._head, self._measured()
        how, rho = "score", 1.0
        if group["solver"] == "exact" and group["curvature"] == "auto":
            B = group["batch_size"]
            one = group["last_draws"] == 1
            how = "squares" if one and B is not None and group["num_data"] > B else "initial"
            trusted = sum(row.size * row.steps / (row.steps + PATIENCE * row.noise) for row in rows)
            rho = trusted / max(sum(row.size for row in rows), 1)
        return precision_sentence(rows, group["last_draws"], how, rho)
