"""Diagonal BaM for networks: the closed form of methods/bam.py (6) with the mini-batch in mind.

Per weight, from S >= 2 draws z_i with scores g_i, their means zbar, gbar and variances Var (divided by S):
    a s^2 + s/lam - b = 0,  a = Var(g) + gbar^2/(1+lam),  b = Var(z) + s_t/lam + (mu_t - zbar)^2/(1+lam)  (1)
    mu = mu_t/(1+lam) + lam/(1+lam) (s gbar + zbar)                                                        (2)
That is BaM as published (published=True). Mini-batches bias it twice. gbar^2 is mostly the batch's noise,
kappa = N/(batch tau) times what it should be; and Var(g) on one batch is a row of squares of the batch's
Hessian H_B, whose mean is that of H plus the variance of H_B over batches. Both make s too small.

The default has neither. Draws are antithetic pairs, on the same batch within a step, and every noise is used
in two successive steps, on two batches B and B'. With H sigma eps = half the difference of a pair's scores,
    d = sum over pairs (g_+ - g_-)/2,     e = sum over pairs eps                                           (3)
    a = d_B d_B'/pairs,                   b = e^2/pairs + s_t/lam                                          (4)
What a batch adds to both scores of a pair cancels in (3), and two independent batches make E a the row of
squares of H alone (drawn without replacement they are anticorrelated by B/(N - B), which makes s a little
wider). (2) is made in every step, with zbar = 0; (1) with (4) in every second one. The mean may go faster
than the variance, which therefore has a lam of its own,
    1/lam = damping + t + 10 sqrt(V),                                                                      (5)
t the number of pairs of steps, V the tensor's running mean square of (a - e^2/pairs)/2.

Without mini-batches both fix s_i sum_j H_ij^2 s_j = 1, the Fisher divergence's optimum, which is the ELBO's
1/H_ii where correlations between weights are weak and narrower elsewhere. In per-datum units, c = tau/N:
g = -(1/c) (grad l + delta (theta - m0)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.optim.base import Shell
from bayescore.optim.buckets import Bucket, Member
from bayescore.optim.noise import Noise, Placed, drawn
from bayescore.optim.options import positive
from bayescore.optim.precision import follow, precision_sentence, weight_of
from bayescore.optim.steep import WATCHED

__all__ = ["BaM", "bam_root", "bam_step"]


def bam_root(a: Tensor, b: Tensor, lam: Tensor | float) -> Tensor:
    """The positive root x of a x^2 + x/lam - b = 0; where noise makes a so negative that there is none, the
    point where two become one."""
    return 2 * b / (1 / lam + (1 / lam**2 + 4 * a * b).clamp_min(0).sqrt())


def bam_step(
    mean: Tensor, sd: Tensor, zbar: Tensor, z2: Tensor, gbar: Tensor, g2: Tensor, lam: float
) -> tuple[Tensor, Tensor]:
    """(1) and (2) with everything whitened: zbar and z2 are mean and variance of eps, gbar and g2 those of
    sigma * score, and the root is s/s_t."""
    b = z2 + 1 / lam + zbar.square() / (1 + lam)
    x = bam_root(g2 + gbar.square() / (1 + lam), b, lam)
    return mean + sd * lam / (1 + lam) * (x * gbar + zbar), sd * x.sqrt()


class BaMOptions(NamedTuple):
    """Numbers of one step, as zero-dimensional tensors."""

    c: Tensor
    prior_precision: Tensor
    prior_sd: Tensor
    lr: Tensor  # lam of (2)
    pairs: Tensor
    lam: Tensor  # (5) of a tensor; 0 in the first of two steps with the same noise


def bam_slope(sd: Tensor, half: Tensor, d: Tensor, e: Tensor, o: BaMOptions) -> tuple[Tensor, Tensor]:
    """The slope (a - e^2/pairs)/2, which is zero in the mean when learned, and its square."""
    slope = (half * _whitened(sd, d, e, o) - e.square()) / (2 * o.pairs)
    return slope, slope.square()


def collect_first(sum_g: Tensor, sum_e: Tensor, first_g: Tensor, g: Tensor, noise: Noise) -> None:
    """The first draw of a pair."""
    first_g.copy_(g)
    sum_g.add_(g)
    sum_e.add_(drawn(noise, g))


def collect_second(
    sum_g: Tensor, sum_e: Tensor, first_g: Tensor, d: Tensor, e: Tensor, g: Tensor, noise: Noise
) -> None:
    """The second draw of a pair: (3)."""
    eps = drawn(noise, g)
    d.add_(first_g - g, alpha=0.5)
    e.sub_(eps)
    sum_g.add_(g)
    sum_e.add_(eps)


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
    """A draw about the first gradient: what the draws share cancels before squaring."""
    eps, apart = drawn(noise, g), g - first_g
    sum_gg.addcmul_(apart, apart)
    sum_xg.addcmul_(apart, eps)
    sum_ee.addcmul_(eps, eps)
    sum_g.add_(apart)
    sum_e.add_(eps)


def bam_paired(
    mean: Tensor,
    sd: Tensor,
    half: Tensor,
    prior_mean: Tensor,
    G: Tensor,
    z: Tensor,
    d: Tensor,
    e: Tensor,
    o: BaMOptions,
) -> None:
    """Move mean and sd, and keep the whitened d.

    G and z are means over all draws, d and e the sums (3) of per-datum gradients and noise.
    """
    prior = o.c * o.prior_precision
    gbar = -sd / o.c * (G + prior * (mean - prior_mean + sd * z))
    now = _whitened(sd, d, e, o)
    moves = o.lam > 0
    lam = torch.where(moves, o.lam, 1.0)
    root = bam_root(half * now / o.pairs, e.square() / o.pairs + 1 / lam, lam)  # (4)
    x = torch.where(moves, root, 1.0)
    mean.add_(o.lr / (1 + o.lr) * sd * (x * gbar + z))  # (2)
    half.copy_(now)
    sd.copy_(torch.minimum(sd * x.sqrt(), o.prior_sd))


def _whitened(sd: Tensor, d: Tensor, e: Tensor, o: BaMOptions) -> Tensor:
    return sd / o.c * (d + o.c * o.prior_precision * sd * e)


class BaM(Shell):
    """Batch and match with a diagonal Gaussian over the weights.

    Arguments:
        lr: lam of (2), the rate of the mean; as published, of (1) too. None: 0.2, and a free init_sd is
            lowered where the loss is steep (optim/steep.py).
        damping: 1/lam of (1) at the start, see (5).
        published: take the variance of the scores from one batch, mean included, as BaM does (see above).
        samples: draws per step with `opt.step(closure)`; at least 2 per step, all on the same batch.
        the rest: as in ProximalScore.
    """

    least_draws = 2

    def __init__(
        self,
        params: Any,
        num_data: int,
        *,
        lr: float | None = None,
        damping: float = 500.0,
        published: bool = False,
        init_sd: float | None = None,
        prior_mean: Any = 0.0,
        prior_sd: float = 1.0,
        weight_decay: float = 0.0,
        average: float = 0.0,
        temperature: float = 1.0,
        samples: int = 2,
        accumulate: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        max_skips: int = 50,
        compiled: bool | None = None,
    ) -> None:
        watch = WATCHED if lr is None and init_sd is None and not published else 0
        if lr is None:
            lr = 0.2
        options = {k: v for k, v in locals().items() if k not in ("self", "params", "__class__")}
        # the step whose d is kept, and the tensors that it had gradients of
        options.update(first=-2, reached=[], update_in_backward=False)
        super().__init__(params, options.pop("num_data"), options)

    def _rate(self, group: dict[str, Any]) -> float:
        """A share of a Newton step, whatever the curvature."""
        return float(group["lr"])

    def _stride(self, group: dict[str, Any]) -> float:
        per_datum = group["init_sd"] ** 2 * group["num_data"] / group["temperature"]
        return float(group["lr"] / (1 + group["lr"]) * per_datum)  # (2)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        positive("damping", group["damping"])
        if group["samples"] < 2:
            raise ValueError(f"BaM needs samples of at least 2; got {group['samples']}")
        check_count("first", group["first"], -2)

    def _start(self, member: Member, mean: Tensor) -> None:
        super()._start(member, mean)
        if not member.group["published"]:
            member.state["half"] = torch.zeros_like(mean)

    def noise(self, bucket: Bucket, draw: int) -> Noise:
        """Steps 2j and 2j + 1 have the same noise."""
        group = bucket.group
        return self._noise(bucket, group["step"] if group["published"] else group["step"] // 2, draw)

    def _collect(self, bucket: Bucket, g: Tensor, noise: Noise) -> None:
        number = bucket.group["absorbed"]
        if bucket.group["published"]:
            keys = ("sum_g", "sum_e", "sum_gg", "sum_xg", "sum_ee", "sum_first_g")
            sums = bucket.zeros(*keys)
            if number == 0:
                sums[-1].copy_(g)
            self._run(bucket, collect_published, *sums, g, noise)
        elif number % 2:
            sums = bucket.zeros("sum_g", "sum_e", "sum_first_g", "sum_d_g", "sum_d_e")
            self._run(bucket, collect_second, *sums, g, noise)
        else:
            sums = bucket.zeros("sum_g", "sum_e", "sum_first_g")
            self._run(bucket, collect_first, *sums, g, noise)

    def _apply(self, bucket: Bucket, g: Tensor | None, noise: Noise | Placed | None, draws: int) -> None:  # noqa: ARG002
        (self._published if bucket.group["published"] else self._paired)(bucket, draws)

    def _paired(self, bucket: Bucket, draws: int) -> None:
        flat, group, moments = bucket.flat, bucket.group, bucket.moments
        assert moments is not None
        o = BaMOptions(
            *self._numbers(
                bucket,
                group["temperature"] / group["num_data"],
                group["prior_sd"] ** -2.0,
                group["prior_sd"],
                group["lr"],
                draws // 2,
                0.0,
            )
        )
        d, e, half = *bucket.zeros("sum_d_g", "sum_d_e"), flat["half"]
        if group["first"] == group["step"] - 1:
            totals = self._run(bucket, bam_slope, flat["sd"], half, d, e, o)
            follow(moments, totals, bucket.lengths)
            t = moments[:, 3]
            V = moments[:, 1] / weight_of(moments).to(moments)
            lam = 1 / (group["damping"] + t + 10 * V.sqrt())  # (5)
            moments[:, 2] += 2 * lam / (1 + 2 * lam)
            (lam,) = bucket.spread(lam[None])
            o = o._replace(lam=lam)
        seen = [flat["sum_g"] / draws, flat["sum_e"] / draws, d, e]
        self._move(bucket, bam_paired, flat["mean"], flat["sd"], half, self._prior_mean(bucket), *seen, o)

    def _published(self, bucket: Bucket, draws: int) -> None:
        state, group = bucket.flat, bucket.group
        c, tight = group["temperature"] / group["num_data"], group["prior_sd"] ** -2.0
        scale = state["sd"] / c
        zbar, d = state["sum_e"] / draws, state["sum_g"] / draws
        z2 = (state["sum_ee"] / draws - zbar.square()).clamp_min(0)
        k = c * tight * state["sd"]  # the prior adds k eps to every per-datum gradient
        cross = state["sum_xg"] / draws - zbar * d
        spread = state["sum_gg"] / draws - d.square() + 2 * k * cross + k.square() * z2
        far = state["mean"] - self._prior_mean(bucket)
        pull = c * tight * far
        gbar = -scale * (state["sum_first_g"] + d + pull + k * zbar)
        g2 = scale.square() * spread.clamp_min(0)
        mean, sd = bam_step(state["mean"], state["sd"], zbar, z2, gbar, g2, max(group["lr"], 1e-20))
        state["mean"].copy_(mean - self._decay(bucket) * far)
        state["sd"].copy_(sd.clamp_max(group["prior_sd"]))
        self._restore(bucket)

    def _finish(self, draws: int) -> bool:
        reached = [m.number for m in self._members() if m.weight.grad is not None or "sum_g" in m.state]
        for group in self.param_groups:
            if reached != group["reached"]:
                # a tensor that had no gradient in one of two steps has nothing to compare
                group["first"], group["reached"] = -2, reached
        moved = super()._finish(draws)
        for group in self.param_groups:
            if not moved or group["published"]:
                continue
            second = group["first"] == group["step"] - 1
            group["first"] = -2 if second or group["step"] % 2 else group["step"]
        return moved

    def _power(self, group: dict[str, Any]) -> int:
        return 0 if group["published"] else 2

    def _precision_status(self) -> str:
        group = self._head
        if group["published"]:
            return (
                "precision not learned under mini-batches: BaM as published takes their noise for curvature"
            )
        return precision_sentence(self._measured(), 2, "score")
