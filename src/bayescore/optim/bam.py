"""Diagonal BaM for networks: as published, and with pairs of batches (rules/bam.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.optim.base import BayesianOptimizer, Move, Seen, Told
from bayescore.optim.engine import Bucket, Member
from bayescore.optim.noise import Noise, numbers
from bayescore.optim.options import CommonOptions, positive
from bayescore.optim.status import precision_sentence
from bayescore.optim.steep import WATCHED
from bayescore.rules.bam import PairedOptions, bam_step, paired_lam, paired_slope, paired_step
from bayescore.rules.curvature import follow

__all__ = ["BaM", "PairedBaM"]

SMALLEST = 1e-18  # stands for lam = 0: moves nothing, and its square is a float32 number
PUBLISHED_SUMS = ("sum_g", "sum_e", "sum_gg", "sum_xg", "sum_ee", "sum_first_g")


def collect_published(
    sum_g: Tensor,
    sum_e: Tensor,
    sum_gg: Tensor,
    sum_xg: Tensor,
    sum_ee: Tensor,
    first_g: Tensor,
    g: Tensor,
    noise: Noise,
) -> None:
    """Add a draw's gradient minus the first draw's: what all draws share cancels before squaring."""
    eps, difference = numbers(noise, g), g - first_g
    sum_gg.addcmul_(difference, difference)
    sum_xg.addcmul_(difference, eps)
    sum_ee.addcmul_(eps, eps)
    sum_g.add_(difference)
    sum_e.add_(eps)


class PublishedOptions(NamedTuple):
    """Numbers of one step of the published form, as zero-dimensional tensors."""

    c: Tensor
    prior_precision: Tensor
    prior_sd: Tensor
    lam: Tensor
    draws: Tensor


def published_step(
    mean: Tensor,
    sd: Tensor,
    prior_mean: Tensor,
    sum_g: Tensor,
    sum_e: Tensor,
    sum_gg: Tensor,
    sum_xg: Tensor,
    sum_ee: Tensor,
    first_g: Tensor,
    o: PublishedOptions,
) -> tuple[tuple[Tensor, Tensor], None]:
    """(1) and (2) of rules/bam.py from the sums over draws."""
    scale = sd / o.c
    zbar, d = sum_e / o.draws, sum_g / o.draws
    z2 = (sum_ee / o.draws - zbar.square()).clamp_min(0)
    k = o.c * o.prior_precision * sd  # the prior adds k eps to every per-datum gradient
    cross = sum_xg / o.draws - zbar * d
    spread = sum_gg / o.draws - d.square() + 2 * k * cross + k.square() * z2
    gbar = -scale * (first_g + d + o.c * o.prior_precision * (mean - prior_mean) + k * zbar)
    g2 = scale.square() * spread.clamp_min(0)
    new, sd = bam_step(mean, sd, zbar, z2, gbar, g2, o.lam)
    return (new, torch.minimum(sd, o.prior_sd)), None


def collect_first(sum_g: Tensor, sum_e: Tensor, first_g: Tensor, g: Tensor, noise: Noise) -> None:
    """Add the first draw of a pair."""
    first_g.copy_(g)
    sum_g.add_(g)
    sum_e.add_(numbers(noise, g))


def collect_second(
    sum_g: Tensor, sum_e: Tensor, first_g: Tensor, d: Tensor, e: Tensor, g: Tensor, noise: Noise
) -> None:
    """Add the second draw of a pair: (3) of rules/bam.py."""
    eps = numbers(noise, g)
    d.add_(first_g - g, alpha=0.5)
    e.sub_(eps)
    sum_g.add_(g)
    sum_e.add_(eps)


class _SeveralDraws(BayesianOptimizer):
    """What both forms share: two draws or more per step."""

    least_draws = 2

    def _rate(self, group: dict[str, Any]) -> float:
        """lr itself: a share of a Newton step, which a steep loss does not change."""
        return float(group["lr"])

    def _stride(self, group: dict[str, Any]) -> float:
        per_datum = group["init_sd"] ** 2 * group["num_data"] / group["temperature"]
        return float(group["lr"] / (1 + group["lr"]) * per_datum)  # (2) of rules/bam.py

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if group["draws"] < 2:
            raise ValueError(f"BaM needs draws of at least 2; got {group['draws']}")


class BaM(_SeveralDraws):
    """Batch and match as published, with a diagonal Gaussian over the weights.

    With mini-batches it is too narrow: it mistakes their noise for curvature. `PairedBaM` does not.

    Arguments:
        lr: lam of (1) and (2) in rules/bam.py.
        common: as in ProximalScore; draws is at least 2 per step, all on the same batch.
    """

    def __init__(
        self, params: Any, num_data: int, *, lr: float = 0.2, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(params, num_data, {"lr": lr, "draws": common.get("draws", 2)}, common)

    def _collect(self, bucket: Bucket, g: Tensor, noise: Noise) -> None:
        sums = bucket.zeros(*PUBLISHED_SUMS)
        if bucket.group["collected"] == 0:
            sums[-1].copy_(g)
        self._run(bucket, collect_published, *sums, g, noise)

    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        group, flat = bucket.group, bucket.flat
        o = PublishedOptions(
            *self._numbers(
                bucket,
                group["temperature"] / group["num_data"],
                group["prior_sd"] ** -2.0,
                group["prior_sd"],
                max(group["lr"], SMALLEST),
                seen.draws,
            )
        )
        sums = [flat[key] for key in PUBLISHED_SUMS]
        return Move(published_step, ("sd",), "as is", (self._prior_mean(bucket), *sums, o), tells=False)

    def _precision_status(self) -> str:
        return "precision not learned under mini-batches: BaM as published takes their noise for curvature"


class PairedBaM(_SeveralDraws):
    """Batch and match with a diagonal Gaussian over the weights, without the bias of mini-batches.

    Arguments:
        lr: lam of (2) in rules/bam.py, the rate of the mean. None: 0.2, and the default init_sd is lowered if
            the loss is steep (optim/steep.py).
        damping: 1/lam of (1) in the first steps, see (5).
        common: as in ProximalScore; draws is at least 2 per step, all on the same batch.
    """

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float | None = None,
        damping: float = 500.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        own = {
            "lr": 0.2 if lr is None else lr,
            "damping": damping,
            "draws": common.get("draws", 2),
            # the step whose d is kept, and the numbers of the tensors that had a gradient in it
            "first": -2,
            "reached": [],
        }
        free = lr is None and common.get("init_sd") is None
        super().__init__(params, num_data, own, common, WATCHED if free else 0)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        positive("damping", group["damping"])
        check_count("first", group["first"], -2)

    def _init_state(self, member: Member, mean: Tensor) -> None:
        super()._init_state(member, mean)
        member.state["half"] = torch.zeros_like(mean)

    def noise(self, bucket: Bucket, draw: int) -> Noise:
        """Steps 2j and 2j + 1 have the same noise."""
        return self._noise(bucket, bucket.group["step"] // 2, draw)

    def _collect(self, bucket: Bucket, g: Tensor, noise: Noise) -> None:
        if bucket.group["collected"] % 2:
            sums = bucket.zeros("sum_g", "sum_e", "sum_first_g", "sum_d_g", "sum_d_e")
            self._run(bucket, collect_second, *sums, g, noise)
        else:
            self._run(bucket, collect_first, *bucket.zeros("sum_g", "sum_e", "sum_first_g"), g, noise)

    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        flat, group, o = bucket.flat, bucket.group, self._paired_options(bucket, seen.draws)
        d, e = bucket.zeros("sum_d_g", "sum_d_e")
        if self._is_second(group):
            assert bucket.statistics is not None
            (lam,) = bucket.spread_table(paired_lam(bucket.statistics, group["damping"])[:, None])
            o = o._replace(lam=lam)
        G, z = flat["sum_g"] / seen.draws, flat["sum_e"] / seen.draws
        given = (self._prior_mean(bucket), G, z, d, e, o)
        return Move(paired_step, ("sd", "half"), "as is", given, tells=False)

    def _measure(self, buckets: Sequence[Bucket], draws: int) -> Told:
        told = []
        for bucket in (bucket for bucket in buckets if self._is_second(bucket.group)):
            o, sums = self._paired_options(bucket, draws), bucket.zeros("sum_d_g", "sum_d_e")
            slopes = self._run(bucket, paired_slope, bucket.flat["sd"], bucket.flat["half"], *sums, o)
            told.append((bucket, slopes))
        return told

    def _learn(self, bucket: Bucket, totals: Tensor) -> None:
        assert bucket.statistics is not None
        follow(bucket.statistics, totals, bucket.lengths)

    @staticmethod
    def _is_second(group: dict[str, Any]) -> bool:
        """Whether this is the second step of a pair."""
        return bool(group["first"] == group["step"] - 1)

    def _paired_options(self, bucket: Bucket, draws: int) -> PairedOptions:
        """The options of a step, without lam."""
        group = bucket.group
        numbers = (
            group["temperature"] / group["num_data"],
            group["prior_sd"] ** -2.0,
            group["prior_sd"],
            group["lr"],
            draws // 2,
            0.0,
        )
        return PairedOptions(*self._numbers(bucket, *numbers))

    def _finish(self, draws: int) -> bool:
        reached = [m.number for m in self._members() if m.weight.grad is not None or "sum_g" in m.state]
        for group in self.param_groups:
            if reached != group["reached"]:
                # (4) needs a gradient of a tensor in both steps of a pair
                group["first"], group["reached"] = -2, reached
        moved = super()._finish(draws)
        for group in self.param_groups:
            if moved:
                second = self._is_second(group)
                group["first"] = -2 if second or group["step"] % 2 else group["step"]
        return moved

    def _power(self, group: dict[str, Any]) -> int:  # noqa: ARG002
        return 2

    def _precision_status(self) -> str:
        return precision_sentence(self._measured(), 2, "score")
